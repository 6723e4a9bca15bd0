"""VQ-VAE: a convolutional autoencoder with a codebook; it turns an image into a grid of codes and back.

Source: van den Oord et al. 2017, "Neural discrete representation learning"; Bishop & Bishop, section 12.4.1.
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
    """Sizes. height, width, channels: of the images. downsample_factor: pixels per side of a code, a power of two.
    codebook_size: K. hidden_channels: inside the network. code_dim: features of a code's vector."""

    height: int
    width: int
    channels: int
    downsample_factor: int = 4
    codebook_size: int = 128
    hidden_channels: int = 64
    code_dim: int = 16

    def as_dict(self) -> dict[str, Any]:
        """Return the sizes for config.json."""
        return asdict(self)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of codes. Images whose sides are no multiples of `downsample_factor` are padded."""
        return -(-self.height // self.downsample_factor), -(-self.width // self.downsample_factor)


class VQVAEOutput(NamedTuple):
    """images (B, H·W, C): the reconstructions. codes (B, h·w) int64, in raster order. commitment (B, h·w): see
    `VectorQuantizer`. Images and commitment carry gradients."""

    images: Tensor
    codes: Tensor
    commitment: Tensor


class ResidualBlock(nn.Module):
    """x + W_out relu(W_in relu(x)); W_in is a 3 × 3 convolution, W_out a 1 × 1 convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.W_in = nn.Conv2d(channels, channels, 3, padding=1)
        self.W_out = nn.Conv2d(channels, channels, 1)

    def forward(self, X: Tensor) -> Tensor:
        """Return (B, F, h, w) for (B, F, h, w)."""
        Y: Tensor = self.W_out(F.relu(self.W_in(F.relu(X))))
        return X + Y


class VQVAE(nn.Module):
    """Strided convolutions → nearest code → transposed convolutions. Stream "image": pixels (B, H·W, C) in 0 … 1."""

    def __init__(self, config: VQVAEConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = c = config
        if c.downsample_factor < 2 or c.downsample_factor & (c.downsample_factor - 1):
            raise ValueError(f"downsample_factor {c.downsample_factor}: must be 2, 4, 8, …")
        # The first convolution has half the channels, because it has four times as many positions.
        widths = [max(8, c.hidden_channels // 2), *[c.hidden_channels] * (c.downsample_factor.bit_length() - 2)]
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
            self.encoder = nn.Sequential(*down[:-1], ResidualBlock(W), nn.ReLU(), nn.Conv2d(W, c.code_dim, 1))
            self.decoder = nn.Sequential(nn.Conv2d(c.code_dim, W, 3, padding=1), ResidualBlock(W), *up)
        self.codebook = VectorQuantizer(c.codebook_size, c.code_dim)

    @property
    def places(self) -> dict[str, int]:
        """At how many positions of an image each convolution is applied, by its name."""
        tokens = self.config.grid[0] * self.config.grid[1]
        counts, here = {}, tokens * self.config.downsample_factor**2
        for name, part in self.encoder.named_modules(prefix="encoder"):
            if isinstance(part, nn.Conv2d):
                here //= part.stride[0] * part.stride[1]
                counts[name] = here
        for name, part in self.decoder.named_modules(prefix="decoder"):
            if isinstance(part, nn.Conv2d | nn.ConvTranspose2d):
                counts[name] = here
                here *= part.stride[0] * part.stride[1]
        return counts

    def forward(self, batch: Batch, hooks: Hooks | None = None) -> VQVAEOutput:
        """Encode, quantize and decode. Where there are targets, only images with a counted one update the codebook."""
        X = batch["image"].tokens
        targets = batch.targets.get("loss")
        real = None if targets is None else (targets != IGNORE).flatten(1).any(1)
        c, B = self.config, len(X)
        Z = self.features(X)
        each = None if real is None else real.repeat_interleave(Z.shape[1])
        vectors, codes, commitment = self.codebook(Z.reshape(-1, c.code_dim), each)
        return VQVAEOutput(self._decode_vectors(vectors.view_as(Z)), codes.view(B, -1), commitment.view(B, -1))

    def features(self, X: Tensor) -> Tensor:
        """Return the encoder's output before quantization: (B, H·W, C) → (B, h·w, code_dim)."""
        c = self.config
        h, w = c.grid
        X = X.to(self.codebook.vectors.dtype)
        pixels = X.transpose(1, 2).reshape(len(X), -1, c.height, c.width)  # (B, C, H, W)
        padding = (0, w * c.downsample_factor - c.width, 0, h * c.downsample_factor - c.height)
        if any(padding):
            pixels = F.pad(pixels, padding, mode="replicate")
        Z: Tensor = self.encoder(pixels - 0.5).flatten(2).transpose(1, 2)
        return Z

    def _decode_vectors(self, vectors: Tensor) -> Tensor:
        """Return images (B, H·W, C) for code vectors (B, h·w, code_dim)."""
        c = self.config
        grid = vectors.transpose(1, 2).reshape(len(vectors), -1, *c.grid)  # (B, code_dim, h, w)
        Y: Tensor = self.decoder(grid) + 0.5
        return Y[:, :, : c.height, : c.width].flatten(2).transpose(1, 2)

    @torch.no_grad()
    def encode(self, X: Tensor) -> Tensor:
        """Return the codes (B, h·w) of images (B, H·W, C)."""
        Z = self.features(X)
        codes: Tensor = self.codebook(Z.reshape(-1, Z.shape[2])).codes
        return codes.view(len(X), -1)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Return images (B, H·W, C) in 0 … 1 for codes (B, h·w)."""
        return self._decode_vectors(self.codebook.vectors[codes]).clamp(0, 1)
