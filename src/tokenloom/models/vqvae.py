"""A small convolutional autoencoder with a codebook in the middle: a picture becomes a grid of codes, and back.

van den Oord et al. 2017, "Neural discrete representation learning"; Bishop & Bishop, section 12.4.1.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenloom.models.batch import IGNORE, Batch
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.vector_quantizer import VectorQuantizer


@dataclass(frozen=True)
class VQVAEConfig:
    """Sizes. height, width, channels: of the pictures. factor: pixels along a code's side, a power of two. codes: K.
    features: inside the network. depth: features of a code's vector."""

    height: int
    width: int
    channels: int
    factor: int = 4
    codes: int = 128
    features: int = 64
    depth: int = 16

    def as_dict(self) -> dict[str, Any]:
        """For config.json."""
        return asdict(self)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of codes: a picture whose sides are no multiples of `factor` is continued at its edges."""
        return -(-self.height // self.factor), -(-self.width // self.factor)


class Coded(NamedTuple):
    """pictures (B, H·W, C): as they come back. codes (B, h·w) int64, row by row. commitment (B, h·w): see `VectorQuantizer`.

    All with gradients, but for the codes.
    """

    pictures: Tensor
    codes: Tensor
    commitment: Tensor


class Residual(nn.Module):
    """x + W_out relu(W_in relu(x)), W_in over 3 × 3 places and W_out over one."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.W_in = nn.Conv2d(features, features, 3, padding=1)
        self.W_out = nn.Conv2d(features, features, 1)

    def forward(self, X: Tensor) -> Tensor:
        """(B, F, h, w), and so is what comes out."""
        Y: Tensor = self.W_out(F.relu(self.W_in(F.relu(X))))
        return X + Y


class VQVAE(nn.Module):
    """Strided convolutions → nearest code → transposed convolutions. The stream "picture" has (B, H·W, C) in 0 … 1."""

    def __init__(self, config: VQVAEConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = c = config
        if c.factor < 2 or c.factor & (c.factor - 1):
            raise ValueError(f"factor {c.factor}: must be 2, 4, 8, …")
        # The first halving sees half the features: there are four times as many places.
        widths = [max(8, c.features // 2), *[c.features] * (c.factor.bit_length() - 2)]
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            down: list[nn.Module] = []
            up: list[nn.Module] = []
            before = c.channels
            for after in widths:
                down += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.ReLU()]
                up = [nn.ReLU(), nn.ConvTranspose2d(after, before, 4, stride=2, padding=1), *up]
                before = after
            W = widths[-1]
            self.encoder = nn.Sequential(*down[:-1], Residual(W), nn.ReLU(), nn.Conv2d(W, c.depth, 1))
            self.decoder = nn.Sequential(nn.Conv2d(c.depth, W, 3, padding=1), Residual(W), *up)
        self.codebook = VectorQuantizer(c.codes, c.depth)

    @property
    def places(self) -> dict[str, int]:
        """At how many places of a picture each kernel is applied, by the convolution's name."""
        cells = self.config.grid[0] * self.config.grid[1]
        found, here = {}, cells * self.config.factor**2
        for name, part in self.encoder.named_modules(prefix="encoder"):
            if isinstance(part, nn.Conv2d):
                here //= part.stride[0] * part.stride[1]
                found[name] = here
        for name, part in self.decoder.named_modules(prefix="decoder"):
            if isinstance(part, nn.Conv2d | nn.ConvTranspose2d):
                found[name] = here
                here *= part.stride[0] * part.stride[1]
        return found

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> Coded:
        """Only pictures that have a target that counts teach the codebook, and all do where there are no targets."""
        X = batch["picture"].tokens
        targets = batch.targets.get("loss")
        real = None if targets is None else (targets != IGNORE).flatten(1).any(1)
        c, B = self.config, len(X)
        Z = self.features(X)
        each = None if real is None else real.repeat_interleave(Z.shape[1])
        vectors, codes, commitment = self.codebook(Z.reshape(-1, c.depth), each)
        return Coded(self._pictures(vectors.view_as(Z)), codes.view(B, -1), commitment.view(B, -1))

    def features(self, X: Tensor) -> Tensor:
        """What is quantized, (B, h·w, depth), of pictures (B, H·W, C)."""
        c = self.config
        h, w = c.grid
        X = X.to(self.codebook.vectors.dtype)
        pixels = X.transpose(1, 2).reshape(len(X), -1, c.height, c.width)
        room = (0, w * c.factor - c.width, 0, h * c.factor - c.height)
        if any(room):
            pixels = F.pad(pixels, room, mode="replicate")
        Z: Tensor = self.encoder(pixels - 0.5).flatten(2).transpose(1, 2)
        return Z

    def _pictures(self, vectors: Tensor) -> Tensor:
        """Pictures (B, H·W, C) of vectors (B, h·w, depth)."""
        c = self.config
        grid = vectors.transpose(1, 2).reshape(len(vectors), -1, *c.grid)
        Y: Tensor = self.decoder(grid) + 0.5
        return Y[:, :, : c.height, : c.width].flatten(2).transpose(1, 2)

    @torch.no_grad()
    def encode(self, X: Tensor) -> Tensor:
        """Codes (B, h·w) of pictures (B, H·W, C)."""
        Z = self.features(X)
        codes: Tensor = self.codebook(Z.reshape(-1, Z.shape[2])).codes
        return codes.view(len(X), -1)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Pictures (B, H·W, C) in 0 … 1 of codes (B, h·w)."""
        return self._pictures(self.codebook.vectors[codes]).clamp(0, 1)
