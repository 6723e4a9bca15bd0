"""Text to train on, as runs of ids: text that is read and tokenized here, or a folder of pre-tokenized shards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenloom.config import flag
from tokenloom.data.documents import Document, TextData, text_facts
from tokenloom.data.pretokenized.shards import PARTS, PretokenizedCorpus, ShardedIds, open_pretokenized
from tokenloom.data.report import DataReport, data_report
from tokenloom.data.samples import Run
from tokenloom.data.split import split
from tokenloom.data.text import read_text
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines.ngram import MAX_CHARACTERS, ngram_baseline
from tokenloom.tokenizers.base import END, UNKNOWN, TextTokenizer, quote_list, utf8_length
from tokenloom.tokenizers.text import choose_tokenizer
from tokenloom.training.events import Baseline

Ids = NDArray[Any] | Run

# The n-gram baseline of a pre-tokenized corpus is counted on at most this many characters of the training split and
# evaluated on at most this many of the validation split, each from this many stretches at even distances.
MAX_COUNTED = 2_000_000
MAX_EVALUATED = 500_000
STRETCHES = 16


class Corpus(Protocol):
    """A text with its tokenizer and both parts as runs of ids."""

    tokenizer: TextTokenizer
    train: Ids
    validation: Ids
    normalize_newlines: bool

    def report(self, extra: dict[str, str]) -> DataReport:
        """Return the report on both parts. extra: lines that the task adds."""
        ...

    def baseline(self) -> Baseline | None:
        """Return what an n-gram over characters reaches on the validation split; None when it cannot be compared."""
        ...


def open_corpus(source: str, settings: Any, tokenizer: TextTokenizer | None) -> Corpus:
    """Read a corpus to train on. tokenizer: of the run, where there is one. settings: see `TextGenerationSettings`.

    Raise UserError for data that cannot be read, and for settings that a pre-tokenized corpus has decided.
    """
    if source == "-" and tokenizer is not None and sys.stdin.isatty():
        raise UserError("the run was trained on standard input: pipe the same text in again")
    shards = None if source == "-" else open_pretokenized(source)
    return RawText(source, settings, tokenizer) if shards is None else Pretokenized(shards, settings, tokenizer)


def read_ids(source: str, settings: Any, tokenizer: TextTokenizer) -> Ids:
    """Return all ids of other data. Raise UserError for shards of another tokenizer."""
    shards = None if source == "-" else open_pretokenized(source)
    if shards is None:
        return encode_documents(_read(source, settings), tokenizer)
    _same_tokenizer(shards, tokenizer)
    return shards.all_ids()


def encode_documents(text: TextData, tokenizer: TextTokenizer) -> NDArray[Any]:
    """Return all documents of a text as one run of ids, with the end token, if there is one, around each document."""
    for document in text.documents:
        refuse_unseen(tokenizer, document.text, document.id)
    ids = tokenizer.encode_batch([document.text for document in text.documents])
    end = tokenizer.specials.get(END)
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
    if end is None:
        return np.concatenate(ids).astype(dtype)
    border = np.array([end], dtype=np.int64)
    return np.concatenate([border, *(part for one in ids for part in (one, border))]).astype(dtype)


def refuse_unseen(tokenizer: TextTokenizer, text: str, where: str) -> None:
    """Raise UserError, naming them, for characters that the tokenizer cannot encode. where: the source of the text."""
    try:
        utf8_length(text)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if UNKNOWN not in tokenizer.specials and (unseen := tokenizer.unseen(text)):
        raise UserError(
            f"{where}: the model has never seen {quote_list(unseen, 'character')}; leave them out, or train with"
            " --tokenizer byte-bpe, which encodes any text"
        )


def _read(source: str, settings: Any) -> TextData:
    return read_text(
        source,
        encoding=settings.encoding,
        normalize_newlines=settings.normalize_newlines,
        text_column=settings.text_column,
    )


class RawText:
    """A text that is read, split and tokenized."""

    def __init__(self, source: str, settings: Any, tokenizer: TextTokenizer | None) -> None:
        self.normalize_newlines = bool(settings.normalize_newlines)
        val_data = None if settings.val_data is None else _read(settings.val_data, settings)
        self.parts = split(_read(source, settings), settings.val_fraction, settings.split_seed, validation=val_data)
        self.tokenizer = self._train_tokenizer(settings) if tokenizer is None else tokenizer
        self.train: Ids = encode_documents(self.parts.train, self.tokenizer)
        self.validation: Ids = encode_documents(self.parts.validation, self.tokenizer)

    def _train_tokenizer(self, settings: Any) -> TextTokenizer:
        """Train the tokenizer on the training split; only the alphabet is taken from both splits."""
        train = self.parts.train
        separate = settings.separate_documents
        if separate is None:
            separate = train.documented and len(train.documents) > 1
        return choose_tokenizer(
            [document.text for document in train.documents],
            settings.tokenizer,
            settings.vocab_size,
            specials=(END,) if separate else (),
            alphabet=[document.text for document in self.parts.validation.documents],
        )

    def report(self, extra: dict[str, str]) -> DataReport:
        """See `Corpus`."""
        return data_report(self.parts, extra)

    def baseline(self) -> Baseline | None:
        """See `Corpus`. None where validation words are unknown to the tokenizer: the model does not predict them."""
        specials, ids = self.tokenizer.specials, np.asarray(self.validation)
        if UNKNOWN in specials and bool((ids == specials[UNKNOWN]).any()):
            return None
        # The first token is not predicted: it is the end token, or the first characters of the text.
        skip = len(self.tokenizer.decode(ids[:1]))
        return ngram_baseline(self.parts.train, self.parts.validation, targets=len(ids) - 1, skip=skip)


class Pretokenized:
    """A folder of shards, which has decided tokenizer, document borders and split; only `val_data` may replace one."""

    def __init__(self, shards: PretokenizedCorpus, settings: Any, tokenizer: TextTokenizer | None) -> None:
        self.shards = shards
        self.val_data: str | None = settings.val_data
        self.normalize_newlines = bool(shards.content["normalize_newlines"])
        _refuse_decided(settings, shards)
        self.tokenizer = shards.tokenizer() if tokenizer is None else _same_tokenizer(shards, tokenizer)
        self.train: Ids = shards.ids("training")
        self.validation: Ids = (
            shards.ids("validation") if self.val_data is None else read_ids(self.val_data, settings, self.tokenizer)
        )

    def report(self, extra: dict[str, str]) -> DataReport:
        """See `Corpus`; from the counts in the manifest."""
        content, extra = self.shards.content, dict(extra)
        if isinstance(reason := saved_baseline(self.shards), str):
            extra["baseline"] = f"no n-gram, since {reason}"
        if self.val_data is not None:
            extra["validated"] = f"on {self.val_data} instead of the validation split of the folder"
        extra["shards"] = f"{sum(len(self.shards.shards(part)) for part in PARTS):,} in {self.shards.folder}"
        train, validation = (
            {what: self.shards.total(part, what) for what in ("documents", "characters", "bytes", "lines")}
            for part in PARTS
        )
        found = content["report"]
        facts, rows = text_facts(**{**found["facts"], "longest": tuple(found["facts"]["longest"])})
        return DataReport(
            name=content["name"],
            license=content["license"],
            train=train,
            validation=validation,
            split=content["split"],
            facts=facts,
            rows=rows,
            skipped=[(path, reason) for path, reason in found["skipped"]],
            notes=found["notes"],
            extra=extra,
        )

    def baseline(self) -> Baseline | None:
        """See `Corpus`; counted when the text was tokenized, for the validation split of the folder."""
        saved = saved_baseline(self.shards)
        return saved if isinstance(saved, Baseline) and self.val_data is None else None


def _same_tokenizer(shards: PretokenizedCorpus, tokenizer: TextTokenizer) -> TextTokenizer:
    """Return the tokenizer. Raise UserError when the shards have another one."""
    if shards.tokenizer().fingerprint() != tokenizer.fingerprint():
        raise UserError(f"{shards.folder}: tokenized with another tokenizer than this run was trained with")
    return tokenizer


def _refuse_decided(settings: Any, shards: PretokenizedCorpus) -> None:
    """Raise UserError for a setting that the folder has decided otherwise."""
    content, default = shards.content, type(settings)()
    decided: dict[str, tuple[Any, ...]] = {
        "tokenizer": ("auto", content["tokenizer"]["kind"]),
        "vocab_size": (None,),
        "separate_documents": (None, shards.separate_documents),
        "val_fraction": (default.val_fraction,),
        "split_seed": (default.split_seed,),
        "text_column": (None,),
        "encoding": ("utf-8",),
        "normalize_newlines": (True, content["normalize_newlines"]),
    }
    for name, allowed in decided.items():
        if getattr(settings, name) not in allowed:
            raise UserError(
                f"{flag(name)} {getattr(settings, name)}: {shards.folder} is already tokenized;"
                " tokenloom data tokenize decides this"
            )


# The baseline of a pre-tokenized corpus is computed by `tokenloom data tokenize` and saved in the manifest.


def manifest_baseline(shards: PretokenizedCorpus) -> dict[str, Any]:
    """Return the entry of the manifest with the n-gram baseline, or with the reason why there is none."""
    found = _compute_baseline(shards)
    if isinstance(found, str):
        return {"baseline": {"none": found}}
    return {"baseline": {"name": found.name, "value": found.value, "unit": found.unit, "note": found.note}}


def saved_baseline(shards: PretokenizedCorpus) -> Baseline | str:
    """Return the baseline in the manifest, or the reason why there is none."""
    saved = shards.content.get("baseline", {"none": "it was not counted when the text was tokenized"})
    return saved["none"] if "none" in saved else Baseline(saved["name"], saved["value"], saved["unit"], saved["note"])


def _compute_baseline(shards: PretokenizedCorpus) -> Baseline | str:
    """Return an n-gram baseline over the characters that the ids decode to, or why there is none."""
    if any(shards.total(part, "unknown") for part in PARTS):
        return "what unknown words were cannot be read from ids"
    tokenizer = shards.tokenizer()
    counted, note = _sample(shards, tokenizer, "training", MAX_CHARACTERS, MAX_COUNTED)
    evaluated, val_note = _sample(shards, tokenizer, "validation", MAX_EVALUATED, MAX_EVALUATED)
    validation = shards.ids("validation")
    if len(validation) < 2:
        return "the validation part is too short"
    whole = not val_note
    targets = len(validation) - 1 if whole else sum(length for _, length in evaluated)
    skip = len(tokenizer.decode(validation[:1])) if whole else 0
    found = ngram_baseline(_text_of(counted), _text_of(evaluated), targets=targets, skip=skip)
    return Baseline(found.name, found.value, found.unit, found.note + note + val_note)


def _sample(
    shards: PretokenizedCorpus, tokenizer: TextTokenizer, part: str, limit: int, wanted: int
) -> tuple[list[tuple[str, int]], str]:
    """Return (text, number of ids) per document, and a note.

    A part of more than `limit` characters gives stretches of about `wanted` characters together.
    """
    ids, characters = shards.ids(part), shards.total(part, "characters")
    starts = ids.starts()
    if characters <= limit:
        return list(_texts(ids, starts, tokenizer, 0, len(ids))), ""
    length = max(1, wanted * len(ids) // characters // STRETCHES)
    found: list[tuple[str, int]] = []
    for begin in np.linspace(0, len(ids) - length, STRETCHES).astype(np.int64).tolist():
        found += _texts(ids, starts, tokenizer, begin, begin + length)
    taken = sum(len(text) for text, _ in found)
    verb = "counted" if part == "training" else "evaluated"
    return found, f", {verb} on {taken:,} characters of the {part} split"


def _texts(
    ids: ShardedIds, starts: NDArray[np.int64], tokenizer: TextTokenizer, begin: int, end: int
) -> Iterator[tuple[str, int]]:
    inside = starts[(starts > begin) & (starts < end)].tolist()
    for start, stop in zip([begin, *inside], [*inside, end], strict=True):
        yield tokenizer.decode(ids[start:stop]), stop - start


def _text_of(texts: list[tuple[str, int]]) -> TextData:
    return TextData([Document(str(number), text) for number, (text, _) in enumerate(texts) if text])
