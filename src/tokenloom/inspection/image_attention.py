"""What a vision transformer looks at: the attention of what is read, and attention rollout, over the picture.

What is read is the class token, or the mean of all patches; then attention is that of the mean patch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tokenloom.errors import UserError
from tokenloom.models.vision import VisionTransformer
from tokenloom.nn.hooks import Hooks
from tokenloom.plotting.overlay import draw_overlays
from tokenloom.plotting.style import place_of
from tokenloom.tasks._image_settings import LookOptions
from tokenloom.tasks.base import Show

if TYPE_CHECKING:
    from tokenloom.tasks.image_classification import ImageClassification


def rollout(patterns: list[Tensor]) -> Tensor:
    """A_L … A_1 with A_l = (mean over heads of layer l + I) / 2: how much of each token is in each, layer by layer.

    patterns: (B, H, N, N) a layer, first layer first → (B, N, N), whose rows sum to 1. Source: Abnar & Zuidema 2020.
    """
    whole: Tensor | None = None
    for pattern in patterns:
        mean = pattern.mean(1)
        mixed = (mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)) / 2
        whole = mixed if whole is None else mixed @ whole
    assert whole is not None
    return whole


def _read(pattern: Tensor, read: str) -> Tensor:
    """(…, N, N) → (…, patches): how much what is read looks at each patch."""
    return pattern[..., 0, 1:] if read == "class" else pattern.mean(-2)


def look_at(task: ImageClassification, options: LookOptions, show: Show) -> dict[str, Any]:
    """Draw a picture, each head's attention from the class token or the mean patch, their mean, and the rollout."""
    model = task.model
    if not isinstance(model, VisionTransformer):
        raise UserError("only a vision transformer looks at a picture patch by patch: --model vit")
    if options.file is None:
        raise UserError("nothing to look at: give a picture file")
    layers = model.config.depth
    layer = layers if options.layer is None else options.layer
    if not 1 <= layer <= layers:
        raise UserError(f"--layer {layer}: the model has layers 1 to {layers}")
    out = place_of(options.out or f"{Path(options.file).stem}-look.png")
    pixels = task.pixels_of([options.file])
    hooks = Hooks("layers.*.pattern")
    probabilities = task.logits(pixels, hooks)[0].double().softmax(-1)
    patterns = [hooks.values[f"layers.{number}.pattern"] for number in range(layers)]
    grid = model.config.grid
    heads = _read(patterns[layer - 1][0], model.config.read).reshape(-1, *grid)
    rolled = _read(rollout(patterns)[0], model.config.read).reshape(grid)
    maps = {f"layer {layer}, all heads": heads.mean(0), "rollout": rolled}
    maps |= {f"head {number}": head for number, head in enumerate(heads, start=1)}
    best = int(probabilities.argmax())
    label, sure = task.classes[best], float(probabilities[best])
    title = f"{label} {sure:.1%}"
    draw_overlays(pixels[0].numpy(), {k: v.tolist() for k, v in maps.items()}, out, title=title, dark=options.dark)
    show(f"{title}\n{out}\n")
    return {
        "label": label,
        "probability": sure,
        "grid": list(grid),
        "maps": {name: values.tolist() for name, values in maps.items()},
        "out": str(out),
    }
