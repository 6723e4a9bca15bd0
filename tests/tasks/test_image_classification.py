import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.kit_examples import stripes

import tokenloom
from tokenloom.cli.main import main
from tokenloom.data.images import read_images
from tokenloom.errors import UserError
from tokenloom.evaluation.baselines import svm
from tokenloom.evaluation.baselines.svm import block_size, image_features, svm_accuracy
from tokenloom.inspection.attention import rollout
from tokenloom.plotting import loss_curve as curves
from tokenloom.plotting.heatmaps import draw_overlays
from tokenloom.tasks import image_classification
from tokenloom.tasks._images import parse_size
from tokenloom.tasks.image_classification import ImageClassification, ImageClassificationSettings
from tokenloom.training.batches import BatchContext

TINY: dict[str, Any] = {"task": "image-classification", "width": 16, "depth": 1, "heads": 2, "threads": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that tells horizontal from vertical stripes, and the folder it was trained on."""
    folder = tmp_path_factory.mktemp("images")
    data = stripes(folder)
    tokenloom.train(data, out=folder / "run", steps=60, patch_size="4", pool="cls", translate=0.0, rotate=0.0, **TINY)
    return folder / "run", Path(data)


def test_a_folder_of_classes_is_learned_and_used(run: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder, data = run
    task: Any = tokenloom.load(folder)
    assert isinstance(task, ImageClassification)
    files = [str(path) for path in sorted(data.rglob("*.pgm"))]
    truth = [Path(file).parent.name for file in files]
    found = task.predict(files)
    right = [one["label"] == label for one, label in zip(found, truth, strict=True)]
    assert np.mean(right) >= 0.9
    assert main(["predict", str(folder), *files[:2], "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["predictions"]
    assert [answer["file"] for answer in answers] == files[:2]
    assert answers[0]["probabilities"] == pytest.approx(found[0]["probabilities"], abs=1e-5)
    assert main(["predict", str(folder), files[0]]) == 0
    assert capsys.readouterr().out.startswith("label       probability")
    assert {"confusion.png", "confusion-dark.png", "tokenizer.json"} <= {path.name for path in folder.iterdir()}


def test_prediction_reads_images_as_training_does(run: tuple[Path, Path]) -> None:
    """Files read one by one equal the images read as data."""
    task: Any = tokenloom.load(run[0])
    data = read_images(str(run[1]))
    pixels = task.read_files([str(run[1] / id) for id in data.ids])
    np.testing.assert_array_equal(pixels.numpy(), data.pixels)


def test_evaluate_has_the_tables(run: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run[0]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    counts = np.array(found["confusion"]["counts"])
    assert counts.sum() == found["num_images"] == 5
    assert found["accuracy"] == counts.trace() / 5
    assert main(["evaluate", str(run[0])]) == 0
    assert "images:                     5\n" in capsys.readouterr().out


def test_other_data_go_by_the_names_of_classes(run: tuple[Path, Path], tmp_path: Path) -> None:
    """A class that the run does not know counts as wrong, and the numbers of the others do not shift."""
    task: Any = tokenloom.load(run[0])
    shutil.copytree(run[1] / "vertical", tmp_path / "d" / "vertical")
    shutil.copytree(run[1] / "horizontal", tmp_path / "d" / "across")
    samples = task.load(str(tmp_path / "d"), for_evaluation=True).validation
    assert sorted(set(samples.labels.tolist())) == [-100, 1]
    counts = np.array(task.evaluate(str(tmp_path / "d"))["confusion"]["counts"])
    assert counts.shape == (3, 3)
    assert counts[2].sum() == 8


def test_other_data_without_a_known_class_are_refused(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run[1] / "vertical", tmp_path / "d" / "upright")
    shutil.copytree(run[1] / "vertical", tmp_path / "flat")
    for name, words in (
        ("d", "has labels upright; the classes of this run are horizontal, vertical"),
        ("flat", "no labels"),
    ):
        assert main(["evaluate", str(run[0]), "--data", str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "d" / "upright" / "cut.png").write_bytes(b"")
    assert main(["evaluate", str(run[0]), "--data", str(tmp_path / "d")]) == 2
    assert "--skip-corrupt" not in capsys.readouterr().err, "which evaluate does not have"


def test_augmentation_is_of_training_alone_and_keyed_by_sample(run: tuple[Path, Path]) -> None:
    task: Any = tokenloom.load(run[0])
    samples = task.load(str(run[1])).train
    keys = samples.all()[:6]

    def batch(keys: Any, step: int) -> torch.Tensor:
        return task.collate(samples.take(keys), BatchContext(7, step, keys))["image"].tokens

    plain = batch(keys, -1)
    torch.testing.assert_close(plain, task.patches.encode(torch.from_numpy(samples.pixels[keys])))
    assert not torch.equal(batch(keys, 3), plain)
    assert not torch.equal(batch(keys, 3), batch(keys, 4))
    assert torch.equal(batch(keys, 3)[[4, 1]], batch(keys[[4, 1]], 3))


def test_attention_is_drawn(run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = next((run[1] / "horizontal").iterdir())
    out = tmp_path / "attention.png"
    assert main(["inspect", str(run[0]), "attention", str(file), "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert out.stat().st_size > 5000
    assert set(found["maps"]) == {"layer 1, mean", "rollout", "head 1", "head 2"}
    heads = np.array([found["maps"]["head 1"], found["maps"]["head 2"]])
    assert heads.shape == (2, 2, 2)
    assert bool((heads >= 0).all())
    assert bool((heads.sum((1, 2)) < 1).all()), "a share is the class token's own"
    np.testing.assert_allclose(found["maps"]["layer 1, mean"], heads.mean(0), atol=1e-6)
    # One layer: half of the mean attention, the other half being the residual connection.
    np.testing.assert_allclose(found["maps"]["rollout"], heads.mean(0) / 2, atol=1e-6)
    for words, message in ((["--layer", "2"], "layers 1 to 1"), ([], "no image to inspect")):
        assert main(["inspect", str(run[0]), "attention", *([str(file)] if words else []), *words]) == 2
        assert message in capsys.readouterr().err


def test_rollout_by_hand() -> None:
    """Two tokens, two layers, one head: A₁ = A₂ = [[0, 1], [1, 0]], so that each layer is [[½, ½], [½, ½]]."""
    swap = torch.tensor([[[[0.0, 1], [1, 0]]]])
    torch.testing.assert_close(rollout([swap, swap])[0], torch.full((2, 2), 0.5))
    first = torch.tensor([[[[1.0, 0], [1, 0]]]])
    # [[½, ½], [½, ½]] · [[1, 0], [½, ½]] = [[¾, ¼], [¾, ¼]]
    torch.testing.assert_close(rollout([first, swap])[0], torch.tensor([[0.75, 0.25], [0.75, 0.25]]))


def test_an_overlay_shows_image_and_maps(tmp_path: Path) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    weights = [[0.0, 0.5], [0.25, 1.0]]
    figure = draw_overlays(pixels, {"one": weights}, tmp_path / "o.png", title="cat $5", dark=True)
    first, second = figure.axes
    assert (first.get_title(), second.get_title()) == ("cat $5", "one")
    np.testing.assert_array_equal(first.images[0].get_array(), pixels.transpose(1, 2, 0))
    np.testing.assert_allclose(second.images[1].get_array(), weights)
    assert second.get_xlabel() == "0.000 to 1.000"


def test_the_baseline_learns() -> None:
    random = np.random.Generator(np.random.Philox(0))
    labels = np.arange(60) % 2
    pixels = (random.integers(0, 100, (60, 1, 4, 4)) + 100 * labels[:, None, None, None]).astype(np.uint8)
    found = svm_accuracy(pixels[:40], labels[:40], pixels[40:], labels[40:])
    assert found is not None
    assert found[0] >= 0.95
    assert svm_accuracy(pixels[:4:2], labels[:4:2], pixels, labels) is None
    # Cached by all data: another label is another key.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(svm, "_fit", lambda *given: (0.0, 0.0, 0.0))
        assert svm_accuracy(pixels[:40], labels[:40], pixels[40:], labels[40:]) == found
        assert svm_accuracy(pixels[:40], 1 - labels[:40], pixels[40:], labels[40:]) == (0.0, 0.0, 0.0)
        svm._results.popitem()


def test_large_images_are_averaged_for_the_baseline() -> None:
    """32 × 32 in color stay as they are, and 65 × 33 gray; 65 × 65 in color are averaged over 3 × 3."""
    assert (block_size((3, 32, 32)), block_size((1, 65, 33)), block_size((3, 65, 65))) == (1, 1, 3)
    pixels = np.zeros((1, 3, 65, 65), dtype=np.uint8)
    pixels[0, 1, :3, :3] = np.arange(0, 90, 10).reshape(3, 3)
    pixels[0, 2, 63:, 63:] = 255
    values = image_features(pixels).reshape(3, 22, 22)
    assert values[1, 0, 0] == pytest.approx(40 / 255)
    assert values[2, 21, 21] == pytest.approx(1)
    assert values.sum() == pytest.approx(1 + 40 / 255)
    small = np.arange(4, dtype=np.uint8).reshape(1, 1, 2, 2)
    np.testing.assert_allclose(image_features(small), np.arange(4)[None] / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"patch_size": "3"}, "--patch-size 3: must divide the height of 8 pixels: 1, 2, 4, 8"),
        ({"patch_size": "x"}, "--patch-size x"),
        ({"image_size": "9x8x7"}, "--image-size 9x8x7"),
        ({"width": 15, "heads": 2}, "--width 15"),
        ({"width": 6, "heads": 2, "positions": "sinusoidal-2d"}, "divisible by 4"),
        ({"model": "cnn", "patch_size": "2"}, "--patch-size has no effect with --model cnn"),
        ({"model": "cnn", "norm": "rms"}, "--norm rms has no effect with --model cnn"),
        ({"norm": "batch"}, "no norm 'batch': there are layer, rms"),
        ({"translate": -0.1}, "--translate -0.1"),
        ({"hflip": 2.0}, "--hflip 2"),
        ({"dropout": 1.0}, "--dropout 1"),
        ({"max_megapixels": 0.0}, "--max-megapixels 0"),
        ({"val_fraction": 1.0}, "--val-fraction 1"),
        ({"val_fraction": 0.5, "val_data": "x"}, "no effect with --val-data"),
    ],
)
def test_what_cannot_be_is_refused(run: tuple[Path, Path], settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ImageClassification(ImageClassificationSettings(**settings)).load(str(run[1]))


def test_many_images_are_augmented_less(run: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the square root of the epochs: √(8 / 60) of the full strength; what was given stays."""

    def augmentation(**settings: float) -> tuple[float, ...]:
        task = ImageClassification(ImageClassificationSettings(**settings))  # type: ignore[arg-type]
        task.load(str(run[1]))
        how = task.settings
        return how.translate, how.rotate, how.scale, how.elastic

    assert augmentation() == (0.07, 10.0, 0.1, 0.04)
    monkeypatch.setattr(image_classification, "IMAGES_SEEN", 1)
    assert augmentation() == pytest.approx((0.0256, 3.65, 0.0365, 0.0146), rel=0.03)
    assert augmentation(rotate=7.0)[1] == 7.0


def test_the_plan_counts_images(run: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", str(run[1]), "--task", "image-classification", "--width", "16", "--depth", "1", "--threads", "1"]
    assert main([*words, "--steps", "3", "--batch-size", "8", "--dry-run"]) == 0
    told = capsys.readouterr().err
    assert "images/s measured" in told
    assert "3 steps of 8 images" in told


@pytest.mark.parametrize(("model", "sequence"), [("vit", 16), ("cnn", 64)])
def test_info_reckons_with_what_the_plan_does(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, sequence: int
) -> None:
    words = ["train", str(run[1]), "--task", "image-classification", "--model", model, "--threads", "1", "--quiet"]
    assert main([*words, "--steps", "1", "--width", "16", "--depth", "1", "--out", str(tmp_path / "r"), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["flops_per_token"]
    assert tokenloom.load(tmp_path / "r").load(str(run[1])).sequence_length == sequence
    assert main(["info", str(tmp_path / "r"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["flops_per_token"] == planned


@pytest.mark.parametrize("words", [["--optimizer", "muon"], ["--activation-checkpointing"]])
def test_settings_of_transformers_are_refused_for_others(
    run: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    command = ["train", str(run[1]), "--task", "image-classification", "--model", "cnn", "--out", str(tmp_path / "r")]
    assert main([*command, *words]) == 2
    assert f"{' '.join(words)} has no effect" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_the_curve_is_in_nats_per_image(run: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(curves, "draw_loss_curve", lambda *args, unit, **options: drawn.append(unit))
    tokenloom.train(run[1], out=run[0].with_name("other"), steps=1, **TINY)
    assert drawn == ["nats/image"]


def test_one_class_is_refused_and_so_is_none(run: tuple[Path, Path], tmp_path: Path) -> None:
    for folder in (tmp_path / "one", tmp_path / "flat"):
        shutil.copytree(run[1] / "horizontal", folder / "horizontal" if folder.name == "one" else folder)
        with pytest.raises(UserError, match="images of at least two classes are needed"):
            ImageClassification().load(str(folder))


def test_a_run_is_gone_on_from_at_another_resolution(run: tuple[Path, Path], tmp_path: Path) -> None:
    """Positions are resized, all else is copied, the head of the same classes too."""
    out = tmp_path / "larger"
    init: dict[str, Any] = {"task": "image-classification", "init_from": str(run[0]), "steps": 1}
    tokenloom.train(run[1], image_size="16", lr=0.0, out=out, **init)
    large, small = tokenloom.load(out), tokenloom.load(run[0])
    assert isinstance(large, ImageClassification)
    assert large.patches.grid == (4, 4)
    assert large.patches.mean == small.patches.mean  # type: ignore[attr-defined]
    ours, theirs = large.model.state_dict(), small.model.state_dict()
    assert ours["backbone.positions.table"].shape == (17, 16)
    assert torch.equal(ours["backbone.positions.table"][0], theirs["backbone.positions.table"][0])
    assert torch.equal(ours["head.weight"], theirs["head.weight"])
    with pytest.raises(UserError, match="--image-size 18: must be a multiple of the patches of 4 × 4 pixels"):
        tokenloom.train(run[1], image_size="18", out=tmp_path / "no", **init)
    with pytest.raises(UserError, match="--patch-size 2: the run of --init-from has 4x4"):
        tokenloom.train(run[1], patch_size="2", out=tmp_path / "no", **init)


def test_a_damaged_file_to_predict_is_named(run: tuple[Path, Path], tmp_path: Path) -> None:
    task: Any = tokenloom.load(run[0])
    (tmp_path / "page.png").write_text("<html>")
    with pytest.raises(UserError, match=r"page.png': no image of a known format"):
        task.predict(str(tmp_path / "page.png"))
    with pytest.raises(UserError, match="No such file"):
        task.predict(str(tmp_path / "none.png"))


def test_a_tokenizer_that_is_another_is_refused(run: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(run[0], tmp_path / "run")
    kept = tmp_path / "run" / "tokenizer.json"
    kept.write_text(kept.read_text().replace('"mean": [', '"mean": [0.5, '))
    with pytest.raises(UserError, match=r"tokenizer.json"):
        tokenloom.load(tmp_path / "run")


def test_sizes() -> None:
    assert parse_size("patch_size", "7") == (7, 7)
    assert parse_size("patch_size", "28x20") == parse_size("patch_size", "28×20") == (28, 20)
