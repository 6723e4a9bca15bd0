"""Train four small models and draw the figures of the README: `python docs/figures/make.py`, about 12 minutes."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tokenloom.cli.main import main

HERE = Path(__file__).resolve().parent


def run(*words: str) -> None:
    """Run one command of the command line, and stop at the first that fails."""
    print("tokenloom", *words, flush=True)
    if code := main(words):
        sys.exit(code)


def make(folder: Path) -> None:
    """Draw all figures; runs are kept in `folder` meanwhile."""
    gpt, models, digits, generator = (str(folder / name) for name in ("gpt", "models", "digits", "generator"))
    run("train", "python-docs", "--size", "tiny", "--minutes", "2", "--out", gpt)
    shutil.copy(Path(gpt, "loss.png"), HERE / "loss.png")

    names = "unigram,bigram,ngram,rnn,lstm,gpt"
    run("sweep", "python-docs", "--models", names, "--size", "nano", "--minutes", "0.5", "--out", models)
    shutil.copy(Path(models, "sweep.png"), HERE / "models.png")

    run("train", "digits", "--task", "image-classification", "--out", digits)
    image = folder / "digit.png"
    write_digit(image)
    run("inspect", digits, "attention", str(image), "--out", str(HERE / "attention.png"))

    run("train", "digits", "--task", "image-generation", "--out", generator)
    run("generate", generator, "--num-images", "40", "--guidance-scale", "2", "--out", str(HERE / "digits.png"))


def write_digit(path: Path) -> None:
    """Write one image of scikit-learn's digits as a file."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    pixels = load_digits().images[13]
    Image.fromarray((pixels * 255 / 16).round().astype(np.uint8)).save(path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch))
