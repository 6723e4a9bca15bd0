"""Going on with text: what every task offers whose model predicts the next token of a text."""

from __future__ import annotations

import sys
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tokenloom.config import Options, build, option, refuse_unknown
from tokenloom.data.documents import TextData
from tokenloom.data.unicode import Unreadable, decode, fold_newlines
from tokenloom.errors import UserError
from tokenloom.generation.beam_search import BeamOptions, beam_search
from tokenloom.generation.generate import Request, generate
from tokenloom.generation.sampling import Sampling
from tokenloom.generation.score import Score, score
from tokenloom.generation.streaming import TextStreamer
from tokenloom.models.protocols import StepModel
from tokenloom.tasks.base import Show, Task
from tokenloom.tokenizers.base import END, UNKNOWN, Ids, TextTokenizer, quote_list, utf8_length

EXAMPLE_TOKENS = 300


@dataclass(frozen=True)
class GenerateOptions(Options):
    """How text is continued."""

    prompt: str | None = option(None, "text to continue; - reads it from standard input")
    max_new_tokens: int = option(500, "stop after this many new tokens")
    temperature: float = option(
        0.8, "below 1 bolder for likely tokens, above 1 for unlikely ones; 0 takes the likeliest"
    )
    top_k: int | None = option(None, "choose among the k likeliest tokens only")
    top_p: float | None = option(None, "choose among the likeliest tokens that together reach this probability")
    min_p: float | None = option(None, "drop tokens less likely than this share of the likeliest")
    repetition_penalty: float = option(1.0, "above 1: tokens that occurred become less likely")
    beam: int = option(1, "beam search of this width instead of sampling")
    length_penalty: float = option(0.0, "beam search: divide log-probabilities by length to this power")
    samples: int = option(1, "continuations from one prompt")
    seed: int = option(0, "seed of the draws")
    stop: list[str] = option([], "stop before this text appears; may be given more than once")

    def check(self) -> None:
        for name in ("beam", "samples"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)}: must be at least 1")
        if not 0 <= self.length_penalty <= 10:
            raise UserError(f"--length-penalty {self.length_penalty}: must be from 0 to 10")
        drawing = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "samples")
        idle = drawing if self.beam > 1 else ("length_penalty",)
        for name in idle:
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                with_or_without = "with" if self.beam > 1 else "without"
                raise UserError(f"--{name.replace('_', '-')} has no effect {with_or_without} --beam: leave it out")


@dataclass(frozen=True)
class ScoreOptions(Options):
    """A given continuation to be scored."""

    prompt: str | None = option(None, "text that comes before")
    continuation: str = option("", "text whose probability is asked for")


class TextDecoderTask(Task):
    """A task whose model is a `StepModel` over the ids of a text tokenizer."""

    uses: ClassVar[Mapping[str, type]] = {"generate": GenerateOptions, "score": ScoreOptions}

    @property
    @abstractmethod
    def tokenizer(self) -> TextTokenizer:
        """Between text and ids."""

    def as_read(self, text: str) -> str:
        """A text of the user's, as the reader of the training text would have given it."""
        return fold_newlines(text)

    def encode_documents(self, text: TextData) -> NDArray[Any]:
        """All documents of a text as one run of ids; with borders, an end token before, between and after them."""
        for document in text.documents:
            self.refuse_unseen(document.text, document.id)
        ids = self.tokenizer.encode_batch([document.text for document in text.documents])
        end = self.tokenizer.specials.get(END)
        wide = np.uint16 if self.tokenizer.vocab_size <= 1 << 16 else np.int32
        if end is None:
            return np.concatenate(ids).astype(wide)
        border = np.array([end], dtype=np.int64)
        return np.concatenate([border, *(part for one in ids for part in (one, border))]).astype(wide)

    # From a prompt to ids.

    def refuse_unseen(self, text: str, where: str) -> None:
        """Raise UserError, naming them, for characters that the model has never seen. where: whose text it is."""
        try:
            utf8_length(text)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        if UNKNOWN not in self.tokenizer.specials and (unseen := self.tokenizer.unseen(text)):
            raise UserError(
                f"{where}: the model has never seen {quote_list(unseen, 'character')}; leave out what it does"
                " not know, or train with --tokenizer byte-bpe, which takes any text"
            )

    def encode(self, text: str, where: str) -> tuple[Ids, list[str]]:
        """The ids of a text of the user's, and what there is to say about it. Raises as `refuse_unseen`."""
        text = self.as_read(text)
        self.refuse_unseen(text, where)
        unknown = self.tokenizer.unseen(text)
        notes = [f"{where}: the model does not know {quote_list(unknown, 'word')}"] if unknown else []
        return self.tokenizer.encode(text), notes

    def prompt_ids(self, prompt: str | None) -> tuple[list[int], list[str]]:
        """The ids to start from, and what there is to say about them.

        No prompt, or an empty one, starts from the end token, as a document does. A model without one starts from a
        line break when there is no prompt, and an empty prompt is refused. Of a prompt longer than the context the
        last part stays.
        """
        if not prompt:
            end = self.tokenizer.specials.get(END)
            if end is not None:
                return [end], []
            if prompt is None and not self.tokenizer.unseen("\n"):
                return [int(i) for i in self.tokenizer.encode("\n")], []
            raise UserError(
                "--prompt: this model, trained on one text without borders, cannot start from nothing; give it some"
                " text to continue"
            )
        encoded, notes = self.encode(prompt, "--prompt")
        ids = [int(i) for i in encoded]
        context = self._steps(self.model).context
        if context is not None and len(ids) > context:
            notes.append(f"--prompt: has {len(ids):,} tokens; the model sees the last {context:,}")
            ids = ids[-context:]
        return ids, notes

    def _start(self, prompt: str | None) -> list[int]:
        """`prompt_ids`, with what there is to say as Python warnings."""
        if prompt is not None and not isinstance(prompt, str):
            raise UserError(f"a prompt is a text, not {type(prompt).__name__}; generate_all takes a list of prompts")
        ids, notes = self.prompt_ids(prompt)
        for note in notes:
            warnings.warn(note, stacklevel=3)
        return ids

    # Use from Python.

    def stream(self, prompt: str | None = None, **options: Any) -> Iterator[str]:
        """The continuation of a prompt, in pieces as they come. options: as in `GenerateOptions`.

        Raises UserError at once for what cannot be used.
        """
        given = self._options(options)
        if given.beam != 1 or given.samples != 1:
            raise UserError("a stream is one sample: --beam and --samples give whole texts only")
        return self._stream(self._start(prompt), given)

    def generate(self, prompt: str | None = None, **options: Any) -> str:
        """The continuation of a prompt as one text. options: as in `GenerateOptions`, with samples = 1."""
        given = self._options(options)
        if given.samples != 1:
            raise UserError("generate gives one text: generate_all gives several samples")
        return self._continue([self._start(prompt)], given)[0][0]

    def generate_all(self, prompts: Sequence[str | None], **options: Any) -> list[list[str]]:
        """Continuations of several prompts in one batch, `samples` each: the same as each prompt gets alone."""
        given = self._options(options)
        return self._continue([self._start(prompt) for prompt in prompts], given)

    def score(self, prompt: str | None, continuation: str) -> Score:
        """The log-probability of each token of a given continuation after a prompt."""
        return self._score(self._start(prompt), continuation)[0]

    def example(self) -> str:
        try:
            ids = self.prompt_ids(None)[0]
        except UserError:
            return ""
        return "".join(self._stream(ids, GenerateOptions(max_new_tokens=EXAMPLE_TOKENS)))

    # How it is done.

    def _options(self, options: Mapping[str, Any]) -> GenerateOptions:
        refuse_unknown(options, [GenerateOptions])
        if isinstance(options.get("stop"), str):
            options = {**options, "stop": [options["stop"]]}
        given = build(GenerateOptions, options)
        return replace(given, stop=[self.as_read(stop) for stop in given.stop])

    @staticmethod
    def _steps(model: nn.Module) -> StepModel:
        return cast(StepModel, model)

    def _stream(self, ids: list[int], given: GenerateOptions) -> Iterator[str]:
        with self.ready() as model:
            for event in generate(self._steps(model), [self._request(ids, given)], self.tokenizer.stream):
                if event.text:
                    yield event.text

    def _continue(self, starts: Sequence[list[int]], given: GenerateOptions) -> list[list[str]]:
        texts = [[""] * given.samples for _ in starts]
        with self.ready() as model:
            if given.beam > 1:
                return [[text] for text in self._beam(self._steps(model), starts, given)]
            requests = [self._request(ids, given) for ids in starts]
            for event in generate(self._steps(model), requests, self.tokenizer.stream):
                texts[event.request][event.sample] += event.text
        return texts

    def _request(self, ids: list[int], o: GenerateOptions) -> Request:
        sampling = Sampling(o.temperature, o.top_k, o.top_p, o.min_p, o.repetition_penalty)
        return Request(ids, o.max_new_tokens, sampling, o.seed, o.samples, self._ends(), tuple(o.stop))

    def _ends(self) -> tuple[int, ...]:
        end = self.tokenizer.specials.get(END)
        return () if end is None else (end,)

    def _beam(self, model: StepModel, starts: Sequence[list[int]], o: GenerateOptions) -> list[str]:
        options = BeamOptions(o.beam, o.max_new_tokens, end=self._ends(), length_penalty=o.length_penalty)
        texts = []
        for best, *_ in beam_search(model, starts, options):
            streamer = TextStreamer(self.tokenizer.stream(), tuple(o.stop))
            texts.append("".join([*map(streamer.push, best.ids), streamer.finish()]))
        return texts

    def _score(self, start: list[int], continuation: str) -> tuple[Score, list[str]]:
        ids, notes = self.encode(continuation, "--continuation")
        with self.ready() as model:
            return score(self._steps(model), start, [int(i) for i in ids]), notes

    # Use from the command line.

    def use(self, verb: str, options: Any, show: Show) -> dict[str, Any]:
        return self._use_score(options, show) if verb == "score" else self._use_generate(options, show)

    def _use_score(self, o: ScoreOptions, show: Show) -> dict[str, Any]:
        if not o.continuation:
            raise UserError("--continuation: give the text whose probability is asked for")
        start, notes = self.prompt_ids(o.prompt)
        scored, more = self._score(start, o.continuation)
        tokens = len(scored.log_probs)
        show(f"{scored.total:.4f} nats in all, {scored.average:.4f} a token over {tokens:,} tokens\n")
        result = {"total": scored.total, "average": scored.average, "log_probs": list(scored.log_probs)}
        return {**result, "prompt": o.prompt, "continuation": o.continuation, "notes": [*notes, *more]}

    def _use_generate(self, o: GenerateOptions, show: Show) -> dict[str, Any]:
        prompt = _standard_input() if o.prompt == "-" else o.prompt
        ids, notes = self.prompt_ids(prompt)
        given = self._options({k: v for k, v in asdict(o).items() if k != "prompt"})
        if given.beam == 1 and given.samples == 1:
            show(prompt or "")
            pieces = []
            for piece in self._stream(ids, given):
                pieces.append(piece)
                show(piece)
            texts = ["".join(pieces)]
        else:
            texts = self._continue([ids], given)[0]
            show(f"\n{'-' * 40}\n".join((prompt or "") + text for text in texts))
        show("\n")
        return {"text": texts[0], "texts": texts, "prompt": prompt, "notes": notes}


def _standard_input() -> str:
    try:
        return decode(sys.stdin.buffer.read(), newlines="keep")
    except Unreadable as error:
        raise UserError(f"--prompt -: standard input: {error}") from None
