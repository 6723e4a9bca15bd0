"""Fill-mask: the corruption against the published protocol, its keys, what is filled in, what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

import tokenloom
from tokenloom.data.documents import Document, TextData
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines.neighbors import NeighborModel
from tokenloom.models.batch import IGNORE
from tokenloom.tasks._masking import MaskingDraws, corrupt
from tokenloom.tasks.fill_mask import FillMask, FillMaskSettings, by_lines
from tokenloom.training.batches import BatchContext, Batches

TINY = {"context": 16, "width": 16, "depth": 1, "heads": 2, "threads": 1, "device": "cpu", "tokenizer": "char"}
TEXT = "One, two, buckle my shoe.\nThree, four, knock at the door.\n" * 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[FillMask, Path]:
    folder = tmp_path_factory.mktemp("filling")
    (folder / "rhyme.txt").write_text(TEXT, "utf-8")
    task = tokenloom.train(
        folder / "rhyme.txt",
        task="fill-mask",
        out=folder / "run",
        steps=200,
        lr=0.01,
        batch_size=16,
        **{**TINY, "depth": 2},
    )
    assert isinstance(task, FillMask)
    return task, folder


def test_the_published_corruption(tinyshakespeare: str) -> None:
    """Reference 3.12: the opening 60 characters exactly, then the shares over 256 windows from the same generator."""
    characters = sorted(set(tinyshakespeare))
    vocab_size = mask = len(characters)
    ids = torch.from_numpy(np.searchsorted(characters, list(tinyshakespeare)))
    training = ids[: int(0.9 * len(ids))]
    generator = torch.Generator().manual_seed(4)
    seen, selected = corrupt(training[:60], MaskingDraws.of((60,), vocab_size, generator), mask)
    line = "".join("_" if i == mask else characters[i] for i in seen.tolist())
    assert line == "Fi_s_ Citizen:\nBefo_e we proceed any further, hear me__peak."
    assert selected.nonzero().flatten().tolist() == [2, 4, 5, 19, 53, 54]
    starts = torch.randint(len(training) - 64 - 1, (256,), generator=generator)
    rows = training[starts[:, None] + torch.arange(64)]
    seen, selected = corrupt(rows, MaskingDraws.of((256, 64), vocab_size, generator), mask)
    share = selected.float().mean()
    masked = (seen[selected] == mask).float().mean()
    unchanged = (seen[selected] == rows[selected]).float().mean()
    assert [round(float(x), 3) for x in (share, masked, unchanged)] == [0.151, 0.789, 0.110]
    assert bool((seen[~selected] == rows[~selected]).all())


def test_corruption_by_hand() -> None:
    ids = torch.arange(6)
    draws = MaskingDraws(
        torch.tensor([0.149, 0.15, 0.0, 0.0, 0.0, 0.9]),
        torch.tensor([0.799, 0.0, 0.8, 0.899, 0.9, 0.0]),
        torch.full((6,), 50),
    )
    seen, selected = corrupt(ids, draws, 99)
    assert seen.tolist() == [99, 1, 50, 50, 4, 5]
    assert selected.tolist() == [True, False, True, True, True, False]


def test_every_sample_asks_for_something() -> None:
    for seed in range(50):
        draws = MaskingDraws.for_sample(2, 10, np.random.default_rng(seed))
        assert bool(corrupt(torch.tensor([1, 2]), draws, 99)[1].any())


def test_corruption_is_drawn_anew_each_epoch_and_stays_in_evaluation(run: tuple[FillMask, Path]) -> None:
    task, folder = run
    prepared = task.load(str(folder / "rhyme.txt"))
    batches = Batches(prepared.train, task.collate, batch_size=len(prepared.train), seed=3)
    first, again, later = batches(0)[0], batches(0)[0], batches(1)[0]
    assert torch.equal(first["text"].tokens, again["text"].tokens)
    assert not torch.equal(first.targets["loss"], later.targets["loss"])
    keys = prepared.validation.all()
    samples = prepared.validation.take(keys)
    together = task.collate(samples, BatchContext(0, -1, keys))
    alone = task.collate(samples[1:2], BatchContext(0, -1, keys[1:2]))
    n = alone["text"].tokens.shape[1]
    assert torch.equal(together["text"].tokens[1, :n], alone["text"].tokens[0])


def test_what_is_asked_is_what_was_there(run: tuple[FillMask, Path]) -> None:
    task, folder = run
    prepared = task.load(str(folder / "rhyme.txt"))
    keys = prepared.validation.all()
    samples = prepared.validation.take(keys)
    batch = task.collate(samples, BatchContext(0, -1, keys))
    assert bool((batch["text"].tokens[:, 0] == task.class_id).all())
    for row, ids in enumerate(samples):
        targets = batch.targets["loss"][row, 1 : len(ids) + 1].numpy()
        asked = targets != IGNORE
        np.testing.assert_array_equal(targets[asked], ids[asked])
        np.testing.assert_array_equal(batch["text"].tokens[row, 1 : len(ids) + 1].numpy()[~asked], ids[~asked])
    assert bool((batch.targets["loss"][:, 0] == IGNORE).all())


def test_it_learns_to_fill_in_a_rhyme(run: tuple[FillMask, Path]) -> None:
    task, _ = run
    answers = task.fill("Three, f_ur, knock at t_e door.", mask="_", num_answers=3)
    assert [place[0][0] for place in answers] == ["o", "h"]
    assert all(len(place) == 3 and place[0][1] > 0.3 for place in answers)
    assert task.evaluate()["accuracy"] > 0.6


def test_a_text_longer_than_the_model_is_read_around_each_place(run: tuple[FillMask, Path]) -> None:
    task, _ = run
    long = "One, two, buckle my shoe. " * 3 + "Three, f_ur, kno" + "ck at the door. " * 3
    near = "Three, f_ur, kno"
    assert len(near) > task.context - 1
    (place,) = task.fill(long, mask="_")
    start = long.index("_") - (task.context - 1) // 2
    (window,) = task.fill(long[start : start + task.context - 1], mask="_")
    assert [answer for answer, _ in place] == [answer for answer, _ in window]
    assert [p for _, p in place] == pytest.approx([p for _, p in window])


def test_a_loaded_run_fills_in_the_same(run: tuple[FillMask, Path]) -> None:
    task, folder = run
    again = tokenloom.load(folder / "run")
    assert isinstance(again, FillMask)
    assert again.fill("One, _wo", mask="_") == task.fill("One, _wo", mask="_")


def test_text_is_never_control(run: tuple[FillMask, Path]) -> None:
    """A special token's name in a text is text, here with characters that have no token."""
    with pytest.raises(UserError, match="no token for"):
        run[0].fill("<|mask|> ___")


def test_what_cannot_be_filled_in_is_said(run: tuple[FillMask, Path]) -> None:
    with pytest.raises(UserError, match="no ___ in the text"):
        run[0].fill("One, two")
    for settings in ({"context": 2}, {"val_fraction": 1.0}, {"dropout": 1.0}, {"preset": "old"}, {"size": "hugs"}):
        with pytest.raises(UserError, match=f"--{next(iter(settings)).replace('_', '-')}"):
            FillMask(FillMaskSettings(**settings))  # type: ignore[arg-type]


def test_lines_are_texts_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("".join(f"{'abcdefghij'[: 2 + n % 9]}\n" for n in range(20)) + "\n\n", "utf-8")
    task = FillMask(FillMaskSettings(line_by_line=True, context=6, width=16, depth=1, heads=2, tokenizer="char"))
    prepared = task.load(str(tmp_path / "lines.txt"))
    parts = prepared.train.take(prepared.train.all())
    assert all(len(part) <= 5 for part in parts)
    assert all(task.tokenizer.decode(part) in "abcdefghij" for part in parts)


def test_lines_of_what_a_data_set_holds_out_stay_held_out() -> None:
    text = TextData([Document("a:b", "one\n\ntwo"), Document("c", "three")], True, held_out=("a:b",))
    lines = by_lines(text)
    assert [(line.id, line.text) for line in lines.documents] == [("a:b:1", "one"), ("a:b:3", "two"), ("c:1", "three")]
    assert lines.held_out == ("a:b:1", "a:b:3")
    assert by_lines(TextData([Document("t", "one\ntwo")], held_out="tail")).held_out is None


def test_both_neighbors_by_hand() -> None:
    guess = NeighborModel.fit([np.array([0, 1, 0, 2]), np.array([2])], 4)
    unigram = np.array([3, 2, 3, 1]) / 9
    pairs = np.zeros((4, 4))
    pairs[[0, 1, 0], [1, 0, 2]] = 1
    p = (pairs + 5 * unigram) / (pairs.sum(1, keepdims=True) + 5)
    expected = [np.log(p[0]) + np.log(p[:, 2]), np.log(p[0]), np.log(unigram) + np.log(p[:, 2]), np.log(unigram)]
    found = guess.log_probs(np.array([0, 0, -1, -1]), np.array([2, -1, 2, -1]))
    np.testing.assert_allclose(found, [log_softmax(row) for row in expected], rtol=1e-5)
