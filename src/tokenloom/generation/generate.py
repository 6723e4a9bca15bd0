"""Generating tokens: prompts of any lengths in one batch, each sample with its own options and random numbers.

Tokens come out as events while they are made, so that a caller can show them, or stop, at any time.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tokenloom.errors import UserError
from tokenloom.generation.prefill import check_budget, check_prompts, prefill
from tokenloom.generation.sampling import NonFiniteLogits, Sampling, Uniforms
from tokenloom.generation.streaming import TextStreamer, TokenStream, check_stops
from tokenloom.models.protocols import State, StepModel, feed_device

Reason = Literal["end", "length", "stop"]


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be generated after one prompt.

    prompt: ids, at least one. samples: how many continuations, all from one reading of the prompt. seed: with the
    number of the sample it decides all random numbers. end: ids that end a sample. stop: strings that end it.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    samples: int = 1
    end: Collection[int] = ()
    stop: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One new token of one sample.

    log_prob: ln p of the token under the model itself, before temperature and the other rules. text: what may be
    shown now; with stop strings or half characters pending it lags behind the ids.
    """

    request: int
    sample: int
    id: int
    log_prob: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """A sample has ended: at an end token (which is no TokenEvent), at the limit, or at a stop string.

    tokens: how many TokenEvents it had. end: the end token. text: the rest of the text.
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
    """One finished sample as a whole. log_probs has one entry a token; the end token is in neither."""

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    text: str
    reason: Reason
    end: int | None = None


def generate(
    model: StepModel, requests: Sequence[Request], text: Callable[[], TokenStream] | None = None
) -> Iterator[Event]:
    """Generate for all requests at once, one event a token as it comes; each sample closes with `Finished`.

    text: makes a fresh stream from ids to text for a sample (a tokenizer's `stream`); stop strings need it, and
    without it events carry no text. A sample gets the same tokens whatever else is in the batch: it shares the model's
    work with the others, and nothing else. Finished samples leave the batch. The model should be in evaluation mode;
    what it computes here has no gradients and must not be kept for training (`torch.inference_mode`).

    Raises UserError at once for an empty prompt or a value out of range, and NonFiniteLogits on the way, with the
    number of the new token, when the model breaks down.
    """
    prompts = check_prompts([request.prompt for request in requests])
    for request in requests:
        _check(request, text is not None)
    samples = [
        _Sample(number, index, request, text)
        for number, request in enumerate(requests)
        for index in range(request.samples)
    ]
    return _run(model, prompts, samples)


def generate_all(
    model: StepModel, requests: Sequence[Request], text: Callable[[], TokenStream] | None = None
) -> list[list[Generation]]:
    """Generate to the end: the samples of each request, in order. See `generate`."""
    tokens: dict[tuple[int, int], list[TokenEvent]] = {}
    ends: dict[tuple[int, int], Finished] = {}
    for event in generate(model, requests, text):
        if isinstance(event, TokenEvent):
            tokens.setdefault((event.request, event.sample), []).append(event)
        else:
            ends[event.request, event.sample] = event
    return [
        [_whole(tokens.get((number, index), []), ends[number, index]) for index in range(request.samples)]
        for number, request in enumerate(requests)
    ]


def _whole(tokens: Sequence[TokenEvent], end: Finished) -> Generation:
    return Generation(
        tuple(event.id for event in tokens),
        tuple(event.log_prob for event in tokens),
        "".join(event.text for event in tokens) + end.text,
        end.reason,
        end.end,
    )


def _check(request: Request, has_text: bool) -> None:
    """Raises UserError for what cannot be generated."""
    check_budget(request.max_new_tokens)
    if request.samples < 1:
        raise UserError(f"{request.samples} samples cannot be made: give 1 or more (--samples)")
    if check_stops(request.stop) and not has_text:
        raise ValueError("stop strings need `text`: a function that makes a stream from ids to text")


def sample_generator(seed: int, sample: int) -> torch.Generator:
    """The random numbers of one sample: a function of the request's seed and the sample's number alone."""
    digest = hashlib.blake2b(f"{seed}:{sample}".encode(), digest_size=8).digest()
    # The CPU generator looks at the low 32 bits only.
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


class _Sample:
    """One row on its way: what it may still do, and its text."""

    def __init__(self, number: int, index: int, request: Request, text: Callable[[], TokenStream] | None) -> None:
        self.number, self.index, self.request = number, index, request
        self.end = frozenset(request.end)
        self.tokens = 0
        self.text = None if text is None else TextStreamer(text(), request.stop)
        self.uniforms = Uniforms(sample_generator(request.seed, index))

    def take(self, token: int, log_prob: float) -> tuple[TokenEvent | None, Finished | None]:
        """What the next token means: an event for it, the end of the sample, or both."""
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
        """The closing event. The text left over may hold a stop string of its own."""
        rest = "" if self.text is None else self.text.finish()
        if self.text is not None and self.text.stopped:
            reason, end = "stop", None
        return Finished(self.number, self.index, reason, self.tokens, end, rest)


def _run(model: StepModel, prompts: Sequence[tuple[int, ...]], samples: Sequence[_Sample]) -> Iterator[Event]:
    active: list[_Sample] = []
    for sample in samples:
        if sample.request.max_new_tokens == 0:
            yield sample.finish("length")
        else:
            active.append(sample)
    if not active:
        return
    batch = _Batch(model, prompts, active)
    tokens, log_probs = batch.choose()
    step = 0
    while True:
        step += 1
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
        if len(staying) < len(active):
            active = [active[row] for row in staying]
            batch.keep(staying, active)
        tokens, log_probs = batch.feed()


class _Batch:
    """The tensors of the rows that still generate: row r belongs to the r-th active sample.

    Gradients are switched off method by method, never around a `yield`, where it would act on the caller's code.
    """

    @torch.inference_mode()
    def __init__(self, model: StepModel, prompts: Sequence[tuple[int, ...]], active: Sequence[_Sample]) -> None:
        self.model = model
        self.device = feed_device(model)
        used = sorted({sample.number for sample in active})
        self.state: State
        self.log_probs, self.state = prefill(model, [prompts[number] for number in used], used)
        self._spread([used.index(sample.number) for sample in active])
        self.seen: Tensor | None = None
        if any(sample.request.sampling.penalizes for sample in active):
            self.seen = torch.zeros(len(active), model.vocab_size, dtype=torch.bool)
            for row, sample in enumerate(active):
                known = [token for token in set(prompts[sample.number]) if token < model.vocab_size]
                self.seen[row, known] = True
            self.seen = self.seen.to(self.device)
        self.tokens: Tensor
        self._group(active)

    def _spread(self, owners: list[int]) -> None:
        """Turn a row a prompt into a row a sample, from the one reading."""
        prompts = len(self.log_probs)
        if len(owners) == prompts:
            return
        each = len(owners) // prompts
        rows = torch.tensor(owners, device=self.device)
        even = owners == [prompt for prompt in range(prompts) for _ in range(each)]
        self.state = self.state.repeat(each) if even else self.state.select(rows)
        self.log_probs = self.log_probs[rows]

    def _group(self, active: Sequence[_Sample]) -> None:
        """Rows with the same options are chosen for together."""
        groups: dict[Sampling, list[int]] = {}
        for row, sample in enumerate(active):
            groups.setdefault(sample.request.sampling, []).append(row)
        self.groups = [(sampling, rows, [active[row].uniforms for row in rows]) for sampling, rows in groups.items()]

    @torch.inference_mode()
    def choose(self) -> tuple[list[int], list[float]]:
        """Choose the next token of each row; ids and log-probabilities on the host."""
        return self._choose()

    def _choose(self) -> tuple[list[int], list[float]]:
        if len(self.groups) == 1:
            sampling, _, generators = self.groups[0]
            ids, values = sampling.choose(self.log_probs, generators, self.seen)
        else:
            ids, values = self._choose_by_group()
        # From an array: without a look at the type of each number.
        self.tokens = torch.from_numpy(np.array(ids, dtype=np.int64)[:, None]).to(self.device)
        if self.seen is not None:
            self.seen.scatter_(1, self.tokens, True)
        return ids, values

    def _choose_by_group(self) -> tuple[list[int], list[float]]:
        found: dict[int, tuple[int, float]] = {}
        for sampling, rows, generators in self.groups:
            seen = None if self.seen is None else self.seen[rows]
            ids, values = sampling.choose(self.log_probs[rows], generators, seen)
            found.update(zip(rows, zip(ids, values, strict=True), strict=True))
        in_order = [found[row] for row in range(len(found))]
        return [token for token, _ in in_order], [value for _, value in in_order]

    @torch.inference_mode()
    def keep(self, rows: list[int], active: Sequence[_Sample]) -> None:
        """Drop all rows but these."""
        index = torch.tensor(rows, device=self.device)
        self.state = self.state.select(index)
        self.tokens = self.tokens[index]
        if self.seen is not None:
            self.seen = self.seen[index]
        self._group(active)

    @torch.inference_mode()
    def feed(self) -> tuple[list[int], list[float]]:
        """Give the chosen tokens to the model, and choose the next ones."""
        log_probs, self.state = self.model.step(self.tokens, self.state)
        self.log_probs = log_probs[:, -1]
        return self._choose()
