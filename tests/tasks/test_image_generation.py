"""Image generation from the command line and in Python: tokenizers, classes, guidance, completions, refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

import tokenloom
from tokenloom.cli.main import main
from tokenloom.data.image_decoding import ImageFormat
from tokenloom.data.samples import generator_for
from tokenloom.errors import UserError
from tokenloom.runs.events import Planned, PrerequisiteEvent
from tokenloom.runs.session import start_session
from tokenloom.tasks import _image_tokens, image_generation
from tokenloom.tasks._image_tokens import UpperHalf, encode_upper_half, nearest_row
from tokenloom.tasks.image_generation import ImageGeneration
from tokenloom.tasks.image_tokenizer import ImageTokenizerTask
from tokenloom.tokenizers.palette import Palette
from tokenloom.training.batches import BatchContext
from tokenloom.training.events import Finished
from tokenloom.utils import progress as waiting

image = pytest.importorskip("PIL.Image")
TINY = {"width": 16, "depth": 1, "heads": 2, "batch_size": 16, "threads": 1, "steps": 4}


def bars(folder: Path, classes: tuple[str, ...] = ("down", "across"), side: int = 8, count: int = 12) -> str:
    """Images of bars: of the class `down` they stand, of `across` they lie."""
    for place, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            random = generator_for(place, number)
            pixels = random.integers(0, 60, (side, side)).astype(np.uint8)
            at = int(random.integers(side))
            (pixels if name == "across" else pixels.T)[at] = 250
            image.fromarray(pixels).save(folder / name / f"{number}.png")
    return str(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on images of bars: `pixels`, and `vq` with its prerequisite `vq-tokenizer`."""
    folder = tmp_path_factory.mktemp("images")
    data = bars(folder / "bars")
    settings = ["--task", "image-generation", "--threads", "1", "--steps", "12", "--quiet"]
    sizes = ["--width", "16", "--depth", "1", "--heads", "2", "--batch-size", "8"]
    pixels = ["--image-tokenizer", "palette", "--palette-size", "3", "--out", str(folder / "pixels")]
    vq = [
        "--codebook-size",
        "6",
        "--tokenizer-steps",
        "5",
        "--augmentations-per-image",
        "2",
        "--out",
        str(folder / "vq"),
    ]
    for own in (pixels, vq):
        assert main(["train", data, *settings, *sizes, *own]) == 0
    return folder


def test_the_stage_is_a_run_and_a_tokenizer(runs: Path) -> None:
    trained = tokenloom.load(runs / "vq-tokenizer")
    assert isinstance(trained, ImageTokenizerTask)
    tokenizer = trained.tokenizer
    config = json.loads((runs / "vq" / "config.json").read_text("utf-8"))
    assert config["assets"]["tokenizer"] == tokenizer.fingerprint()
    pixels = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8)).astype(np.uint8)
    codes = tokenizer.encode(pixels)
    assert codes.shape == (3, 16)
    assert tokenizer.decode(codes).shape == pixels.shape
    task = tokenloom.load(runs / "vq")
    assert isinstance(task, ImageGeneration)
    assert np.array_equal(task.tokenizer.encode(pixels), codes), "the run holds its own tokenizer"
    metrics = trained.evaluate()
    assert 1 <= metrics["perplexity"] <= 6 * metrics["codebook_usage"] <= 6
    assert metrics["mse"] > 0


def test_a_stage_comes_first_and_a_run_in_its_place_makes_none(runs: Path, tmp_path: Path) -> None:
    data, tokenizer = str(runs / "bars"), str(runs / "vq-tokenizer")
    events = list(start_session(data, task="image-generation", codebook_size=6, tokenizer_steps=2, **TINY))
    assert [type(event) for event in events if isinstance(event, PrerequisiteEvent | Finished)] == [
        *(PrerequisiteEvent, Finished, PrerequisiteEvent),
        Finished,
    ]
    with_run = start_session(data, task="image-generation", image_tokenizer=tokenizer, out=tmp_path / "run", **TINY)
    assert not any(isinstance(event, PrerequisiteEvent) for event in with_run)
    assert with_run.task.tokenizer.fingerprint() == tokenloom.load(tokenizer).tokenizer.fingerprint()
    dry = list(
        start_session(data, task="image-generation", codebook_size=6, dry_run=True, out=tmp_path / "dry", **TINY)
    )
    assert sum(isinstance(event, Planned) for event in dry) == 2
    assert not list(tmp_path.glob("dry*"))


def test_encoding_says_how_far_it_is(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Images encoded by an existing tokenizer show progress, but not with --quiet."""
    monkeypatch.setattr(waiting, "PATIENCE", 0.0)
    monkeypatch.setattr(_image_tokens, "CHUNK", 10)
    words = ["train", str(runs / "bars"), "--task", "image-generation", "--threads", "1", "--steps", "1"]
    words += ["--image-tokenizer", str(runs / "vq-tokenizer"), "--augmentations-per-image", "2"]
    words += ["--width", "16", "--depth", "1", "--heads", "2"]
    assert main([*words, "--dry-run"]) == 0
    assert "progress:          10 of 40 images encoded" in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "r"), "--quiet"]) == 0
    assert "so far" not in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "r"), "--data", str(runs / "bars")]) == 0
    assert "progress: 10 of 24 images encoded" in capsys.readouterr().err


def test_stopping_in_a_stage_stops_it_all(runs: Path, tmp_path: Path) -> None:
    seen = []
    fitting = start_session(
        str(runs / "bars"),
        task="image-generation",
        out=tmp_path / "run",
        stop=lambda: bool(seen),
        codebook_size=6,
        **TINY,
    )
    for event in fitting:
        seen.append(event)
    assert isinstance(seen[-1], Finished)
    assert seen[-1].reason == "interrupt"
    assert (tmp_path / "run-tokenizer" / "config.json").is_file()
    assert not (tmp_path / "run").exists()


def test_a_run_with_another_tokenizer_is_refused(runs: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(runs / "vq", tmp_path / "run")
    shutil.copy(runs / "vq-tokenizer" / "model.safetensors", tmp_path / "run" / "tokenizer.safetensors")
    tokenloom.load(tmp_path / "run")
    path = tmp_path / "run" / "tokenizer.json"
    path.write_text(path.read_text("utf-8").replace('"height": 8', '"height": 7'), "utf-8")
    with pytest.raises(UserError, match="not the tokenizer that this run was trained with"):
        tokenloom.load(tmp_path / "run")


@pytest.mark.parametrize("run", ["pixels", "vq"])
def test_a_sheet_of_images(run: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sheet.png"
    words = [
        "generate",
        str(runs / run),
        "--num-images",
        "6",
        "--out",
        str(out),
        "--class-name",
        "down",
        "--guidance-scale",
        "1.5",
    ]
    assert main([*words, "--top-k", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == ["down"] * 6
    assert np.asarray(image.open(out)).std() > 10


def test_images_depend_on_their_number_alone(runs: Path) -> None:
    task = tokenloom.load(runs / "pixels")
    assert isinstance(task, ImageGeneration)
    pixels, classes = task.generate(4, seed=3)
    assert classes == ["across", "down", "across", "down"]
    assert pixels.shape == (4, 1, 8, 8)
    assert len(np.unique(pixels)) <= 3, "the colors of the palette"
    again, _ = task.generate(2, seed=3)
    assert np.array_equal(again, pixels[:2])
    assert not np.array_equal(task.generate(4, seed=4)[0], pixels)


def test_completing_keeps_the_upper_half(runs: Path, tmp_path: Path) -> None:
    given = next((runs / "bars" / "across").iterdir())
    half = np.asarray(image.open(given))[:4]
    for run in ("pixels", "vq"):
        task = tokenloom.load(runs / run)
        assert isinstance(task, ImageGeneration)
        pixels, classes = task.generate(5, complete=half[None])
        assert classes == [""] * 5
        assert all(np.array_equal(one[0, :4], half) for one in pixels)
        assert len({one.tobytes() for one in pixels}) > 1
        assert (
            main(["generate", str(runs / run), "--complete", str(given), "--out", str(tmp_path / "x.png"), "-q"]) == 0
        )
    given = encode_upper_half(half[None], task.tokenizer, task.image_format)
    assert len(given.ids) == 8, "two of four rows of codes"
    assert given.partial_rows == 0


def test_a_row_of_codes_that_is_given_in_part_fits_what_is_given(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows of pixels of a standing bar: the second row of codes is drawn until its first pixels fit."""
    task = tokenloom.load(runs / "vq")
    assert isinstance(task, ImageGeneration)
    whole = np.asarray(image.open(next((runs / "bars" / "down").iterdir())))
    given = encode_upper_half(whole[None, :3], task.tokenizer, task.image_format)
    assert (len(given.ids), given.partial_rows) == (4, 1)
    far, decode, decoded = {}, task.tokenizer.decode, []

    def noted(ids: np.ndarray) -> np.ndarray:
        decoded.append(decode(ids))
        return decoded[-1].copy()

    monkeypatch.setattr(task.tokenizer, "decode", noted)
    for many in (1, 40):
        monkeypatch.setattr(image_generation, "CANDIDATES", many)
        pixels, _ = task.generate(12, complete=whole[None, :3])
        assert all(np.array_equal(one[0, :3], whole[:3]) for one in pixels)
        # As the codes have it, before the given pixels are put over it.
        far[many] = float(np.square(decoded[-1][:, 0, 2].astype(float) - whole[2]).mean())
    assert far[40] < far[1]
    assert np.array_equal(task.generate(2, complete=whole[None, :3])[0], pixels[:2]), "each by its number alone"


def test_the_nearest_row_by_hand() -> None:
    """A palette whose cells are taken for two pixels high: of the rows 3 3, 1 0 and 0 1, above which 0 0 is known."""

    class Tall(Palette):
        token_size = 2

        def decode(self, ids: np.ndarray) -> np.ndarray:
            return super().decode(ids.reshape(-1, 2, 2).repeat(2, 1).reshape(-1, 8))

    colors = np.array([[0.0], [0.2], [0.4], [1.0]], dtype=np.float32)
    tall = Tall(colors, 4, 2)
    tall_grid = UpperHalf(np.array([[[0, 0], [0, 0], [51, 10]]], dtype=np.uint8), [0, 0], 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tall, "grid", (2, 2))
        assert nearest_row(np.array([[3, 3], [1, 0], [0, 1]]), tall_grid, tall) == [1, 0]


def test_what_is_measured(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(runs / "pixels"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bits_per_token"] == pytest.approx(found["loss"] / np.log(2))
    assert found["bits_per_dim"] == pytest.approx(found["bits_per_token"]), "a gray pixel is one dimension"
    assert found["neighbor_bits"] > 0
    assert found["mse"] < 0.02
    assert main(["evaluate", str(runs / "vq")]) == 0
    out = capsys.readouterr().out
    assert "bits/token" in out
    assert "four neighbors" in out


def test_classes_are_hidden_as_often_as_asked(runs: Path) -> None:
    task = tokenloom.load(runs / "pixels")
    assert isinstance(task, ImageGeneration)
    samples = task.load(str(runs / "bars")).train
    starts = []
    for step in range(30):
        keys = samples.all()
        starts.append(task.collate(samples.take(keys), BatchContext(0, step, keys))["tokens"].tokens[:, 0].numpy())
    hidden = np.concatenate(starts) == task.config.null_class
    assert 0.05 < hidden.mean() < 0.17
    measured = task.collate(samples.take(keys), BatchContext(0, -1, keys))["tokens"].tokens[:, 0]
    assert not bool((measured == task.config.null_class).any())


def line_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command is refused."""
    assert main(words) == 2
    err = capsys.readouterr().err.strip()
    assert "\n" not in err
    return err


def test_what_cannot_be_made_is_refused(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = str(runs / "pixels"), ["--out", str(tmp_path / "x.png")]
    assert "no such class; did you mean 'down'?" in line_of(["generate", run, "--class-name", "dwn", *out], capsys)
    assert "--num-images 0" in line_of(["generate", run, "--num-images", "0", *out], capsys)
    assert "--guidance-scale -1" in line_of(["generate", run, "--guidance-scale", "-1", *out], capsys)
    assert "temperature -1" in line_of(["generate", run, "--temperature", "-1", *out], capsys)
    wrong = tmp_path / "wrong.png"
    image.fromarray(np.zeros((9, 8), dtype=np.uint8)).save(wrong)
    found = line_of(["generate", run, "--complete", str(wrong), *out], capsys)
    assert "has 8 × 9 pixels; this run generates images of 8 × 8" in found
    assert "No such file" in line_of(["generate", run, "--complete", str(tmp_path / "none.png"), *out], capsys)
    assert "cannot be read (Is a directory)" in line_of(["generate", run, "--complete", str(tmp_path), *out], capsys)
    assert "--num-images 10001: must be from 1 to 10,000" in line_of(
        ["generate", run, "--num-images", "10001", *out], capsys
    )
    assert "give a name that ends in .png" in line_of(["generate", run, "--out", "sheet.jpg"], capsys)
    assert "it is a folder" in line_of(["generate", run, "--out", str(tmp_path)], capsys)
    below = str(wrong / "deeper" / "x.png")
    assert "wrong.png is a file" in line_of(["generate", run, "--out", below], capsys)
    assert "--num-images 5001" in line_of(
        ["reconstruct", f"{runs / 'vq-tokenizer'}", "--num-images", "5001", *out], capsys
    )
    (tmp_path / "text.png").write_text("hello", "utf-8")
    assert "text.png" in line_of(["generate", run, "--complete", str(tmp_path / "text.png"), *out], capsys)
    top = next((runs / "bars" / "down").iterdir())
    found = line_of(["generate", run, "--guidance-scale", "2", "--complete", str(top), *out], capsys)
    assert "no class is given (--class-name)" in found
    assert not (tmp_path / "x.png").exists()


def test_a_larger_image_is_completed_as_it_would_be_read(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the same proportions, it is brought to the size of the run, which is told."""
    small = next((runs / "bars" / "across").iterdir())
    image.open(small).resize((16, 16), image.Resampling.NEAREST).save(tmp_path / "large.png")
    words = ["generate", "--num-images", "1", str(runs / "pixels"), "--out", str(tmp_path / "x.png")]
    assert main([*words, "--complete", str(tmp_path / "large.png")]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("1 image:")
    assert "has 16 × 16 pixels: resized to 8 × 8" in told.err


def test_guidance_needs_hidden_classes(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = str(runs / "bars"), str(tmp_path / "run")
    common = {"task": "image-generation", "image_tokenizer": "palette", "palette_size": 3, **TINY}
    tokenloom.train(data, out=out, condition_dropout=0.0, **common)
    assert "--condition-dropout 0" in line_of(["generate", out, "--guidance-scale", "2"], capsys)
    tokenloom.train(data, out=out, overwrite=True, unconditional=True, **common)
    assert "trained without classes" in line_of(["generate", out, "--guidance-scale", "2"], capsys)
    assert "trained without classes" in line_of(["generate", out, "--class-name", "down"], capsys)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["--palette-size", "4"], "--palette-size has no effect with --image-tokenizer vq"),
        (
            ["--image-tokenizer", "palette", "--codebook-size", "4"],
            "--codebook-size has no effect with --image",
        ),
        (["--image-tokenizer", "palette", "--palette-size", "1"], "--palette-size 1: must be from 2"),
        (["--codebook-size", "1"], "--codebook-size 1: must be from 2"),
        (["--downsample-factor", "3"], "--downsample-factor 3: must be 2"),
        (["--width", "10"], "--width 10: must be divisible"),
        (["--condition-dropout", "1"], "--condition-dropout 1"),
        (["--image-tokenizer", "runs/none"], "runs/none: there is no such run"),
    ],
)
def test_settings_that_cannot_be(
    settings: list[str], why: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", str(runs / "bars"), "--task", "image-generation", "--out", str(out), "-q", *settings]
    assert why in line_of(words, capsys)
    assert not list(tmp_path.iterdir())


def test_a_run_of_another_task_or_for_other_images_is_no_tokenizer(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(runs / "bars"), "--task", "image-generation", "--out", str(tmp_path / "run"), "-q"]
    found = line_of([*words, "--image-tokenizer", str(runs / "pixels")], capsys)
    assert "is an image-generation run, and an image-tokenizer run is needed" in found
    found = line_of([*words, "--image-tokenizer", str(runs / "vq-tokenizer"), "--image-size", "12"], capsys)
    assert "is for images of 8 × 8 pixels" in found
    found = line_of([*words, "--image-tokenizer", str(runs / "vq-tokenizer"), "--color-mode", "rgb"], capsys)
    assert "--color-mode rgb: the tokenizer of --image-tokenizer" in found


def test_codes_stand_beside_what_they_were(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs.png"
    assert main(["reconstruct", str(runs / "vq-tokenizer"), "--num-images", "2", "--out", str(out)]) == 0
    assert np.asarray(image.open(out)).shape[1] > 2 * 112


def test_a_palette_decides_whole_rows_of_an_upper_half() -> None:
    palette = Palette.train(np.arange(20, dtype=np.uint8).reshape(1, 1, 5, 4), 20)
    top = np.arange(8, dtype=np.uint8).reshape(1, 2, 4)
    given = encode_upper_half(top, palette, ImageFormat((5, 4), "gray"))
    assert (given.ids, given.partial_rows) == (list(range(8)), 0)
    with pytest.raises(UserError, match="upper half of shape"):
        encode_upper_half(top[:, :, :3], palette, ImageFormat((5, 4), "gray"))
