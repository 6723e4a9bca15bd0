from pathlib import Path

import pytest
import torch

from tokenloom.errors import UserError
from tokenloom.tokenizers.patches import Patches


def test_patches_stand_in_reading_order() -> None:
    """An image 2 high and 4 wide, patches 1 high and 2 wide: four tokens of two values."""
    pixels = torch.arange(8, dtype=torch.uint8).reshape(1, 1, 2, 4)
    tokens = Patches((1, 2, 4), (1, 2), [0.0], [1 / 255]).encode(pixels)
    torch.testing.assert_close(tokens, torch.tensor([[[0.0, 1], [2, 3], [4, 5], [6, 7]]]))


@pytest.mark.parametrize("patch", [(4, 4), (2, 6), (8, 12), (1, 1)])
def test_decode_is_the_inverse_of_encode(patch: tuple[int, int]) -> None:
    pixels = torch.randint(256, (3, 3, 8, 12), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    patches = Patches.train(pixels, patch)
    tokens = patches.encode(pixels)
    assert tokens.shape == (3, patches.num_patches, patches.patch_dim)
    assert torch.equal(patches.decode(tokens), pixels)


def test_what_is_learnt_makes_mean_0_and_deviation_1() -> None:
    pixels = torch.randint(40, 90, (9, 3, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    tokens = Patches.train(pixels, (4, 4)).encode(pixels).view(9, 3, 16)
    torch.testing.assert_close(tokens.mean((0, 2)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(tokens.std((0, 2), correction=0), torch.ones(3), atol=1e-4, rtol=0)


def test_a_patch_is_the_same_as_a_strided_convolution_sees() -> None:
    pixels = torch.randint(256, (2, 3, 6, 6), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    weight = torch.randn(5, 3, 2, 3, generator=torch.Generator().manual_seed(1))
    patches = Patches((3, 6, 6), (2, 3))
    whole = torch.nn.functional.conv2d((pixels / 255 - 0.5) / 0.5, weight, stride=(2, 3))
    torch.testing.assert_close(patches.encode(pixels) @ weight.flatten(1).T, whole.flatten(2).transpose(1, 2))


def test_patches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"--patch-size 5: must divide the width of 28 pixels: 1, 2, 4, 7, 14, 28"):
        Patches((1, 28, 28), (7, 5))
    with pytest.raises(ValueError, match=r"\(1, 8, 9\)"):
        Patches((1, 8, 8), (2, 2)).encode(torch.zeros(1, 1, 8, 9))


def test_saved_is_loaded(tmp_path: Path) -> None:
    patches = Patches((1, 8, 6), (4, 3), [0.25], [0.125])
    patches.save(tmp_path / "tokenizer.json")
    again = Patches.load(tmp_path / "tokenizer.json")
    assert again.to_json() == patches.to_json()
    assert again.fingerprint() == patches.fingerprint() != Patches((1, 8, 6), (4, 2), [0.25], [0.125]).fingerprint()
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read as an image tokenizer"):
        Patches.load(tmp_path / "tokenizer.json")
