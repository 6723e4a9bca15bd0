"""Section 3: what a transformer is built from, shown without training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from tokenloom.lab.corpus import CORPUS, WINDOW, corpus_text
from tokenloom.lab.experiment import ExperimentContext, Outcome, at_least, at_most, exact, experiment, near
from tokenloom.models.batch import Batch, Stream
from tokenloom.nn.lora import LoRALinear, apply_lora
from tokenloom.nn.modules import count_parameters
from tokenloom.plotting.svg import Line, Plot
from tokenloom.tasks._masking import MaskingDraws, corrupt


@experiment(
    "3.1",
    "The causal mask",
    question="Can a token see what comes after it?",
    protocol="An untrained GPT of the shape of 3.4 reads 10 tokens; then tokens 6 … 9 are changed.",
    explanation="A decoder is trained to predict each next token from those before it, so it must never see them. The "
    "outputs before the change are the same to the last bit.",
    seed=12,
)
def causal(ctx: ExperimentContext) -> Outcome:
    """3.1."""
    from tokenloom.models.gpt import GPT, GPTConfig

    model = GPT(GPTConfig(65, WINDOW, width=64, depth=2, heads=4, **GPTConfig.parts("classic")), seed=ctx.seed)
    ids = torch.randint(0, 65, (1, 10), generator=ctx.generator())
    other = ids.clone()
    other[:, 6:] = (other[:, 6:] + 1) % 65
    with torch.no_grad():
        a, b = (model(Batch({"text": Stream(ids=one)})) for one in (ids, other))
    changes = (a - b).abs().amax((0, 2))
    plot = Plot(
        "What a change of tokens 6 … 9 changes",
        "Nothing before token 6.",
        "token",
        "largest change of an output",
        [Line("change", list(range(10)), changes.tolist())],
    )
    measurements = [
        at_most("change of outputs 0 … 5", 1e-6, changes[:6].max().item(), "unchanged"),
        at_least("smallest change of outputs 6 … 9", 1e-3, changes[6:].min().item(), "changed"),
    ]
    return Outcome(measurements, [plot])


@experiment(
    "3.2",
    "The padding mask",
    question="Do the empty places of a batch leak into its texts?",
    protocol="3 real tokens padded to 5, no causal mask: an attention layer with and without the padding mask.",
    explanation="Texts of unequal length share a batch by padding. Without a mask attention averages over padding too, "
    "and the same text gives another answer beside a longer one: a bug that no error shows.",
    seed=2,
)
def padding(ctx: ExperimentContext) -> Outcome:
    """3.2."""
    from tokenloom.nn.attention import MultiHeadAttention
    from tokenloom.nn.masks import Padding

    torch.manual_seed(ctx.seed)
    layer = MultiHeadAttention(16, 4)
    X = torch.randn(1, 3, 16, generator=ctx.generator())
    padded = torch.cat((X, torch.ones(1, 2, 16)), 1)
    with torch.no_grad():
        alone, open_ = layer(X), layer(padded)[:, :3]
        masked = layer(padded, mask=Padding.of_lengths(torch.tensor([3]), 5))[:, :3]
    measurements = [
        at_most("masked − unpadded", 1e-6, (masked - alone).abs().max().item(), "equal to 1e-6"),
        at_least("unmasked − unpadded", 1e-3, (open_ - alone).abs().max().item(), "not equal"),
    ]
    return Outcome(measurements)


class _Table:
    """p(a) = 0.6, p(b) = 0.4; after a 0.5 each; after b 0.9 for a."""

    vocab_size, context = 3, None

    def init_state(self, batch: int, rows: Any = None) -> _Last:
        return _Last(torch.full((batch,), 2))

    def step(self, tokens: Tensor, state: _Last, counts: Tensor | None = None) -> tuple[Tensor, _Last]:
        table = torch.tensor([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0], [0.6, 0.4, 0.0]]).log()
        return table[tokens], _Last(tokens[:, -1])


@dataclass
class _Last:
    """The last token of each row."""

    lengths: Tensor

    def select(self, rows: Tensor) -> _Last:
        """Some of the rows."""
        return _Last(self.lengths[rows])

    def repeat(self, n: int) -> _Last:
        """Each row n times."""
        return _Last(self.lengths.repeat_interleave(n, 0))


@experiment(
    "3.8",
    "Greedy is not optimal",
    question="Is the likeliest token always the beginning of the likeliest text?",
    protocol="p(a) = .6, p(b) = .4; after a .5 and .5; after b .9 and .1. Two tokens, greedy and by a beam of 2.",
    explanation="Greedy choice takes a, after which both tokens are a toss-up: 0.30. The text ba has 0.36, and "
    "a beam that keeps both beginnings finds it.",
)
def greedy(ctx: ExperimentContext) -> Outcome:
    """3.8."""
    from tokenloom.generation.beam_search import BeamOptions, beam_search

    measurements = []
    for width, text, published in ((1, "aa", 0.30), (2, "ba", 0.36)):
        [[best]] = beam_search(cast(Any, _Table()), [[2]], BeamOptions(width, 2))
        name = "greedy" if width == 1 else "beam of 2"
        found = "".join("ab"[i] for i in best.ids)
        measurements.append(exact(f"{name}: text", text, found))
        measurements.append(exact(f"{name}: probability", f"{published:.2f}", f"{np.exp(best.log_prob):.2f}"))
    return Outcome(measurements)


OPENING = "Fi_s_ Citizen:⏎Befo_e we proceed any further, hear me__peak."
SHARES = (("selected", 0.151, 0.150, 0.01), ("masked", 0.789, 0.800, 0.025), ("unchanged", 0.110, 0.1025, 0.025))


@experiment(
    "3.12",
    "The masked language model",
    question="What does an encoder have to fill in?",
    protocol="15 % selected; of those 80 % masked, 10 % replaced, 10 % as they are; G(4): the opening 60 "
    "characters, then 256 windows of 64.",
    explanation="An encoder sees both sides of a gap. Some of the selected tokens stay or are replaced, so that "
    "it cannot trust what it sees and has to have an opinion on every token.",
    seed=4,
    dataset=CORPUS,
)
def masked(ctx: ExperimentContext) -> Outcome:
    """3.12."""
    text = corpus_text()
    characters = sorted(set(text))
    vocab_size = mask = len(characters)
    ids = torch.from_numpy(np.searchsorted(characters, list(text)))
    training = ids[: int(0.9 * len(ids))]
    g = ctx.generator()
    seen, selected = corrupt(training[:60], MaskingDraws.of((60,), vocab_size, g), mask)
    line = "".join("_" if i == mask else characters[i] for i in seen.tolist()).replace("\n", "⏎")
    places = " ".join(str(i) for i in selected.nonzero().flatten().tolist())
    starts = torch.randint(len(training) - WINDOW - 1, (256,), generator=g)
    rows = training[starts[:, None] + torch.arange(WINDOW)]
    seen, selected = corrupt(rows, MaskingDraws.of((256, WINDOW), vocab_size, g), mask)
    found = (
        selected.float().mean().item(),
        (seen[selected] == mask).float().mean().item(),
        (seen[selected] == rows[selected]).float().mean().item(),
    )
    measurements = []
    if ctx.default_seed:
        measurements += [exact("the line", OPENING, line), exact("positions", "2 4 5 19 53 54", places)]
    for (name, published, expected, second), value in zip(SHARES, found, strict=True):
        if ctx.default_seed:
            measurements.append(exact(name, f"{published:.3f}", f"{value:.3f}"))
        else:
            measurements.append(near(name, expected, value, second, 3))
    return Outcome(measurements)


@experiment(
    "3.15",
    "Low-rank adapters",
    question="How few numbers are enough to change a model?",
    protocol="The GPT of 3.4 with adapters of rank 4 on W_q and W_v of both layers.",
    explanation="Each map stays as it is and gets a product of two thin matrices beside it, which is all that "
    "is trained. Merged into the map it costs nothing; taken out again, the old model is back bit for bit.",
    seed=12,
)
def adapters(ctx: ExperimentContext) -> Outcome:
    """3.15."""
    from tokenloom.models.gpt import GPT, GPTConfig

    model = GPT(GPTConfig(65, WINDOW, width=64, depth=2, heads=4, **GPTConfig.parts("classic")), seed=ctx.seed)
    count = count_parameters(model)
    batch = Batch({"text": Stream(ids=torch.randint(0, 65, (2, 32), generator=ctx.generator()))})
    with torch.no_grad():
        before = model(batch)
        made = apply_lora(model, 4, generator=ctx.generator())
        fresh = model(batch)
        for adapter in made:
            adapter.B.normal_(generator=ctx.generator())
        apart = model(batch)
        for adapter in made:
            adapter.merge()
        merged = model(batch)
        for adapter in made:
            adapter.unmerge()
        again = model(batch)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    maps = [name.split(".") for name, part in model.named_modules() if isinstance(part, LoRALinear)]
    adapted = " ".join(f"{layer} {own}" for _, _, layer, _, own in maps)
    measurements = [
        exact("layers and maps adapted", "0 W_q 0 W_v 1 W_q 1 W_v", adapted),
        exact(
            "trained numbers",
            "2,048 of 112,065 (1.8 %)",
            f"{trained:,} of {count:,} ({trained / count:.1%})".replace("%", " %"),
        ),
        at_most("fresh adapters − base model", 0.0, (fresh - before).abs().max().item(), "equal"),
        at_most("apart − merged", 1e-5, (apart - merged).abs().max().item(), "equal to 1e-5"),
        at_most("unmerged − apart", 0.0, (again - apart).abs().max().item()),
        at_least("what the adapters change", 0.01, (apart - before).abs().max().item()),
    ]
    return Outcome(measurements)
