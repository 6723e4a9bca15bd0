"""A training step of an image classifier, against the ViT of `transformers` of the same shape; VQ codes against pixels.

Gray images of 28 × 28 pixels in patches of 7 × 7, four layers of width 96, 64 images per step; float32, no dropout, no
augmentation, no evaluation. Both use AdamW; the defaults of the command line, with Muon for the matrices, are another
row. Each side runs in a process of its own.

Images are generated with the default sizes of `image-generation` for 28 × 28 pixels: 7 × 7 codes of 128, or 784 pixels
of 16 gray levels. Weights are untrained, which does not change the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from benchmarks.harness import Row, Setting, at_least, compare
from benchmarks.isolated import in_subprocess
from tokenloom.config import fill
from tokenloom.tasks.image_classification import ImageClassification, ImageClassificationSettings
from tokenloom.tasks.image_generation import ImageGeneration, ImageGenerationSettings
from tokenloom.tasks.image_tokenizer import ImageTokenizerSettings, ImageTokenizerTask
from tokenloom.training.batches import Batches
from tokenloom.training.device import keep_freed_memory
from tokenloom.training.loop import Trainer
from tokenloom.training.settings import DEFAULT_RECIPE, TrainingSettings

SIDE, PATCH, D, H, L, BATCH = 28, 7, 96, 4, 4, 64
STEPS = 4000
# Images that are generated at once.
GENERATED = 50


def _ours(**more: Any) -> Callable[[], Any]:
    """Return a training step of `tokenloom train digits --image-size 28`. more: other training settings."""
    keep_freed_memory()  # as in every training on a CPU
    options: dict[str, Any] = dict.fromkeys(("translate", "rotate", "scale", "elastic"), 0.0)
    options |= {"image_size": str(SIDE), "patch_size": str(PATCH), "width": D, "depth": L, "heads": H, "pool": "cls"}
    task = ImageClassification(ImageClassificationSettings(**options))
    prepared = task.load("digits")
    settings, _ = fill(TrainingSettings(**more), {**DEFAULT_RECIPE, **prepared.recipe})
    batches = Batches(prepared.train, task.collate, batch_size=BATCH, seed=0)
    trainer = Trainer(task, task.build_model(0).train(), settings, batches)
    done = iter(range(1 << 40))
    return lambda: trainer.step(next(done) % STEPS, STEPS)


def _peer() -> Callable[[], Any]:
    """Return a training step with images as one float tensor, batches by one gather, and fused AdamW."""
    from transformers import ViTConfig, ViTForImageClassification

    task = ImageClassification(ImageClassificationSettings(image_size=str(SIDE)))
    samples: Any = task.load("digits").train
    pixels, labels = (torch.from_numpy(part) for part in samples.take(samples.all()))
    X = (pixels / 255 - 0.5) / 0.5
    config = ViTConfig(
        image_size=SIDE,
        patch_size=PATCH,
        num_channels=1,
        hidden_size=D,
        num_hidden_layers=L,
        num_attention_heads=H,
        intermediate_size=4 * D,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model = ViTForImageClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> float:
        rows = torch.randint(len(X), (BATCH,))
        loss = cross_entropy(model(X[rows]).logits, labels[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


def _codes() -> Callable[[], Any]:
    """Return a function that generates images by VQ codes, with decoding."""
    codes = ImageTokenizerTask(ImageTokenizerSettings(image_size=str(SIDE)))
    codes.load("digits")
    codes.model = codes.build_model(0).eval()
    task = ImageGeneration(ImageGenerationSettings(image_size=str(SIDE)))
    task.prerequisites()[0].use(codes)
    return _generate(task)


def _pixels() -> Callable[[], Any]:
    """Return a function that generates images by palette pixels."""
    return _generate(
        ImageGeneration(ImageGenerationSettings(image_size=str(SIDE), image_tokenizer="palette", palette_size=16))
    )


def _generate(task: ImageGeneration) -> Callable[[], Any]:
    task.load("digits")
    task.model = task.build_model(0).eval()
    return lambda: task.generate(GENERATED)


OURS, MUON = "ours", "ours, with Muon"
CODES, PIXELS = "codes", "pixels"
PEER = "transformers' ViT"
IMPLEMENTATIONS: dict[str, Callable[[], Callable[[], Any]]] = {
    OURS: lambda: _ours(optimizer="adamw"),
    MUON: _ours,
    PEER: _peer,
    CODES: _codes,
    PIXELS: _pixels,
}


def measure(setting: Setting) -> list[Row]:
    times = 10 if setting.quick else 40
    ours, muon, theirs = (in_subprocess("images", name, setting, times) for name in (OURS, MUON, PEER))
    codes, pixels = (in_subprocess("images", name, setting, 1) for name in (CODES, PIXELS))
    name = "training step of an image classifier"
    return [
        compare(name, ours, PEER, theirs, setting, goal=at_least(1.0)),
        compare(f"{name}, with Muon", muon, PEER, theirs, setting),
        compare(f"{GENERATED} images generated by codes", codes, "by pixels", pixels, setting, goal=at_least(10.0)),
    ]
