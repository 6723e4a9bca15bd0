"""What sequence-to-sequence tasks share: translation of texts by beam search, and cross-attention as an alignment."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenloom.config import Options, flag, option
from tokenloom.data.text import reason_of, shown_path
from tokenloom.data.unicode import Unreadable, decode, fold_newlines
from tokenloom.errors import UserError
from tokenloom.generation.beam_search import BeamOptions, Hypothesis, beam_search
from tokenloom.models.batch import Batch, Stream, pad
from tokenloom.models.protocols import StepModel
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.modules import device_of, eval_mode
from tokenloom.tasks.base import EvaluateOptions, Show, Task, action
from tokenloom.tokenizers.base import END, UNKNOWN, Ids, TextTokenizer, quote_list, utf8_length

BATCH_SIZE = 64
_NO_ATTENTION = f"{flag('attention_plot')}: this model has no attention"


@dataclass(frozen=True)
class PairEvaluateOptions(EvaluateOptions):
    """On which pairs a run is evaluated."""

    target_file: str | None = option(None, "with --data FILE: file whose line n is the target of line n of FILE")


@dataclass(frozen=True)
class TranslateOptions(Options):
    """What is translated, and how."""

    sources: list[str] = option([], "texts to translate", positional=True)
    file: str | None = option(None, "translate each line of this file; - is standard input")
    num_beams: int = option(1, "beam width; 1 is greedy decoding", low=1)
    length_penalty: float = option(
        1.0, "beam search: scores are log-probabilities over length to this power", low=0, high=10, needs="num_beams"
    )
    show_source: bool = option(False, "print each source before its translation")
    attention_plot: str | None = option(None, "PNG to write: which source tokens each target token attends to")
    dark: bool = option(False, "dark background", needs="attention_plot")


@dataclass(frozen=True)
class Alignment:
    """How much each token of a translation attends to each token of the source.

    source, target: the tokens as they print; the last of each is the end token. weights: (target tokens, source
    tokens); each row sums to 1.
    """

    source: list[str]
    target: list[str]
    weights: list[list[float]]


@dataclass(frozen=True)
class Translated:
    """A translation, its mean log-probability per token, and whether it ended within the model's limit."""

    text: str
    log_prob: float
    ended: bool
    ids: tuple[int, ...]


class Seq2SeqTask(Task):
    """A task whose model predicts a target from a source, both of them text."""

    @property
    @abstractmethod
    def tokenizers(self) -> tuple[TextTokenizer, TextTokenizer]:
        """Return the tokenizers of the sources and of the targets. Raise UserError before there are any."""

    @abstractmethod
    def example_sources(self) -> list[str]:
        """Return a few sources of the validation data."""

    def source_ids(self, text: str, where: str) -> tuple[Ids, list[str]]:
        """Return the ids of a source without its end token, and notes on it.

        Raise UserError for what cannot be translated: no text, unseen characters, or more tokens than the model reads.
        """
        tokenizer, limit = self.tokenizers[0], self.model_config["source_context"]
        text = fold_newlines(text)
        if not text.strip():
            raise UserError(f"{where}: is empty; there is nothing to translate")
        try:
            utf8_length(text)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        unseen = tokenizer.unseen(text)
        if unseen and UNKNOWN not in tokenizer.specials:
            raise UserError(
                f"{where}: not in the vocabulary: {quote_list(unseen, 'character')}; leave it out, or train with"
                " --tokenizer byte-bpe, which reads any text"
            )
        notes = [f"{where}: not in the vocabulary: {quote_list(unseen, 'word')}"] if unseen else []
        ids = tokenizer.encode(text)
        if len(ids) >= limit:
            raise UserError(
                f"{where}: has {len(ids):,} tokens, and the model reads at most {limit - 1:,}; translate it in parts,"
                f" or train with a larger {flag('max_length')}"
            )
        return ids, notes

    def source_stream(self, sources: Sequence[Ids]) -> Stream:
        """Return sources as a stream, each with its end token; no mask where all have the same length."""
        end = torch.tensor([self.tokenizers[0].specials[END]])
        ids, real = pad([torch.cat((torch.from_numpy(source.astype("int64")), end)) for source in sources])
        return Stream(ids=ids, real=None if bool(real.all()) else real)

    # From Python.

    def translate(self, sources: Sequence[str], *, num_beams: int = 1, length_penalty: float = 1.0) -> list[str]:
        """Return the translation of each source, the same as each would get alone. See `TranslateOptions`.

        Raise UserError, naming the source, for one that cannot be translated.
        """
        ids = [self.source_ids(text, f"source {number}")[0] for number, text in enumerate(sources, start=1)]
        found = self.translate_ids(ids, num_beams=num_beams, length_penalty=length_penalty)
        return [translated.text for translated in found]

    def translate_ids(
        self, sources: Sequence[Ids], *, num_beams: int = 1, length_penalty: float = 1.0
    ) -> list[Translated]:
        """Return the translations of sources given as ids."""
        results: dict[int, Translated] = {}
        # Sources of similar length share a batch: less padding, and the same results.
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        with eval_mode(self.model):
            for start in range(0, len(order), BATCH_SIZE):
                rows = order[start : start + BATCH_SIZE]
                best = self._search([sources[row] for row in rows], num_beams, length_penalty)
                results |= {row: self._translated(one) for row, one in zip(rows, best, strict=True)}
        return [results[row] for row in range(len(sources))]

    def _search(self, sources: Sequence[Ids], num_beams: int, length_penalty: float) -> list[Hypothesis]:
        target, limit = self.tokenizers[1], self.model_config["target_context"]
        model: Any = self.model
        decoder: StepModel = model.decoder_of(Batch({"source": self.source_stream(sources)}).to(device_of(self.model)))
        options = BeamOptions(num_beams, limit, end=(target.specials[END],), length_penalty=length_penalty)
        # The id after all those that are predicted starts a target.
        return [best for best, *_ in beam_search(decoder, [[target.vocab_size]] * len(sources), options)]

    def _translated(self, best: Hypothesis) -> Translated:
        text = self.tokenizers[1].decode(list(best.ids))
        return Translated(text, best.log_prob / best.length, best.end is not None, best.ids)

    def alignment(self, source: str, translated: Translated | None = None) -> Alignment:
        """Return the cross-attention of a translation (by default the greedy one), averaged over heads and layers.

        Raise UserError for a model without attention.
        """
        ids, _ = self.source_ids(source, "the source")
        (translated,) = self.translate_ids([ids]) if translated is None else (translated,)
        weights = self._cross_attention(ids, translated)
        source_tokens, target_tokens = (
            [*(tokenizer.token_text(id) for id in side), "⟨end⟩"]
            for tokenizer, side in zip(self.tokenizers, (ids.tolist(), translated.ids), strict=True)
        )
        return Alignment(source_tokens, target_tokens[: len(weights)], weights.tolist())

    def _cross_attention(self, source: Ids, translated: Translated) -> Tensor:
        """Return the weights (N, M) of N target tokens over M source tokens, averaged over heads and layers."""
        start = self.tokenizers[1].vocab_size
        stream = Stream(ids=torch.tensor([[start, *translated.ids][: self.model_config["target_context"]]]))
        hooks = Hooks("*cross.pattern")
        with eval_mode(self.model) as model, torch.no_grad():
            model(
                Batch({"source": self.source_stream([source]), "target": stream}).to(device_of(self.model)), hooks=hooks
            )
        if not hooks.values:
            raise UserError(_NO_ATTENTION)
        # Each layer: (B, H, N, M) with B = 1.
        return torch.stack([pattern[0] for pattern in hooks.values.values()]).mean((0, 1)).cpu()

    @property
    def has_cross_attention(self) -> bool:
        """Whether the decoder attends to the source."""
        return any(name.rpartition(".")[2] == "cross" for name, _ in self.model.named_modules())

    # From the command line.

    @action(TranslateOptions, example=lambda task: {"sources": task.example_sources(), "show_source": True})
    def _predict(self, options: TranslateOptions, show: Show) -> dict[str, Any]:
        """Translate texts."""
        given = _given(options)
        if options.attention_plot is not None and len(given) > 1:
            raise UserError(f"{flag('attention_plot')} draws one translation; {len(given)} sources are given")
        if options.attention_plot is not None and not self.has_cross_attention:
            raise UserError(_NO_ATTENTION)
        encoded, notes = [], []
        for where, text in given:
            ids, more = self.source_ids(text, where)
            encoded.append(ids)
            notes += more
        outputs: list[dict[str, Any]] = []
        found = self.translate_ids(encoded, num_beams=options.num_beams, length_penalty=options.length_penalty)
        for (where, text), one in zip(given, found, strict=True):
            shown = f"{text} → {one.text}" if options.show_source else one.text
            show(shown.replace("\n", "\\n") + "\n")
            if not one.ended:
                notes.append(f"{where}: truncated at {len(one.ids):,} tokens, the model's {flag('max_length')}")
            attention = vars(self.alignment(text, one)) if self.has_cross_attention else None
            outputs.append(
                {"source": text, "text": one.text, "log_prob_per_token": one.log_prob, "attention": attention}
            )
        if options.attention_plot is not None:
            from tokenloom.plotting.heatmaps import draw_alignment

            draw_alignment(**outputs[0]["attention"], path=options.attention_plot, dark=options.dark)
            notes.append(f"attention plot written to {options.attention_plot}")
        return {"outputs": outputs, "notes": notes}


def _given(options: TranslateOptions) -> list[tuple[str, str]]:
    """Return the texts to translate, each with where it comes from."""
    if options.file is None:
        if not options.sources:
            raise UserError("nothing to translate: give texts, or a file of lines with --file")
        return [(f"source {number}", text) for number, text in enumerate(options.sources, start=1)]
    if options.sources:
        raise UserError(f"--file {options.file}: texts are given too; leave one of them out")
    where = "standard input" if options.file == "-" else shown_path(options.file)
    try:
        raw = sys.stdin.buffer.read() if options.file == "-" else Path(options.file).read_bytes()
        lines = decode(raw).removesuffix("\n").split("\n")
    except OSError as error:
        raise UserError(f"--file {options.file}: cannot be read: {reason_of(error)}") from None
    except Unreadable as error:
        raise UserError(f"--file {options.file}: {error}") from None
    if not raw:
        raise UserError(f"--file {options.file}: is empty")
    return [(f"{where}, line {number}", line) for number, line in enumerate(lines, start=1)]
