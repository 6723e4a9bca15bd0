"""Generating and scoring text: what a task offers whose model predicts the next token of a text."""

from __future__ import annotations

import sys
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from torch import nn

from tokenloom.config import Options, build, option, refuse_unknown
from tokenloom.data.unicode import Unreadable, decode, fold_newlines
from tokenloom.errors import UserError
from tokenloom.generation.beam_search import BeamOptions, beam_search
from tokenloom.generation.generate import Request, generate
from tokenloom.generation.sampling import Sampling
from tokenloom.generation.score import Score, score
from tokenloom.generation.streaming import TextStreamer
from tokenloom.models.protocols import StepModel
from tokenloom.nn.modules import eval_mode
from tokenloom.tasks._text_corpus import refuse_unseen
from tokenloom.tasks.base import Show, Task, action
from tokenloom.tokenizers.base import END, Ids, TextTokenizer, quote_list

# Length of the example that is shown after training.
EXAMPLE_TOKENS = 300
SAMPLING = {"num_beams": 1}


@dataclass(frozen=True)
class GenerateOptions(Options):
    """How text is generated."""

    prompt: str | None = option(None, "text to continue; - reads it from standard input")
    max_new_tokens: int = option(500, "maximum number of new tokens", low=0)
    num_beams: int = option(1, "width of beam search; 1 samples instead", low=1)
    temperature: float = option(
        0.8, "sampling temperature; lower is more deterministic, 0 is greedy", low=0, only=SAMPLING
    )
    top_k: int | None = option(None, "sample from the k most likely tokens only; 0 is no limit", low=0, only=SAMPLING)
    top_p: float | None = option(
        None, "sample from the most likely tokens that together have this probability", low=0, high=1, only=SAMPLING
    )
    min_p: float | None = option(
        None, "drop tokens less likely than this fraction of the most likely one", low=0, high=1, only=SAMPLING
    )
    repetition_penalty: float = option(1.0, "above 1: tokens that occurred become less likely", low=1, only=SAMPLING)
    num_samples: int = option(1, "number of texts for the prompt", low=1, only=SAMPLING)
    length_penalty: float = option(0.0, "beam search: divide log-probabilities by length to this power", low=0, high=10)
    seed: int = option(0, "random seed")
    stop: list[str] = option([], "stop before this text; may be given more than once")

    def check(self) -> None:
        """Refuse a length penalty without beam search."""
        super().check()
        if self.length_penalty != 0 and self.num_beams == 1:
            raise UserError("--length-penalty has no effect with --num-beams 1: leave it out")


@dataclass(frozen=True)
class ScoreOptions(Options):
    """Which text is scored."""

    prompt: str | None = option(None, "text before the continuation")
    continuation: str = option("", "text whose log-probability is computed")


class TextDecoderTask(Task):
    """A task whose model is a `StepModel` over the ids of a text tokenizer."""

    @property
    @abstractmethod
    def tokenizer(self) -> TextTokenizer:
        """Return the tokenizer."""

    def normalize(self, text: str) -> str:
        """Return a text of the user's as the reader of the training text would have read it."""
        return fold_newlines(text)

    # From a prompt to ids.

    def encode(self, text: str, where: str) -> tuple[Ids, list[str]]:
        """Return the ids of a text of the user's, and notes on it. Raise as `refuse_unseen`."""
        text = self.normalize(text)
        refuse_unseen(self.tokenizer, text, where)
        unknown = self.tokenizer.unseen(text)
        notes = [f"{where}: the model does not know {quote_list(unknown, 'word')}"] if unknown else []
        return self.tokenizer.encode(text), notes

    def prompt_ids(self, prompt: str | None) -> tuple[list[int], list[str]]:
        """Return the ids to start from, and notes on them.

        Without a prompt, or with an empty one, generation starts from the end token, as a document does. A model
        without one starts from a line feed when there is no prompt, and refuses an empty one. Of a prompt longer than
        the context the last part is used.
        """
        if not prompt:
            end = self.tokenizer.specials.get(END)
            if end is not None:
                return [end], []
            if prompt is None and not self.tokenizer.unseen("\n"):
                return [int(i) for i in self.tokenizer.encode("\n")], []
            raise UserError("--prompt: this model, trained without document borders, needs some text to continue")
        encoded, notes = self.encode(prompt, "--prompt")
        ids = [int(i) for i in encoded]
        context = self._steps(self.model).context
        if context is not None and len(ids) > context:
            notes.append(f"--prompt: has {len(ids):,} tokens; the model sees the last {context:,}")
            ids = ids[-context:]
        return ids, notes

    def _start(self, prompt: str | None) -> list[int]:
        """Return `prompt_ids`, with the notes as Python warnings."""
        if prompt is not None and not isinstance(prompt, str):
            raise UserError(f"a prompt is a text, not {type(prompt).__name__}; generate_all takes a list of prompts")
        ids, notes = self.prompt_ids(prompt)
        for note in notes:
            warnings.warn(note, stacklevel=3)
        return ids

    # Use from Python.

    def stream(self, prompt: str | None = None, **options: Any) -> Iterator[str]:
        """Return the continuation of a prompt in pieces, as they are generated. options: as in `GenerateOptions`.

        Raise UserError at once for what cannot be used.
        """
        given = self._options(options)
        if given.num_beams != 1 or given.num_samples != 1:
            raise UserError("a stream is one sample: --num-beams and --num-samples give whole texts only")
        return self._stream(self._start(prompt), given)

    def generate(self, prompt: str | None = None, **options: Any) -> str:
        """Return the continuation of a prompt. options: as in `GenerateOptions`, with num_samples = 1."""
        given = self._options(options)
        if given.num_samples != 1:
            raise UserError("generate gives one text: generate_all gives several samples")
        return self._continue([self._start(prompt)], given)[0][0]

    def generate_all(self, prompts: Sequence[str | None], **options: Any) -> list[list[str]]:
        """Return continuations of several prompts in one batch, `num_samples` each: the same as each prompt alone."""
        given = self._options(options)
        return self._continue([self._start(prompt) for prompt in prompts], given)

    def score(self, prompt: str | None, continuation: str) -> Score:
        """Return the log-probability of each token of a given continuation after a prompt."""
        return self._score(self._start(prompt), continuation)[0]

    # Implementation.

    def _options(self, options: Mapping[str, Any]) -> GenerateOptions:
        refuse_unknown(options, [GenerateOptions])
        if isinstance(options.get("stop"), str):
            options = {**options, "stop": [options["stop"]]}
        given = build(GenerateOptions, options)
        return replace(given, stop=[self.normalize(stop) for stop in given.stop])

    @staticmethod
    def _steps(model: nn.Module) -> StepModel:
        return cast(StepModel, model)

    def _stream(self, ids: list[int], given: GenerateOptions) -> Iterator[str]:
        with eval_mode(self.model) as model:
            for event in generate(self._steps(model), [self._request(ids, given)], self.tokenizer.stream):
                if event.text:
                    yield event.text

    def _continue(self, starts: Sequence[list[int]], given: GenerateOptions) -> list[list[str]]:
        texts = [[""] * given.num_samples for _ in starts]
        with eval_mode(self.model) as model:
            if given.num_beams > 1:
                return [[text] for text in self._beam(self._steps(model), starts, given)]
            requests = [self._request(ids, given) for ids in starts]
            for event in generate(self._steps(model), requests, self.tokenizer.stream):
                texts[event.request][event.sample] += event.text
        return texts

    def _request(self, ids: list[int], o: GenerateOptions) -> Request:
        sampling = Sampling(o.temperature, o.top_k, o.top_p, o.min_p, o.repetition_penalty)
        return Request(ids, o.max_new_tokens, sampling, o.seed, o.num_samples, self._ends(), tuple(o.stop))

    def _ends(self) -> tuple[int, ...]:
        end = self.tokenizer.specials.get(END)
        return () if end is None else (end,)

    def _beam(self, model: StepModel, starts: Sequence[list[int]], o: GenerateOptions) -> list[str]:
        options = BeamOptions(o.num_beams, o.max_new_tokens, end=self._ends(), length_penalty=o.length_penalty)
        texts = []
        for best, *_ in beam_search(model, starts, options):
            streamer = TextStreamer(self.tokenizer.stream(), tuple(o.stop))
            texts.append("".join([*map(streamer.push, best.ids), streamer.finish()]))
        return texts

    def _score(self, start: list[int], continuation: str) -> tuple[Score, list[str]]:
        ids, notes = self.encode(continuation, "--continuation")
        with eval_mode(self.model) as model:
            return score(self._steps(model), start, [int(i) for i in ids]), notes

    # Actions.

    @action(GenerateOptions, example=lambda task: {"max_new_tokens": EXAMPLE_TOKENS})
    def _generate(self, options: GenerateOptions, show: Show) -> dict[str, Any]:
        """Continue a text."""
        prompt = _standard_input() if options.prompt == "-" else options.prompt
        ids, notes = self.prompt_ids(prompt)
        given = self._options({name: value for name, value in asdict(options).items() if name != "prompt"})
        if given.num_beams == 1 and given.num_samples == 1:
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

    @action(ScoreOptions, name="score")
    def _score_action(self, options: ScoreOptions, show: Show) -> dict[str, Any]:
        """Print the log-probability of a text."""
        if not options.continuation:
            raise UserError("--continuation: give the text to score")
        start, notes = self.prompt_ids(options.prompt)
        scored, more = self._score(start, options.continuation)
        tokens = len(scored.log_probs)
        show(f"{scored.total:.4f} nats in total, {scored.average:.4f} nats/token over {tokens:,} tokens\n")
        result = {"total": scored.total, "average": scored.average, "log_probs": list(scored.log_probs)}
        return {**result, "prompt": options.prompt, "continuation": options.continuation, "notes": [*notes, *more]}


def _standard_input() -> str:
    try:
        return decode(sys.stdin.buffer.read(), normalize_newlines=False)
    except Unreadable as error:
        raise UserError(f"--prompt -: standard input: {error}") from None
