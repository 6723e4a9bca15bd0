"""Translating with a trained model: from texts to texts, with beam search, and with the alignment."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tokenloom.config import Options, option
from tokenloom.data.text import reason_of, shown_path
from tokenloom.data.unicode import Unreadable, decode, fold_newlines
from tokenloom.errors import UserError
from tokenloom.generation.beam_search import BeamOptions, Hypothesis, beam_search
from tokenloom.models.batch import Batch, Stream, pad
from tokenloom.models.protocols import StepModel
from tokenloom.nn.hooks import Hooks
from tokenloom.tasks.base import Show, Task
from tokenloom.tokenizers.base import END, UNKNOWN, Ids, TextTokenizer, quote_list, utf8_length

# So many sources are translated at a time.
TOGETHER = 64


@dataclass(frozen=True)
class PairMeasuringOptions(Options):
    """Which pairs are measured."""

    target: str | None = option(None, "with --data FILE: the file whose line n is the target of its line n")


@dataclass(frozen=True)
class TranslateOptions(Options):
    """What is translated, and how."""

    sources: list[str] = option([], "texts to translate", positional=True)
    file: str | None = option(None, "translate each line of this file; - is standard input")
    beam: int = option(1, "beam search of this width; 1 takes the likeliest token each time")
    length_penalty: float = option(1.0, "beam search: divide log-probabilities by length to this power")
    alignment: str | None = option(None, "draw which source tokens each token looked at into this PNG file")
    dark: bool = option(False, "draw for a dark page")

    def check(self) -> None:
        if self.beam < 1:
            raise UserError(f"--beam {self.beam}: must be at least 1")
        if not 0 <= self.length_penalty <= 10:
            raise UserError(f"--length-penalty {self.length_penalty}: must be from 0 to 10")
        if self.beam == 1 and self.length_penalty != 1.0:
            raise UserError("--length-penalty has no effect without --beam: leave it out")
        if self.dark and self.alignment is None:
            raise UserError("--dark has no effect without --alignment: leave it out")


@dataclass(frozen=True)
class Alignment:
    """Which tokens of the source each token of a translation looked at.

    source, target: the tokens as they print, the last of each being the end. weights: (target tokens, source tokens);
    each row sums to 1.
    """

    source: list[str]
    target: list[str]
    weights: list[list[float]]


@dataclass(frozen=True)
class Translation:
    """A translation, ln p of it a token, and whether it came to its end within the model's limit."""

    text: str
    average: float
    ended: bool
    ids: tuple[int, ...]


class Seq2SeqTask(Task):
    """A task whose model predicts a target from a source, both of them text."""

    uses: ClassVar[Mapping[str, type]] = {"predict": TranslateOptions}
    measuring = PairMeasuringOptions

    @property
    @abstractmethod
    def tokenizers(self) -> tuple[TextTokenizer, TextTokenizer]:
        """Between text and ids: of the sources, and of the targets. Raises UserError before there are any."""

    def source_ids(self, text: str, where: str) -> tuple[Ids, list[str]]:
        """The ids of a source without its end, and what there is to say about it.

        Raises UserError for what cannot be translated: no text, characters never seen, or more tokens than the model
        takes.
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
                f"{where}: the model has never seen {quote_list(unseen, 'character')}; leave out what it does"
                " not know, or train with --tokenizer byte-bpe, which takes any text"
            )
        notes = [f"{where}: the model does not know {quote_list(unseen, 'word')}"] if unseen else []
        ids = tokenizer.encode(text)
        if len(ids) >= limit:
            raise UserError(
                f"{where}: has {len(ids):,} tokens, and the model takes {limit - 1:,} at most; translate it in parts,"
                " or train with a larger --longest"
            )
        return ids, notes

    def source_stream(self, sources: Sequence[Ids]) -> Stream:
        """Sources as a stream, each with its end; no mask where all are equally long."""
        end = torch.tensor([self.tokenizers[0].specials[END]])
        ids, real = pad([torch.cat((torch.from_numpy(one.astype("int64")), end)) for one in sources])
        return Stream(ids=ids, real=None if bool(real.all()) else real)

    # From Python.

    def translate(self, sources: Sequence[str], *, beam: int = 1, length_penalty: float = 1.0) -> list[str]:
        """The translation of each source: the same as each would get alone. See `TranslateOptions`.

        Raises UserError, naming the source, for one that cannot be translated.
        """
        ids = [self.source_ids(text, f"source {number}")[0] for number, text in enumerate(sources, start=1)]
        return [one.text for one in self.translations(ids, beam=beam, length_penalty=length_penalty)]

    def translations(self, sources: Sequence[Ids], *, beam: int = 1, length_penalty: float = 1.0) -> list[Translation]:
        """Translations of sources given as ids."""
        results: list[Translation | None] = [None] * len(sources)
        # Sources of about one length go together, which pads little and changes nothing.
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        with self.ready():
            for start in range(0, len(order), TOGETHER):
                rows = order[start : start + TOGETHER]
                found = self._search([sources[row] for row in rows], beam, length_penalty)
                for row, best in zip(rows, found, strict=True):
                    results[row] = self._translation(best)
        return [one for one in results if one is not None]

    def _search(self, sources: Sequence[Ids], beam: int, length_penalty: float) -> list[Hypothesis]:
        target, limit = self.tokenizers[1], self.model_config["target_context"]
        decoder: StepModel = self.decoder(Batch({"source": self.source_stream(sources)}).to(self.device))
        options = BeamOptions(beam, limit, end=(target.specials[END],), length_penalty=length_penalty)
        # The id after all those that are predicted opens a target.
        return [best for best, *_ in beam_search(decoder, [[target.vocab_size]] * len(sources), options)]

    def _translation(self, best: Hypothesis) -> Translation:
        text = self.tokenizers[1].decode(list(best.ids))
        return Translation(text, best.log_prob / best.length, best.end is not None, best.ids)

    def alignment(self, source: str, translation: Translation | None = None) -> Alignment:
        """What a translation of a source (by default the likeliest tokens) looked at, averaged over heads and layers.

        Raises UserError for a model without attention.
        """
        ids, _ = self.source_ids(source, "the source")
        (translation,) = self.translations([ids]) if translation is None else (translation,)
        names, weights = [], self._looked_at(ids, translation)
        for tokenizer, side in zip(self.tokenizers, (ids.tolist(), translation.ids), strict=True):
            names.append([*(tokenizer.token_text(int(i)) for i in side), "⟨end⟩"])
        return Alignment(names[0], names[1][: len(weights)], weights.tolist())

    def _looked_at(self, source: Ids, translation: Translation) -> Tensor:
        target = self.tokenizers[1].vocab_size
        stream = Stream(ids=torch.tensor([[target, *translation.ids][: self.model_config["target_context"]]]))
        hooks = Hooks("*cross.pattern")
        with self.ready() as model, torch.no_grad():
            model(Batch({"source": self.source_stream([source]), "target": stream}).to(self.device), hooks=hooks)
        if not hooks.values:
            raise UserError("--alignment: this model has no attention, and so nothing that it looked at")
        # (B, H, N, M) of each layer.
        return torch.stack([pattern[0] for pattern in hooks.values.values()]).mean((0, 1)).cpu()

    @property
    def attends(self) -> bool:
        """Whether the model looks at the source at every token."""
        return any(name.rpartition(".")[2] == "cross" for name, _ in self.model.named_modules())

    # From the command line.

    def use(self, verb: str, options: TranslateOptions, show: Show) -> dict[str, Any]:
        given = _given(options)
        if options.alignment is not None and len(given) > 1:
            raise UserError(f"--alignment draws one translation; {len(given)} sources are given")
        if options.alignment is not None and not self.attends:
            raise UserError("--alignment: this model has no attention, and so nothing that it looked at")
        encoded, notes = [], []
        for where, text in given:
            ids, more = self.source_ids(text, where)
            encoded.append(ids)
            notes += more
        outputs: list[dict[str, Any]] = []
        found = self.translations(encoded, beam=options.beam, length_penalty=options.length_penalty)
        for (where, text), one in zip(given, found, strict=True):
            show(one.text.replace("\n", "\\n") + "\n")
            if not one.ended:
                notes.append(f"{where}: cut at {len(one.ids):,} tokens, the most that the model makes (--longest)")
            align = vars(self.alignment(text, one)) if self.attends else None
            outputs.append({"source": text, "text": one.text, "log_prob_a_token": one.average, "alignment": align})
        if options.alignment is not None:
            from tokenloom.plotting.heatmap import draw_alignment

            shown = outputs[0]["alignment"]
            draw_alignment(**shown, path=options.alignment, dark=options.dark)
            notes.append(f"the alignment is drawn in {options.alignment}")
        return {"outputs": outputs, "notes": notes}


def _given(options: TranslateOptions) -> list[tuple[str, str]]:
    """The texts to translate, with where each comes from."""
    if options.file is None:
        if not options.sources:
            raise UserError("nothing to translate: give texts, or a file of lines with --file")
        return [(f"source {number}", text) for number, text in enumerate(options.sources, start=1)]
    if options.sources:
        raise UserError(f"--file {options.file}: texts are given too; leave one of them away")
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
