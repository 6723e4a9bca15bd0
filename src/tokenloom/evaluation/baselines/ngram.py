"""The line to beat: what an n-gram model needs for the same validation text."""

from __future__ import annotations

import numpy as np

from tokenloom.data.documents import TextData
from tokenloom.models.ngram import Ngram
from tokenloom.training.events import Baseline

ORDER = 6
# Counting more text than this takes longer than it is worth for a line of comparison.
MAX_CHARACTERS = 6_000_000


def ngram_baseline(training: TextData, validation: TextData, *, targets: int, skip: int = 0) -> Baseline:
    """An interpolated Kneser–Ney n-gram over characters, with running context, in nats a token of the model.

    targets: among how many tokens its nats are shared out. skip: how many characters at the very start are given to
    the model and asked of nobody. The n-gram knows every character of both texts, and counts those of the training.
    """
    note = "over characters, with running context"
    kept: list[str] = []
    room = MAX_CHARACTERS
    for document in training.documents:
        if room <= 0:
            note += f", from the first {MAX_CHARACTERS:,} characters of the training text"
            break
        kept.append(document.text[:room])
        room -= len(document.text)
    held = [document.text for document in validation.documents]
    points = [np.frombuffer(text.encode("utf-32-le"), np.uint32) for text in (*kept, *held)]
    known, ids = np.unique(np.concatenate(points), return_inverse=True)
    parts = np.split(ids.astype(np.int64), np.cumsum([len(part) for part in points])[:-1])
    model = Ngram.fit(parts[: len(kept)], len(known), ORDER)
    nats = -np.concatenate([model.log_probs(part) for part in parts[len(kept) :]])
    return Baseline(f"order-{ORDER} Kneser–Ney n-gram", float(nats[skip:].sum()) / targets, "nats a token", note)
