"""Learned image tokens: the codes of a trained VQ-VAE."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenloom.models.vqvae import VQVAE, VQVAEConfig
from tokenloom.nn.modules import device_of

KIND = "vq"
# Images that are encoded or decoded at a time.
_CHUNK = 500
Pixels = NDArray[np.uint8]
Ids = NDArray[np.int64]


class VQTokenizer:
    """Images (n, C, H, W) of bytes to codes (n, tokens) in raster order, and back, by a VQ-VAE."""

    def __init__(self, model: VQVAE) -> None:
        self.model = model

    @property
    def config(self) -> VQVAEConfig:
        """The sizes of the model."""
        return self.model.config

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        return self.config.channels, self.config.height, self.config.width

    @property
    def vocab_size(self) -> int:
        """K, the number of codes."""
        return self.config.codebook_size

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of codes of an image."""
        return self.config.grid

    @property
    def token_size(self) -> int:
        """Pixels per side of a code; the last row and column may extend beyond the image."""
        return self.config.downsample_factor

    def encode(self, pixels: Pixels) -> Ids:
        """Return the codes (n, tokens) of images (n, C, H, W). Raise ValueError for images of another shape."""
        if pixels.shape[1:] != self.shape:
            raise ValueError(f"images of shape {pixels.shape[1:]}, and codes for {self.shape}")
        with self._evaluation() as device:
            parts = [self.model.encode(as_sequence(part).to(device)).cpu() for part in _chunks(pixels)]
        return torch.cat(parts).numpy()

    def decode(self, ids: Ids) -> Pixels:
        """Return the images (n, C, H, W) of codes (n, tokens)."""
        with self._evaluation() as device:
            parts = [self.model.decode(torch.from_numpy(part).to(device)).cpu() for part in _chunks(ids)]
        values = (torch.cat(parts) * 255).round().to(torch.uint8).transpose(1, 2)  # (n, C, H·W)
        return values.reshape(len(ids), *self.shape).numpy()

    @contextmanager
    def _evaluation(self) -> Iterator[torch.device]:
        """Set the model to evaluation mode, in which the codebook does not change; yield its device."""
        was_training = self.model.training
        self.model.eval()
        try:
            yield device_of(self.model)
        finally:
            self.model.train(was_training)

    def fingerprint(self) -> str:
        """Return a hash of all that decides codes and images."""
        digest = hashlib.sha256(repr(sorted(self.config.as_dict().items())).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def as_sequence(pixels: Pixels) -> Tensor:
    """Return images (n, C, H, W) of bytes as pixels (n, H·W, C) in 0 … 1."""
    return torch.from_numpy(pixels.astype(np.float32) / 255).flatten(2).transpose(1, 2)


def _chunks(array: NDArray[Any]) -> list[NDArray[Any]]:
    return [array[start : start + _CHUNK] for start in range(0, len(array), _CHUNK)]
