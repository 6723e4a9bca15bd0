"""The tiny trainings of the equality kit, per task, and the paths that do not apply to them, each with the reason.

A task that is not listed here fails: see `test_every_task_is_in_the_kit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tokenloom.models.batch import Batch
from tokenloom.models.protocols import StepModel

STEPWISE = ("cached = uncached", "selected = alone", "streamed = whole")
PADDED = ("padded left = unpadded", "padded right = unpadded")
STEPS = ("accumulated = whole", "2 processes = 1", "resumed = straight")


@dataclass(frozen=True)
class Example:
    """A training of a second or so: data and settings by name. without: paths that this kind of model lacks, and why.

    fitted: the model is fitted in one pass, without steps.
    """

    data: str
    settings: dict[str, Any]
    without: Mapping[str, str] = field(default_factory=dict)
    fitted: bool = False


def trained_model(task: Any, batch: Batch) -> StepModel:
    """Return the model of a task, which needs no batch to generate."""
    model: StepModel = task.model
    return model


@dataclass(frozen=True)
class Kit:
    """The examples of a task. without: paths that the task lacks, and why.

    stream: the stream that generation extends. decoder: the model as a `StepModel`, for the rows of a batch.
    """

    examples: Callable[[Path], Mapping[str, Example]]
    without: Mapping[str, str] = field(default_factory=dict)
    stream: str = "text"
    decoder: Callable[[Any, Batch], StepModel] = trained_model


def rhyme(folder: Path, times: int = 12) -> str:
    """Write a text; return its path."""
    path = folder / "rhyme.txt"
    path.write_text("One, two, buckle my shoe.\nThree, four, knock at the door.\n" * times, "utf-8")
    return str(path)


def text_generation(folder: Path) -> Mapping[str, Example]:
    text = rhyme(folder)
    recurrent = {"context": 16, "width": 16, "batch_size": 4}
    tiny = {"context": 16, "width": 16, "depth": 2, "heads": 2, "batch_size": 4}
    no_attention = {"fused = explicit": "it has no attention"}
    fitted = {
        **no_attention,
        "compiled = eager": "there is nothing to compile in tables",
        **dict.fromkeys(STEPS, "it is fitted in one pass, without steps"),
    }
    as_lstm = dict.fromkeys(
        ("compiled = eager", "2 processes = 1"), "differs from lstm in the cell alone, tested there"
    )
    return {
        "modern": Example(text, tiny),
        "classic": Example(text, {**tiny, "preset": "classic"}),
        "sliding window": Example(text, {**tiny, "sliding_window": 8, "kv_heads": 1}),
        "ngram": Example(text, {"model": "ngram", "ngram_order": 3, "context": 16}, fitted, fitted=True),
        "bigram": Example(text, {"model": "bigram", "context": 16}, fitted, fitted=True),
        "rnn": Example(text, {**recurrent, "model": "rnn"}, {**no_attention, **as_lstm}),
        "lstm": Example(text, {**recurrent, "model": "lstm", "depth": 2}, no_attention),
        "gru": Example(text, {**recurrent, "model": "gru", "burn_in": 0}, {**no_attention, **as_lstm}),
    }


ENCODER = dict.fromkeys(STEPWISE, "an encoder reads a text at once, and does not generate")
TINY_ENCODER = {"context": 16, "width": 16, "depth": 2, "heads": 2, "batch_size": 4, "tokenizer": "char"}


def fill_mask(folder: Path) -> Mapping[str, Example]:
    lines = folder / "lines.txt"
    lines.write_text("".join(f"{'One, two, three, four, five'[: 5 + n]}.\n" for n in range(20)), "utf-8")
    by_line = {**TINY_ENCODER, "context": 32, "preset": "classic", "line_by_line": True}
    return {"windows": Example(rhyme(folder), TINY_ENCODER), "lines": Example(str(lines), by_line)}


def text_classification(folder: Path) -> Mapping[str, Example]:
    words = {"fruit": "apple pear plum fig", "beast": "cow goat hen mule", "tool": "saw axe nail file"}
    rows = ["text,label"]
    for label, names in words.items():
        some = names.split()
        rows += [f"the {some[n % 4]} and {some[(n * 3 + 1) % 4]} {'now ' * (n % 5)}{n},{label}" for n in range(14)]
    table = folder / "things.csv"
    table.write_text("\n".join(rows), "utf-8")
    without = {
        "fused = explicit": "naive Bayes has no attention",
        **dict.fromkeys(STEPS, "naive Bayes is fitted in one pass"),
    }
    return {
        "encoder": Example(str(table), TINY_ENCODER),
        "naive-bayes": Example(str(table), {"model": "naive-bayes"}, without, fitted=True),
    }


def token_classification(folder: Path) -> Mapping[str, Example]:
    rows = ["Anna B-PER", "Maria I-PER", "met O", "Bob B-PER", "in O", "Rome B-LOC", "again O"]
    names = folder / "names.conll"
    names.write_text("\n\n".join("\n".join(rows[n % 3 : 4 + n % 4] + rows[: n % 5]) for n in range(24)), "utf-8")
    return {"names": Example(str(names), {**TINY_ENCODER, "context": 24})}


def translation(folder: Path) -> Mapping[str, Example]:
    table = folder / "reversed.csv"
    words = [f"{'abcdefgh'[i % 8]}{'xyz'[i % 3]}{'mno'[i % 5 % 3]}"[: 2 + i % 2] + "k" * (i % 4) for i in range(48)]
    table.write_text("source,target\n" + "".join(f"{w},{w[::-1]}\n" for w in words), "utf-8")
    tiny = {"width": 16, "depth": 2, "batch_size": 8}
    return {
        "transformer": Example(str(table), {**tiny, "heads": 2}),
        "rnn": Example(str(table), {**tiny, "model": "rnn", "separate_vocab": True}),
        "rnn-attention": Example(str(table), {**tiny, "model": "rnn-attention"}),
    }


def image_classification(folder: Path) -> Mapping[str, Example]:
    table = stripes(folder)
    tiny = {"width": 16, "depth": 2, "batch_size": 4}
    without = {
        **dict.fromkeys(PADDED, "a convolutional network reads whole images only"),
        "fused = explicit": "a convolutional network has no attention",
    }
    mean = {"heads": 2, "pool": "mean", "positions": "sinusoidal-2d", "dropout": 0.1, "hflip": 0.5}
    return {
        "vit": Example(table, {**tiny, "heads": 2, "patch_size": "2x4"}),
        "vit, mean": Example(table, {**tiny, **mean}),
        "cnn": Example(table, {**tiny, "width": 8, "model": "cnn", "translate": 0.0}, without),
    }


def stripes(folder: Path) -> str:
    """Write images of 8 × 8 pixels in two folders, horizontal and vertical stripes with noise; return the folder."""
    random = np.random.Generator(np.random.Philox(0))
    root = folder / "stripes"
    for number in range(24):
        image = random.integers(0, 60, (8, 8))
        image[number % 2 :: 2] += 150
        horizontal = number % 3 == 0
        path = root / ("horizontal" if horizontal else "vertical") / f"{number}.pgm"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"P5 8 8 255\n" + (image if horizontal else image.T).astype(np.uint8).tobytes())
    return str(root)


def image_tokenizer(folder: Path) -> Mapping[str, Example]:
    settings = {"codebook_size": 8, "hidden_channels": 8, "code_dim": 4, "batch_size": 8}
    return {"vqvae": Example("digits", settings)}


def image_generation(folder: Path) -> Mapping[str, Example]:
    sizes = {"width": 16, "depth": 2, "heads": 2, "batch_size": 8}
    vq = {"image_tokenizer": "vq", "codebook_size": 8, "tokenizer_steps": 3, "augmentations_per_image": 2}
    return {
        "palette": Example("digits", {**sizes, "image_tokenizer": "palette", "palette_size": 4}),
        "vq": Example("digits", {**sizes, **vq}),
    }


def word_vectors(folder: Path) -> Mapping[str, Example]:
    code = folder / "code"
    code.mkdir(exist_ok=True)
    for number in range(6):
        line = f"def getItem_{number}(selfName, item_key):\n    return selfName.items[item_key]\n"
        (code / f"{number}.py").write_text(line * 12, "utf-8")
    tiny = {"dim": 8, "window": 3, "min_count": 2, "subsample": 0.1, "batch_size": 4}
    return {
        "skip-gram": Example(rhyme(folder, 40), tiny),
        "cbow": Example(str(code), {**tiny, "model": "cbow", "word_rule": "code"}),
    }


WHOLE_IMAGE = {
    **dict.fromkeys(PADDED, "all images have one size"),
    "packed = alone": "each image is a row of its own",
}
NO_GENERATION = dict.fromkeys(STEPWISE, "does not generate")

KITS: Mapping[str, Kit] = {
    "text-generation": Kit(text_generation),
    "fill-mask": Kit(fill_mask, ENCODER),
    "text-classification": Kit(
        text_classification, {**ENCODER, "packed = alone": "a row has one label, so that it cannot hold several texts"}
    ),
    "token-classification": Kit(token_classification, ENCODER),
    "translation": Kit(
        translation,
        {
            "packed = alone": "each target has a source of its own",
            "streamed = whole": "a translation is returned as a whole",
        },
        stream="target",
        decoder=lambda task, batch: task.model.decoder_of(batch),
    ),
    "image-classification": Kit(
        image_classification,
        {**NO_GENERATION, "packed = alone": "a row has one label, so that it cannot hold several images"},
    ),
    "image-tokenizer": Kit(image_tokenizer, {**NO_GENERATION, **WHOLE_IMAGE, "fused = explicit": "has no attention"}),
    "image-generation": Kit(
        image_generation, {**WHOLE_IMAGE, "streamed = whole": "an image is shown when it is whole"}, stream="tokens"
    ),
    "word-vectors": Kit(
        word_vectors,
        {
            **NO_GENERATION,
            **dict.fromkeys(PADDED, "rows are padded where words are left out, before windows are made"),
            "packed = alone": "rows are cut from one sequence of documents, whose windows are separate",
            "fused = explicit": "has no attention",
        },
    ),
}
