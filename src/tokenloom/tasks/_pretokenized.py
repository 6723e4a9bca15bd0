"""Training on text that was tokenized beforehand: what a folder of shards gives, and what it decides by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.data.documents import Document, TextData, text_facts
from tokenloom.data.pretokenized.shards import PARTS, PretokenizedCorpus, ShardedIds
from tokenloom.data.report import DataReport
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines.ngram import MAX_CHARACTERS, ngram_baseline
from tokenloom.tokenizers.base import TextTokenizer
from tokenloom.training.events import Baseline

# The n-gram is counted in memory, on a sample where there is more; see `baseline_of`.
MOST_COUNTED = 2_000_000
MOST_ASKED = 500_000
STRETCHES = 16


def refuse_inert(settings: Any, tokenized: PretokenizedCorpus) -> None:
    """Raise UserError for a setting that would have no effect, since the folder has decided it already."""
    content = tokenized.content
    decided: dict[str, tuple[Any, ...]] = {
        "tokenizer": ("auto", content["tokenizer"]["kind"]),
        "vocab_size": (None,),
        "borders": (None, tokenized.borders),
        "val_fraction": (type(settings)().val_fraction,),
        "column": (None,),
        "encoding": ("utf-8",),
        "newlines": ("fold", content["newlines"]),
    }
    for name, allowed in decided.items():
        if getattr(settings, name) not in allowed:
            raise UserError(
                f"--{name} {getattr(settings, name)}: {tokenized.folder} is tokenized already;"
                " tokenloom data tokenize decides this"
            )


def tokenizer_of(tokenized: PretokenizedCorpus, known: TextTokenizer | None) -> TextTokenizer:
    """The tokenizer of a folder. Raises UserError when it is another than the one that is known already."""
    tokenizer = tokenized.tokenizer()
    if known is not None and known.fingerprint() != tokenizer.fingerprint():
        raise UserError(f"{tokenized.folder}: tokenized with another tokenizer than this run was trained with")
    return tokenizer


def report_of(tokenized: PretokenizedCorpus, extra: dict[str, str]) -> DataReport:
    """Return the report on both parts, from the counts in the manifest."""
    content = tokenized.content
    train, validation = (
        {what: tokenized.total(part, what) for what in ("documents", "characters", "bytes", "lines")} for part in PARTS
    )
    facts, rows = text_facts(**{**content["report"]["facts"], "longest": tuple(content["report"]["facts"]["longest"])})
    return DataReport(
        name=content["name"],
        license=content["license"],
        train=train,
        validation=validation,
        split=content["split"],
        facts=facts,
        rows=rows,
        skipped=[(path, reason) for path, reason in content["report"]["skipped"]],
        notes=content["report"]["notes"],
        extra={**extra, "shards": f"{sum(len(tokenized.shards(part)) for part in PARTS):,} in {tokenized.folder}"},
    )


# The line to beat is counted when the text is tokenized, and kept in the manifest: training starts at once.


def baseline_kept(tokenized: PretokenizedCorpus) -> dict[str, Any]:
    """The n-gram baseline, as the manifest keeps it, or the reason why there is none."""
    found = baseline_of(tokenized)
    if isinstance(found, str):
        return {"baseline": {"none": found}}
    return {"baseline": {"name": found.name, "value": found.value, "unit": found.unit, "note": found.note}}


def kept_baseline(tokenized: PretokenizedCorpus) -> Baseline | str:
    """What `baseline_kept` has kept."""
    kept = tokenized.content.get("baseline", {"none": "it was not counted when the text was tokenized"})
    return kept["none"] if "none" in kept else Baseline(kept["name"], kept["value"], kept["unit"], kept["note"])


def baseline_of(tokenized: PretokenizedCorpus) -> Baseline | str:
    """An n-gram over the characters that the ids decode to, or why there is none.

    Of a training part of more than `MAX_CHARACTERS` it counts `MOST_COUNTED`, and of a validation part of more than
    `MOST_ASKED` it is asked for so many: in stretches at even distances.
    """
    if any(tokenized.total(part, "unknown") for part in PARTS):
        return "what unknown words were cannot be read from ids"
    tokenizer = tokenized.tokenizer()
    counted, note = _sample(tokenized, tokenizer, "training", MAX_CHARACTERS, MOST_COUNTED)
    asked, held_note = _sample(tokenized, tokenizer, "validation", MOST_ASKED, MOST_ASKED)
    held = tokenized.ids("validation")
    if len(held) < 2:
        return "the validation part is too short"
    whole = not held_note
    targets = len(held) - 1 if whole else sum(length for _, length in asked)
    skip = len(tokenizer.decode(held[:1])) if whole else 0
    found = ngram_baseline(_data(counted), _data(asked), targets=targets, skip=skip)
    return Baseline(found.name, found.value, found.unit, found.note + note + held_note)


def _sample(
    tokenized: PretokenizedCorpus, tokenizer: TextTokenizer, part: str, most: int, wanted: int
) -> tuple[list[tuple[str, int]], str]:
    """(text, number of ids) of all documents, or of stretches of about `wanted` characters, and a note on that."""
    ids, characters = tokenized.ids(part), tokenized.total(part, "characters")
    starts = ids.starts()
    if characters <= most:
        return list(_texts(ids, starts, tokenizer, 0, len(ids))), ""
    length = max(1, wanted * len(ids) // characters // STRETCHES)
    found: list[tuple[str, int]] = []
    for begin in np.linspace(0, len(ids) - length, STRETCHES).astype(np.int64).tolist():
        found += _texts(ids, starts, tokenizer, begin, begin + length)
    taken = sum(len(text) for text, _ in found)
    return found, f", {'counted on' if part == 'training' else 'asked for'} {taken:,} characters of the {part} part"


def _texts(
    ids: ShardedIds, starts: NDArray[np.int64], tokenizer: TextTokenizer, begin: int, end: int
) -> Iterator[tuple[str, int]]:
    inside = starts[(starts > begin) & (starts < end)].tolist()
    for start, stop in zip([begin, *inside], [*inside, end], strict=True):
        yield tokenizer.decode(ids[start:stop]), stop - start


def _data(texts: list[tuple[str, int]]) -> TextData:
    return TextData([Document(str(number), text) for number, (text, _) in enumerate(texts) if text])
