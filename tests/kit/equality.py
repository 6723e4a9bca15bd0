"""Two paths that should agree, compared: each function runs both and returns the largest difference it met.

They take any model of the decoder kind: `model(batch, hooks=…)` gives logits (B, N, vocab) for the stream "text", and
`start` and `step` (`tokenloom.models.protocols.StepModel`) feed it chunk by chunk. Rows are 1-D tensors of ids, of
any length at least 1. Put the model into evaluation mode, and into float64 where equality is meant.
"""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from tokenloom.models.batch import Batch, Stream, pad
from tokenloom.nn.hooks import Hooks


def text(ids: Tensor, **more: Tensor) -> Batch:
    """A batch of one stream of ids (B, N)."""
    return Batch({"text": Stream(ids=ids, **more)})


@torch.no_grad()
def uncached(model, row: Tensor) -> Tensor:
    """Log-probabilities (N, vocab) of the token after each token of a row, without any state.

    Each is what the model says of the last `context` ids alone: one pass over the opening of the row, and then a
    pass for each token after it.
    """
    C = len(row) if model.context is None else model.context
    opening = model(text(row[None, :C]))[0]
    if len(row) > C:
        windows = row[1:].unfold(0, C, 1)
        opening = torch.cat((opening, model(text(windows))[:, -1]))
    return opening.log_softmax(-1)


@torch.no_grad()
def cached(model, rows: Sequence[Tensor], *, largest: int, seed: int = 0) -> list[Tensor]:
    """The same for all rows at once, through `step`: each row in chunks of 1 … largest tokens, cut at random.

    What pads a shorter chunk are random ids: a model that looks at them is found out.
    """
    chance = random.Random(seed)
    noise = torch.Generator().manual_seed(seed)
    state = model.init_state(len(rows))
    alive = list(range(len(rows)))
    read = [0] * len(rows)
    results: list[list[Tensor]] = [[] for _ in rows]
    while alive:
        counts = [min(chance.randint(1, largest), len(rows[b]) - read[b]) for b in alive]
        N = max(counts)
        tokens = torch.randint(model.vocab_size, (len(alive), N), generator=noise)
        for place, (b, count) in enumerate(zip(alive, counts, strict=True)):
            tokens[place, :count] = rows[b][read[b] : read[b] + count]
        given = None if min(counts) == N and chance.random() < 0.5 else torch.tensor(counts)
        log_probs, state = model.step(tokens, state, given)
        for place, (b, count) in enumerate(zip(alive, counts, strict=True)):
            results[b].append(log_probs[place, :count])
            read[b] += count
        assert state.lengths.tolist() == [read[b] for b in alive]
        staying = [place for place, b in enumerate(alive) if read[b] < len(rows[b])]
        if len(staying) < len(alive):
            state = state.select(torch.tensor(staying, dtype=torch.int64))
            alive = [alive[place] for place in staying]
    return [torch.cat(parts) for parts in results]


def cached_vs_uncached(model, rows: Sequence[Tensor], *, largest: int = 1, seed: int = 0) -> float:
    """cached = uncached: chunks of up to `largest` tokens against passes without a state."""
    steps = cached(model, rows, largest=largest, seed=seed)
    return max(_apart(step, uncached(model, row)) for step, row in zip(steps, rows, strict=True))


@torch.no_grad()
def batch_vs_single(model, ids: Tensor) -> float:
    """batch = single: rows (B, N) together against each alone."""
    together = model(text(ids))
    return max(_apart(together[b], model(text(row[None]))[0]) for b, row in enumerate(ids))


@torch.no_grad()
def padded_vs_unpadded(model, rows: Sequence[Tensor], *, side: str) -> float:
    """padded = unpadded: rows filled up on the "left" or "right" and masked, against each alone."""
    ids, real = pad(list(rows), left={"left": True, "right": False}[side])
    logits = model(text(ids, real=real))
    assert torch.isfinite(logits).all(), "padding is not to make anything that is not a number"
    return max(_apart(logits[b][real[b]], model(text(row[None]))[0]) for b, row in enumerate(rows))


@torch.no_grad()
def packed_vs_alone(model, documents: Sequence[Tensor]) -> float:
    """packed = alone: documents one after the other in a row, kept apart by segments and positions."""
    ids = torch.cat(list(documents))[None]
    positions = torch.cat([torch.arange(len(document)) for document in documents])[None]
    segments = torch.cat([torch.full((len(document),), n) for n, document in enumerate(documents)])[None]
    logits = model(text(ids, positions=positions, segments=segments))[0]
    parts = logits.split([len(document) for document in documents])
    return max(_apart(part, model(text(document[None]))[0]) for part, document in zip(parts, documents, strict=True))


def fused_vs_explicit(model, batch: Batch) -> float:
    """fused = explicit, in the logits and in the gradient of every parameter: asking for patterns takes that road."""
    results = []
    for hooks in (None, Hooks("*.pattern")):
        model.zero_grad()
        logits = model(batch, hooks=hooks)
        logits.square().mean().backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        results.append([logits.detach(), *gradients])
        assert hooks is None or hooks.values, "this model shows no attention pattern"
    model.zero_grad()
    return max(_apart(a, b) for a, b in zip(*results, strict=True))


def _apart(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape, f"{tuple(a.shape)} against {tuple(b.shape)}"
    # A difference that is not a number must not pass for a small one.
    return float((a - b).abs().nan_to_num(nan=torch.inf).max())
