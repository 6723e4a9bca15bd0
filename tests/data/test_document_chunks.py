"""Documents as pieces: nothing lost, nothing of two documents in one piece, other cuts each epoch."""

import numpy as np
import pytest

from tokenloom.data.samples import DocumentChunks

DOCUMENTS = [np.arange(3), np.array([], int), np.arange(10, 20), np.arange(30, 34)]


def test_evaluation_cuts_each_document_at_multiples_of_the_size() -> None:
    pieces = DocumentChunks(DOCUMENTS, 4)
    keys = pieces.all()
    assert [part.tolist() for part in pieces.take(keys)] == [
        [0, 1, 2],
        [10, 11, 12, 13],
        [14, 15, 16, 17],
        [18, 19],
        [30, 31, 32, 33],
    ]
    assert pieces.lengths(keys).tolist() == [3, 4, 4, 2, 4]
    assert len(pieces) == 5


def test_every_epoch_covers_everything_in_another_order_and_with_other_cuts() -> None:
    pieces = DocumentChunks(DOCUMENTS, 4)
    cuts = set()
    for epoch in range(20):
        keys = pieces.epoch(1, epoch)
        assert len(keys) == len(pieces)
        np.testing.assert_array_equal(keys, pieces.epoch(1, epoch))
        parts = pieces.take(keys)
        assert {int(i) for part in parts for i in part} == {int(i) for document in DOCUMENTS for i in document}
        assert all(len(part) <= 4 and len({int(i) // 10 for part in [part] for i in part}) == 1 for part in parts)
        cuts.add(tuple(sorted(keys.tolist())))
    assert len(cuts) == 3  # The long document leaves room for shifts of 0, 1 and 2.


def test_other_content_has_another_fingerprint() -> None:
    prints = {
        DocumentChunks(DOCUMENTS, 4).fingerprint(),
        DocumentChunks(DOCUMENTS, 5).fingerprint(),
        DocumentChunks(DOCUMENTS[:3], 4).fingerprint(),
        DocumentChunks([np.concatenate(DOCUMENTS[:3]), DOCUMENTS[3]], 4).fingerprint(),
    }
    assert len(prints) == 4


@pytest.mark.parametrize(("documents", "size"), [([], 4), ([np.array([], int)], 4), (DOCUMENTS, 0)])
def test_nothing_makes_no_pieces(documents: list[np.ndarray], size: int) -> None:
    with pytest.raises(ValueError, match="are empty"):
        DocumentChunks(documents, size)
