"""Batches and streams: what is given by default, what is counted, how rows are filled up."""

import pytest
import torch

from tokenloom.models.batch import IGNORE, Batch, Stream, pad


def test_shape_and_tokens_of_ids_codes_and_features():
    ids, codes, features = torch.zeros(2, 5).long(), torch.zeros(2, 5, 8).long(), torch.zeros(3, 4, 16)
    assert Stream(ids=ids).tokens is ids
    assert Stream(ids=ids).shape == Stream(ids=codes).shape == (2, 5)
    assert Stream(features=features).tokens is features
    assert Stream(features=features).shape == (3, 4)
    with pytest.raises(ValueError, match="without ids or features"):
        _ = Stream().shape


def test_positions_count_from_the_first_real_token():
    ids = torch.zeros(3, 5).long()
    assert Stream(ids=ids).positions_or_count().tolist() == [[0, 1, 2, 3, 4]]
    real = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 1]]).bool()
    padded = Stream(ids=ids, real=real)
    assert padded.positions_or_count().tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [0, 0, 1, 2, 3]]
    # Where only differences matter the first column will do.
    assert padded.positions_or_count(relative=True).tolist() == [[0, 1, 2, 3, 4]]
    given = torch.tensor([[0, 1, 0, 1, 2]])
    assert Stream(ids=ids, real=real, positions=given).positions_or_count() is given
    nothing = Stream(ids=ids[:1], real=torch.zeros(1, 5).bool())
    assert nothing.positions_or_count().tolist() == [[0, 1, 2, 3, 4]]


def test_counts_are_of_targets_that_count():
    targets = {"text": torch.tensor([[3, IGNORE, 0], [IGNORE, IGNORE, 5]]), "image": torch.full((2, 4), IGNORE)}
    batch = Batch({"text": Stream(ids=torch.zeros(2, 3).long())}, targets)
    assert batch.counts() == {"text": 3, "image": 0}
    assert len(batch) == 2
    assert batch["text"] is batch.streams["text"]
    assert Batch({"text": Stream(ids=torch.zeros(2, 3).long())}).counts() == {}


def test_a_batch_moves_with_all_that_it_has():
    given = {name: torch.ones(2, 3) for name in ("ids", "features", "real", "positions", "segments")}
    batch = Batch({"text": Stream(**given), "sound": Stream(features=torch.ones(2, 9, 4))}, {"text": torch.ones(2, 3)})
    moved = batch.to(torch.device("meta"))
    assert all(getattr(moved["text"], name).device.type == "meta" for name in given)
    assert moved["sound"].features.device.type == moved.targets["text"].device.type == "meta"
    assert moved["sound"].ids is None
    assert batch["text"].ids.device.type == "cpu"


def test_pad_on_either_side():
    rows = [torch.tensor([1, 2, 3]), torch.tensor([4]), torch.tensor([], dtype=torch.int64)]
    ids, real = pad(rows, fill=9)
    assert ids.tolist() == [[1, 2, 3], [4, 9, 9], [9, 9, 9]]
    assert real.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    ids, real = pad(rows, left=True)
    assert ids.tolist() == [[1, 2, 3], [0, 0, 4], [0, 0, 0]]
    assert real.tolist() == [[True] * 3, [False, False, True], [False] * 3]
    assert ids.dtype == torch.int64
