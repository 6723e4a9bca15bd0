"""Honest splits: what the model is measured on is never a part of what it learned from."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tokenloom.data.documents import Document, HeldOut, TextData
from tokenloom.errors import UserError
from tokenloom.utils.names import counted, did_you_mean, some

K = TypeVar("K")
DEFAULT_FRACTION = 0.1
ENOUGH_DOCUMENTS = 5  # With fewer, whole documents rarely come near the fraction that was asked for.


@dataclass(frozen=True)
class Split:
    """The two parts of a text, how they were told apart, and what was noticed doing so."""

    training: TextData
    validation: TextData
    how: str
    notes: list[str] = field(default_factory=list)


def split(
    data: TextData,
    fraction: float = DEFAULT_FRACTION,
    seed: int = 0,
    held_out: Sequence[str] | None = None,
    *,
    validation: TextData | None = None,
) -> Split:
    """Keep a part of a text for validation.

    In this order: `validation`, a text of its own, when it is given; the documents whose ids are in `held_out`; what
    the data set itself holds out, unless another fraction than the default is asked for; whole documents, where at
    least five of them differ; else the last `fraction` of the characters.

    Whole documents are taken in the order of a hash of (seed, id) wherever taking one brings the share of characters
    nearer to `fraction`, so that a new document does not shuffle the others. Identical documents always stay on one
    side. A cut at the end of the text is exact: `int((1 - fraction) * characters)` characters train.

    Raises UserError, with the numbers, when one side would be empty.
    """
    if not 0 < fraction < 1:
        raise UserError(f"a validation fraction of {fraction} is not between 0 and 1 (both excluded)")
    if validation is not None:
        if held_out is not None:
            raise UserError("validation data and documents to hold out were both given: leave one of them away")
        return _given(data, validation)
    wish: HeldOut = None
    if held_out is not None:
        wish = (held_out,) if isinstance(held_out, str) else tuple(held_out)
    if wish is None and fraction == DEFAULT_FRACTION:
        wish = data.held_out
    if wish == "tail":
        return _tail(data, fraction)
    if wish is not None:
        return _named(data, wish)
    if data.documented and len({document.text for document in data.documents}) >= ENOUGH_DOCUMENTS:
        return _documents(data, fraction, seed)
    return _tail(data, fraction)


def _given(data: TextData, validation: TextData) -> Split:
    training = {document.text for document in data.documents}
    shared = [document.id for document in validation.documents if document.text in training]
    notes = []
    if shared:
        notes.append(
            f"in the training text too, whole: {len(shared):,} of"
            f" {counted(len(validation.documents), 'validation document')}: {some(shared, 5)}"
        )
    elif not data.documented and not validation.documented and _inside(validation, data):
        notes.append(f"the validation text {validation.name} is a part of the training text {data.name}, whole")
    return Split(data, validation, f"validation on {validation.name}, which was given", notes)


def _inside(inner: TextData, outer: TextData) -> bool:
    whole = "".join(document.text for document in outer.documents)
    return all(document.text in whole for document in inner.documents)


def _named(data: TextData, ids: tuple[str, ...]) -> Split:
    known = {document.id for document in data.documents}
    for name in ids:
        if name not in known:
            raise UserError(f"{data.name} has no document {name!r} to hold out{did_you_mean(name, known)}")
    wanted = set(ids)
    texts = {document.text for document in data.documents if document.id in wanted}
    return _parted(data, texts, f"held out by name: {some(ids, 8)}")


def _documents(data: TextData, fraction: float, seed: int) -> Split:
    first_id: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for document in data.documents:
        text = document.text
        first_id[text] = min(first_id.get(text, document.id), document.id)
        sizes[text] = sizes.get(text, 0) + len(text)
    chosen = whole_documents(sizes, first_id, fraction, seed)
    return _parted(data, chosen, f"whole documents, chosen with seed {seed}")


def whole_documents(sizes: Mapping[K, int], first_id: Mapping[K, str], fraction: float, seed: int) -> set[K]:
    """Which texts validate, of texts of such sizes and names: see `split`."""
    target = fraction * sum(sizes.values())
    chosen: set[K] = set()
    taken = 0
    for text in sorted(sizes, key=lambda text: _order(seed, first_id[text])):
        last_one_left = len(chosen) == len(sizes) - 1
        if not last_one_left and abs(taken + sizes[text] - target) < abs(taken - target):
            chosen.add(text)
            taken += sizes[text]
    if not chosen:  # Every document is more than twice the target.
        chosen.add(min(sizes, key=lambda text: (sizes[text], first_id[text])))
    return chosen


def _order(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()


def _parted(data: TextData, texts: set[str], how: str) -> Split:
    held = [document for document in data.documents if document.text in texts]
    kept = [document for document in data.documents if document.text not in texts]
    if not held or not kept:
        empty = "validation" if not held else "training"
        raise UserError(
            f"{data.name}: holding out {len(held):,} of {counted(len(data.documents), 'document')} leaves nothing for"
            f" {empty}; hold out others (identical documents stay together)"
        )
    notes = []
    repeats = len(data.documents) - len({document.text for document in data.documents})
    if repeats:
        notes.append(
            f"{counted(repeats, 'exact repeat')} of another document; identical documents were kept on the same side"
        )
    training, validation = replace(data, documents=kept), _validation(data, held)
    share = validation.characters / data.characters
    return Split(
        training,
        validation,
        f"{how}; {len(kept):,} of {counted(len(data.documents), 'document')} train, {len(held):,} validate"
        f" ({share:.1%} of the characters)",
        notes,
    )


def _tail(data: TextData, fraction: float) -> Split:
    documents = list({document.text: document for document in reversed(data.documents)}.values())[::-1]
    notes = []
    if repeats := len(data.documents) - len(documents):
        notes.append(f"left out {counted(repeats, 'exact repeat')} of another document before the cut")
    characters = sum(len(document.text) for document in documents)
    border = int((1 - fraction) * characters)
    if not 0 < border < characters:
        raise UserError(
            f"{data.name} is too short to split: of {counted(characters, 'character')}, {border:,} would train and"
            f" {characters - border:,} validate; give a longer text, or validation data of its own"
        )
    kept, held = _cut(documents, border)
    how = f"the last {fraction:.3g} of the characters validate: {border:,} train, {characters - border:,} validate"
    return Split(replace(data, documents=kept), _validation(data, held), how, notes)


def _cut(documents: Sequence[Document], border: int) -> tuple[list[Document], list[Document]]:
    """The documents before and after a border; the one it falls into is cut, and the ids of its halves say where."""
    before: list[Document] = []
    after: list[Document] = []
    for document in documents:
        size = len(document.text)
        if border >= size:
            before.append(document)
        elif border <= 0:
            after.append(document)
        else:
            before.append(Document(f"{document.id}[:{border}]", document.text[:border]))
            after.append(Document(f"{document.id}[{border}:]", document.text[border:]))
        border -= size
    return before, after


def _validation(data: TextData, documents: list[Document]) -> TextData:
    # What was noticed while reading belongs to the whole, and is told once, with the training part.
    return replace(data, documents=documents, skipped=[], notes=[])
