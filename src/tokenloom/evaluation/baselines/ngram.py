"""The baseline of text generation: the loss of an n-gram model on the same validation text."""

from __future__ import annotations

import numpy as np

from tokenloom.data.documents import TextData
from tokenloom.models.ngram import Ngram
from tokenloom.training.events import Baseline

ORDER = 6
# Counts at most this many characters of the training text, which bounds the time.
MAX_CHARACTERS = 6_000_000


def ngram_baseline(training: TextData, validation: TextData, *, targets: int, skip: int = 0) -> Baseline:
    """An interpolated Kneser–Ney n-gram over characters, with sliding context, in nats per token of the model.

    targets: number of tokens by which its nats are divided. skip: characters at the start that are not scored. The
    alphabet is that of both texts; only the training text is counted.
    """
    note = "over characters, with sliding context"
    kept: list[str] = []
    remaining = MAX_CHARACTERS
    for document in training.documents:
        if remaining <= 0:
            note += f", from the first {MAX_CHARACTERS:,} characters of the training text"
            break
        kept.append(document.text[:remaining])
        remaining -= len(document.text)
    held = [document.text for document in validation.documents]
    points = [np.frombuffer(text.encode("utf-32-le"), np.uint32) for text in (*kept, *held)]
    known, ids = np.unique(np.concatenate(points), return_inverse=True)
    parts = np.split(ids.astype(np.int64), np.cumsum([len(part) for part in points])[:-1])
    model = Ngram.fit(parts[: len(kept)], len(known), ORDER)
    nats = -np.concatenate([model.log_probs(part) for part in parts[len(kept) :]])
    return Baseline(f"order-{ORDER} Kneser–Ney n-gram", float(nats[skip:].sum()) / targets, "nats/token", note)
