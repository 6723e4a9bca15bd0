"""The task `word-vectors`: from a text to vectors, and what they are used for, from Python and the command line."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import tokenloom
from tokenloom.cli.main import main
from tokenloom.errors import UserError
from tokenloom.inspection.embeddings import EmbeddingSpace
from tokenloom.runs.session import start_session
from tokenloom.tasks.word_vectors import WordVectorSettings, WordVectorTask
from tokenloom.training.events import Baseline

TINY = {
    "dim": 12,
    "window": 3,
    "min_count": 2,
    "subsample": 0.0,
    "steps": 150,
    "lr": 0.03,
    "batch_size": 4,
    "threads": 1,
}


def two_topics(folder: Path) -> str:
    """Documents about ships, and documents about bread, which share no words but "the"."""
    random = np.random.default_rng(0)
    topics = [
        ["sail", "mast", "anchor", "deck", "harbour", "wave", "captain"],
        ["dough", "oven", "flour", "crust", "yeast", "baker", "butter"],
    ]
    lines = []
    for row in range(240):
        words = random.choice(topics[row % 2], 12).tolist()
        lines.append(json.dumps({"text": "the ".join(f"{word} " for word in words)}))
    path = folder / "topics.jsonl"
    path.write_text("\n".join(lines), "utf-8")
    return str(path)


@pytest.fixture(scope="module", params=["skip-gram", "cbow"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    data = two_topics(folder)
    tokenloom.train(data, task="word-vectors", out=folder / "run", model=request.param, **TINY)
    return folder / "run"


def test_words_of_a_topic_are_nearest_to_each_other(run: Path) -> None:
    task = tokenloom.load(run)
    assert isinstance(task, WordVectorTask)
    near = task.neighbors("Sail", 6)
    assert {word for word, _ in near} == {"mast", "anchor", "deck", "harbour", "wave", "captain"}
    cosines = [cosine for _, cosine in near]
    assert cosines == sorted(cosines, reverse=True)
    v = dict(zip(task.vocabulary.words, task.vectors.astype(np.float64), strict=True))
    a, b = v["sail"], v[near[0][0]]
    assert cosines[0] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-12)
    assert task.vectors.shape == (15, 12)


def test_metrics_do_not_depend_on_the_batch_size(run: Path) -> None:
    task = tokenloom.load(run)
    metrics = task.evaluate(batch_size=1)
    assert metrics == task.evaluate(batch_size=64)
    assert metrics["loss"] < math.log(2) * 6, "better than vectors of zeros"
    assert metrics["spearman_pmi"] > 0.3
    other = task.evaluate(two_topics(run.parent))
    assert other["num_targets"] > metrics["num_targets"]


def test_the_vectors_go_to_gensim_unchanged(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = pytest.importorskip("gensim.models")
    out = tmp_path / "v.txt"
    assert main(["export", str(run), "--format", "word2vec", "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    read = models.KeyedVectors.load_word2vec_format(str(out))
    task = tokenloom.load(run)
    assert isinstance(task, WordVectorTask)
    assert tuple(read.index_to_key) == task.vocabulary.words
    np.testing.assert_array_equal(read.vectors, task.vectors)
    theirs = read.most_similar("oven", topn=3)
    assert [word for word, _ in theirs] == [word for word, _ in task.neighbors("oven", 3)]
    answers = read.most_similar(positive=["sail", "oven"], negative=["dough"], topn=4)
    assert [word for word, _ in answers] == [word for word, _ in task.analogy("sail", "dough", "oven", 4)]
    assert main(["export", str(run), "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_neighbors_and_analogies_on_the_command_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(run), "neighbors", "sail", "oven", "--num-answers", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["neighbors"]
    assert {word: len(near) for word, near in found.items()} == {"sail": 2, "oven": 2}
    assert main(["inspect", str(run), "analogy", "sail", "mast", "oven"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("sail − mast + oven\n")
    assert len(printed.out.splitlines()) == 6
    assert "analogies are weak on little text" in printed.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect", "RUN", "neighbors", "harbor"], "'harbor' is not in the vocabulary of 15; did you mean 'harb"),
        (["inspect", "RUN", "neighbors", "a b"], "'a b' is 2 words here (a, b)"),
        (["inspect", "RUN", "neighbors"], "no word to find neighbors of"),
        (["inspect", "RUN", "neighbors", "sail", "--num-answers", "0"], "--num-answers 0: must be at least 1"),
        (["inspect", "RUN", "analogy", "sail", "mast"], "an analogy takes three words"),
        (["inspect", "RUN", "embeddings"], "--out: give the file to write"),
        (["inspect", "RUN", "embeddings", "--out", "m.png", "--num-words", "2"], "--num-words 2: must be at least 3"),
        (["export", "RUN", "--out", "no/such/folder/v.txt"], "cannot be written"),
        (["generate", "RUN"], "a word-vectors run cannot generate"),
    ],
)
def test_mistakes_are_named(run: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run) if word == "RUN" else word for word in words]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.strip().splitlines()) == 1


def test_a_map_is_drawn(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for look in ([], ["--dark"]):
        out = tmp_path / f"map{len(look)}.png"
        assert main(["inspect", str(run), "embeddings", "--out", str(out), *look]) == 0
        assert out.read_bytes().startswith(b"\x89PNG")
    assert main(["inspect", str(run), "embeddings", "sail", "oven", "the", "--out", str(tmp_path / "some.png")]) == 0


def test_the_plane_is_that_of_the_largest_spread() -> None:
    """Directions on a circle in the last two of five dimensions lose nothing."""
    angles = np.linspace(0, 6, 12)
    vectors = np.zeros((12, 5), np.float32)
    vectors[:, 3], vectors[:, 4] = np.cos(angles), np.sin(angles)
    words = [f"w{n:02}" for n in range(12)]
    space = EmbeddingSpace(words, vectors)
    plane = space.project(words)
    apart = np.linalg.norm(plane[:, None] - plane[None], axis=-1)
    np.testing.assert_allclose(apart, np.linalg.norm(vectors[:, None] - vectors[None], axis=-1), atol=1e-6)
    assert space.project(["w00"]).tolist() == [[0, 0]]


def test_the_baseline_is_what_constant_logits_reach(tmp_path: Path) -> None:
    """The best logits that depend on the predicted word alone, found by gradient descent, are no better."""
    torch = pytest.importorskip("torch")
    data = two_topics(tmp_path)
    fitting = start_session(data, task="word-vectors", out=tmp_path / "run", **{**TINY, "steps": 1})
    baseline = next(event for event in fitting if isinstance(event, Baseline))
    task = WordVectorTask(WordVectorSettings(window=3, min_count=2, subsample=0.0))
    prepared = task.load(data)
    counts = torch.tensor(task.vocabulary.counts, dtype=torch.float64)
    held = np.asarray(prepared.validation.ids)  # type: ignore[attr-defined]
    h = torch.from_numpy(np.bincount(held[held >= 0], minlength=len(counts)) / (held >= 0).sum())
    q = counts**0.75 / (counts**0.75).sum()
    p = counts / counts.sum()
    logits = torch.zeros_like(p, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=500, tolerance_grad=1e-12)

    def loss(share, logits):
        softplus = torch.nn.functional.softplus
        return (share * softplus(-logits)).sum() + 5 * (q * softplus(logits)).sum()

    def closure():
        optimizer.zero_grad()
        value = loss(p, logits)
        value.backward()
        return value

    optimizer.step(closure)
    assert baseline.value == pytest.approx(float(loss(h, logits.detach())), abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "--window 0"),
        ({"subsample": 1.5}, "--subsample 1.5"),
        ({"val_fraction": 1.0}, "--val-fraction 1.0"),
        ({"min_count": 0}, "--min-count 0"),
        ({"val_data": "x.txt", "val_fraction": 0.2}, "--val-fraction has no effect"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        WordVectorTask(WordVectorSettings(**settings))  # type: ignore[arg-type]


def test_a_text_of_rare_words_says_which_option_helps(tmp_path: Path) -> None:
    path = tmp_path / "rare.txt"
    path.write_text("every word here occurs but once", "utf-8")
    with pytest.raises(UserError, match=r"rare\.txt: of 5 words, 0 occur at least 5 times.*--min-count"):
        WordVectorTask().load(str(path))


def test_damaged_words_of_a_run_are_refused(run: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    text = (copy / "words.json").read_text("utf-8")
    (copy / "words.json").write_text(text.replace('"sail"', '"sale"'), "utf-8")
    with pytest.raises(UserError, match=r"words\.json: not the words that this run was trained with"):
        tokenloom.load(copy)
