"""Section 3: parts of a transformer, without training."""

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
    question="Do outputs depend on later tokens?",
    protocol="An untrained GPT of the shape of 3.4 reads 10 tokens; then tokens 6 … 9 are changed.",
    explanation="A decoder is trained to predict each token from those before it, so outputs must not depend on later "
    "tokens. The outputs before the change are identical.",
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
        "Change of the outputs when tokens 6 … 9 are changed",
        "Outputs before token 6 do not change.",
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
    question="Does padding change the outputs of a text?",
    protocol="3 real tokens padded to 5, no causal mask: an attention layer with and without the padding mask.",
    explanation="Texts of different lengths share a batch by padding. Without a mask attention averages over padding, "
    "and the outputs of a text depend on the other texts of its batch: a bug that raises no error.",
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
        alone, unmasked = layer(X), layer(padded)[:, :3]
        masked = layer(padded, mask=Padding.of_lengths(torch.tensor([3]), 5))[:, :3]
    measurements = [
        at_most("masked − unpadded", 1e-6, (masked - alone).abs().max().item(), "equal to 1e-6"),
        at_least("unmasked − unpadded", 1e-3, (unmasked - alone).abs().max().item(), "not equal"),
    ]
    return Outcome(measurements)


class _BigramModel:
    """p(a) = 0.6, p(b) = 0.4; after a 0.5 each; after b 0.9 for a."""

    vocab_size, context = 3, None

    def init_state(self, batch: int, rows: Any = None) -> _LastToken:
        return _LastToken(torch.full((batch,), 2))

    def step(self, tokens: Tensor, state: _LastToken, counts: Tensor | None = None) -> tuple[Tensor, _LastToken]:
        table = torch.tensor([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0], [0.6, 0.4, 0.0]]).log()
        return table[tokens], _LastToken(tokens[:, -1])


@dataclass
class _LastToken:
    """The last token of each row."""

    lengths: Tensor

    def select(self, rows: Tensor) -> _LastToken:
        """Return some rows."""
        return _LastToken(self.lengths[rows])

    def repeat(self, n: int) -> _LastToken:
        """Return each row n times."""
        return _LastToken(self.lengths.repeat_interleave(n, 0))


@experiment(
    "3.8",
    "Greedy is not optimal",
    question="Is the most probable token always the beginning of the most probable text?",
    protocol="p(a) = .6, p(b) = .4; after a .5 and .5; after b .9 and .1. Two tokens, greedy and by a beam of 2.",
    explanation="Greedy decoding takes a, after which both tokens have probability 0.5: 0.30. The text ba has 0.36, "
    "and a beam of two finds it.",
)
def greedy(ctx: ExperimentContext) -> Outcome:
    """3.8."""
    from tokenloom.generation.beam_search import BeamOptions, beam_search

    measurements = []
    for width, text, published in ((1, "aa", 0.30), (2, "ba", 0.36)):
        [[best]] = beam_search(cast(Any, _BigramModel()), [[2]], BeamOptions(width, 2))
        name = "greedy" if width == 1 else "beam of 2"
        found = "".join("ab"[i] for i in best.ids)
        measurements.append(exact(f"{name}: text", text, found))
        measurements.append(exact(f"{name}: probability", f"{published:.2f}", f"{np.exp(best.log_prob):.2f}"))
    return Outcome(measurements)


OPENING = "Fi_s_ Citizen:⏎Befo_e we proceed any further, hear me__peak."
FRACTIONS = (("selected", 0.151, 0.150, 0.01), ("masked", 0.789, 0.800, 0.025), ("unchanged", 0.110, 0.1025, 0.025))


@experiment(
    "3.12",
    "The masked language model",
    question="Which tokens does an encoder have to predict?",
    protocol="15 % selected; of those 80 % masked, 10 % replaced, 10 % unchanged; G(4): the opening 60 characters, "
    "then 256 windows of 64.",
    explanation="An encoder reads both sides of a masked token. Some selected tokens are unchanged or replaced, so "
    "that the encoder has to predict every token, not only masked ones.",
    seed=4,
    dataset=CORPUS,
)
def masked(ctx: ExperimentContext) -> Outcome:
    """3.12."""
    text = corpus_text()
    characters = sorted(set(text))
    vocab_size = mask = len(characters)
    ids = torch.from_numpy(np.searchsorted(characters, list(text)))
    train_ids = ids[: int(0.9 * len(ids))]
    g = ctx.generator()
    corrupted, selected = corrupt(train_ids[:60], MaskingDraws.of((60,), vocab_size, g), mask)
    line = "".join("_" if i == mask else characters[i] for i in corrupted.tolist()).replace("\n", "⏎")
    places = " ".join(str(i) for i in selected.nonzero().flatten().tolist())
    starts = torch.randint(len(train_ids) - WINDOW - 1, (256,), generator=g)
    rows = train_ids[starts[:, None] + torch.arange(WINDOW)]
    corrupted, selected = corrupt(rows, MaskingDraws.of((256, WINDOW), vocab_size, g), mask)
    found = (
        selected.float().mean().item(),
        (corrupted[selected] == mask).float().mean().item(),
        (corrupted[selected] == rows[selected]).float().mean().item(),
    )
    measurements = []
    if ctx.default_seed:
        measurements += [exact("the line", OPENING, line), exact("positions", "2 4 5 19 53 54", places)]
    for (name, published, expected, second), value in zip(FRACTIONS, found, strict=True):
        if ctx.default_seed:
            measurements.append(exact(name, f"{published:.3f}", f"{value:.3f}"))
        else:
            measurements.append(near(name, expected, value, second, 3))
    return Outcome(measurements)


@experiment(
    "3.15",
    "Low-rank adapters",
    question="How few parameters are enough to change a model?",
    protocol="The GPT of 3.4 with adapters of rank 4 on W_q and W_v of both layers.",
    explanation="A product of two low-rank matrices is added to each frozen projection, and only it is trained. "
    "Merged into the projection it costs nothing; unmerged, the original model is restored bit for bit.",
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
        layers = apply_lora(model, 4, generator=ctx.generator())
        fresh = model(batch)
        for adapter in layers:
            adapter.B.normal_(generator=ctx.generator())
        apart = model(batch)
        for adapter in layers:
            adapter.merge()
        merged = model(batch)
        for adapter in layers:
            adapter.unmerge()
        again = model(batch)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    maps = [name.split(".") for name, part in model.named_modules() if isinstance(part, LoRALinear)]
    adapted = " ".join(f"{layer} {own}" for _, _, layer, _, own in maps)
    measurements = [
        exact("adapted layers and projections", "0 W_q 0 W_v 1 W_q 1 W_v", adapted),
        exact(
            "trained parameters",
            "2,048 of 112,065 (1.8 %)",
            f"{trained:,} of {count:,} ({trained / count:.1%})".replace("%", " %"),
        ),
        at_most("new adapters − base model", 0.0, (fresh - before).abs().max().item(), "equal"),
        at_most("unmerged − merged", 1e-5, (apart - merged).abs().max().item(), "equal to 1e-5"),
        at_most("unmerged again − unmerged", 0.0, (again - apart).abs().max().item()),
        at_least("change by the adapters", 0.01, (apart - before).abs().max().item()),
    ]
    return Outcome(measurements)
