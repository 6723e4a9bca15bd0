"""Generation: prompts of any lengths in one batch, each sample with its own options and random numbers.

Tokens are yielded as events while they are generated, so that a caller can show them or stop at any time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tokenloom.config import flag
from tokenloom.errors import UserError
from tokenloom.generation.prefill import check_max_new_tokens, check_prompts, prefill
from tokenloom.generation.sampling import NonFiniteLogits, Sampling, Uniforms
from tokenloom.generation.streaming import TextStreamer, TokenStream, check_stops
from tokenloom.models.protocols import State, StepModel, feed_device

Reason = Literal["end", "length", "stop"]


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate after one prompt.

    prompt: ids, at least one. num_samples: continuations, all from one prefill of the prompt. seed: with the sample's
    index it determines all random numbers. end: ids that end a sample. stop: strings that end it.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    num_samples: int = 1
    end: Collection[int] = ()
    stop: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One new token of one sample.

    log_prob: ln p of the token under the model itself, before temperature and the other rules. text: text that is
    final now; it lags behind the ids while a stop string or a multi-byte character is pending.
    """

    request: int
    sample: int
    id: int
    log_prob: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a sample: at an end token (which is no TokenEvent), at the limit, or at a stop string.

    tokens: its number of TokenEvents. end: the end token. text: the rest of the text.
    """

    request: int
    sample: int
    reason: Reason
    tokens: int
    end: int | None = None
    text: str = ""


Event = TokenEvent | Finished


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished sample. log_probs: one per token; the end token is in neither."""

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    text: str
    reason: Reason
    end: int | None = None


def generate(
    model: StepModel, requests: Sequence[Request], text: Callable[[], TokenStream] | None = None
) -> Iterator[Event]:
    """Generate for all requests in one batch; yield one event per token, and `Finished` for each sample.

    text: returns a new stream from ids to text (a tokenizer's `stream`); needed for stop strings, and without it events
    have no text. A sample gets the same tokens whatever else is in the batch. The model should be in evaluation mode;
    nothing computed here has gradients (`torch.inference_mode`).

    Raises UserError at once for an empty prompt or a value out of range, and NonFiniteLogits, with the number of the
    new token, when the model's outputs are not finite.
    """
    prompts = check_prompts([request.prompt for request in requests])
    for request in requests:
        check_max_new_tokens(request.max_new_tokens)
        if request.num_samples < 1:
            raise UserError(f"{flag('num_samples')} {request.num_samples}: must be at least 1")
        if check_stops(request.stop) and text is None:
            raise ValueError("stop strings need `text`: a function that returns a stream from ids to text")
    samples = [
        _Sample(number, index, request, text)
        for number, request in enumerate(requests)
        for index in range(request.num_samples)
    ]
    return _generate(model, prompts, samples)


def _generate(model: StepModel, prompts: Sequence[tuple[int, ...]], samples: Sequence[_Sample]) -> Iterator[Event]:
    active: list[_Sample] = []
    for sample in samples:
        if sample.request.max_new_tokens == 0:
            yield sample.finish("length")
        else:
            active.append(sample)
    if not active:
        return

    # 1. Prefill: feed each prompt once, and repeat its state for its samples.
    batch = _Batch(model, prompts, active)
    step = 0
    while True:
        # 2. Choose the next token of each row: logits processors, then greedy or a random draw.
        tokens, log_probs = batch.choose()
        step += 1

        # 3. Emit the tokens as text, and look for end tokens, stop strings and the length limit.
        staying: list[int] = []
        for row, (sample, token, log_prob) in enumerate(zip(active, tokens, log_probs, strict=True)):
            if not math.isfinite(log_prob):
                which = f", request {sample.number + 1}, sample {sample.index + 1}"
                raise NonFiniteLogits(step, batch.device, which)
            event, finished = sample.take(token, log_prob)
            if event is not None:
                yield event
            if finished is None:
                staying.append(row)
            else:
                yield finished
        if not staying:
            return

        # 4. Remove finished rows from the batch.
        if len(staying) < len(active):
            active = [active[row] for row in staying]
            batch.select(staying, active)

        # 5. Decode step: feed the chosen tokens to the model.
        batch.feed()


def generate_all(
    model: StepModel, requests: Sequence[Request], text: Callable[[], TokenStream] | None = None
) -> list[list[Generation]]:
    """Generate to the end; return the samples of each request, in order. See `generate`."""
    tokens: dict[tuple[int, int], list[TokenEvent]] = {}
    ends: dict[tuple[int, int], Finished] = {}
    for event in generate(model, requests, text):
        if isinstance(event, TokenEvent):
            tokens.setdefault((event.request, event.sample), []).append(event)
        else:
            ends[event.request, event.sample] = event

    def generation(key: tuple[int, int]) -> Generation:
        events, end = tokens.get(key, []), ends[key]
        ids, log_probs = tuple(event.id for event in events), tuple(event.log_prob for event in events)
        return Generation(ids, log_probs, "".join(event.text for event in events) + end.text, end.reason, end.end)

    return [
        [generation((number, index)) for index in range(request.num_samples)] for number, request in enumerate(requests)
    ]


def sample_generator(seed: int, sample: int) -> torch.Generator:
    """Return the random numbers of one sample, a function of the request's seed and the sample's index alone."""
    digest = hashlib.blake2b(f"{seed}:{sample}".encode(), digest_size=8).digest()
    # The CPU generator uses the low 32 bits only.
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


class _Sample:
    """One sample: its limits and its text."""

    def __init__(self, number: int, index: int, request: Request, text: Callable[[], TokenStream] | None) -> None:
        self.number, self.index, self.request = number, index, request
        self.end = frozenset(request.end)
        self.tokens = 0
        self.text = None if text is None else TextStreamer(text(), request.stop)
        self.uniforms = Uniforms(sample_generator(request.seed, index))

    def take(self, token: int, log_prob: float) -> tuple[TokenEvent | None, Finished | None]:
        """Return the event of the next token, the end of the sample, or both."""
        if token in self.end:
            return None, self.finish("end", token)
        self.tokens += 1
        text = "" if self.text is None else self.text.push(token)
        event = TokenEvent(self.number, self.index, token, log_prob, text)
        if self.text is not None and self.text.stopped:
            return event, self.finish("stop")
        if self.tokens >= self.request.max_new_tokens:
            return event, self.finish("length")
        return event, None

    def finish(self, reason: Reason, end: int | None = None) -> Finished:
        """Return the closing event. The rest of the text may contain a stop string."""
        rest = "" if self.text is None else self.text.finish()
        if self.text is not None and self.text.stopped:
            reason, end = "stop", None
        return Finished(self.number, self.index, reason, self.tokens, end, rest)


class _Batch:
    """The tensors of the active samples, one row each.

    Each method switches gradients off; around a `yield` this would act on the caller's code.
    """

    @torch.inference_mode()
    def __init__(self, model: StepModel, prompts: Sequence[tuple[int, ...]], active: Sequence[_Sample]) -> None:
        self.model = model
        self.device = feed_device(model)
        used = sorted({sample.number for sample in active})
        self.state: State
        self.log_probs, self.state = prefill(model, [prompts[number] for number in used], used)
        self._repeat([used.index(sample.number) for sample in active])
        self.seen: Tensor | None = None
        if any(sample.request.sampling.penalizes for sample in active):
            self.seen = torch.zeros(len(active), model.vocab_size, dtype=torch.bool)
            for row, sample in enumerate(active):
                known = [token for token in set(prompts[sample.number]) if token < model.vocab_size]
                self.seen[row, known] = True
            self.seen = self.seen.to(self.device)
        self.tokens: Tensor
        self._group(active)

    def _repeat(self, owners: list[int]) -> None:
        """Turn one row per prompt into one row per sample. owners: the prompt of each sample."""
        prompts = len(self.log_probs)
        if len(owners) == prompts:
            return
        n = len(owners) // prompts
        rows = torch.tensor(owners, device=self.device)
        even = owners == [prompt for prompt in range(prompts) for _ in range(n)]
        self.state = self.state.repeat(n) if even else self.state.select(rows)
        self.log_probs = self.log_probs[rows]

    def _group(self, active: Sequence[_Sample]) -> None:
        """Group rows with equal options, which are sampled together."""
        groups: dict[Sampling, list[int]] = {}
        for row, sample in enumerate(active):
            groups.setdefault(sample.request.sampling, []).append(row)
        self.groups = [(sampling, rows, [active[row].uniforms for row in rows]) for sampling, rows in groups.items()]

    @torch.inference_mode()
    def choose(self) -> tuple[list[int], list[float]]:
        """Choose the next token of each row; return ids and log-probabilities on the host."""
        if len(self.groups) == 1:
            sampling, _, generators = self.groups[0]
            ids, values = sampling.choose(self.log_probs, generators, self.seen)
        else:
            chosen: dict[int, tuple[int, float]] = {}
            for sampling, rows, generators in self.groups:
                seen = None if self.seen is None else self.seen[rows]
                group_ids, group_values = sampling.choose(self.log_probs[rows], generators, seen)
                chosen.update(zip(rows, zip(group_ids, group_values, strict=True), strict=True))
            ids, values = [chosen[row][0] for row in range(len(chosen))], [chosen[row][1] for row in range(len(chosen))]
        # From an array, which is faster than from a list.
        self.tokens = torch.from_numpy(np.array(ids, dtype=np.int64)[:, None]).to(self.device)  # (B, 1)
        if self.seen is not None:
            self.seen.scatter_(1, self.tokens, True)
        return ids, values

    @torch.inference_mode()
    def select(self, rows: list[int], active: Sequence[_Sample]) -> None:
        """Keep these rows only."""
        index = torch.tensor(rows, device=self.device)
        self.state = self.state.select(index)
        self.tokens = self.tokens[index]
        if self.seen is not None:
            self.seen = self.seen[index]
        self._group(active)

    @torch.inference_mode()
    def feed(self) -> None:
        """Feed the chosen tokens to the model."""
        log_probs, self.state = self.model.step(self.tokens, self.state)
        self.log_probs = log_probs[:, -1]  # (B, 1, vocab) → (B, vocab)
