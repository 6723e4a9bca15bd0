import numpy as np
import torch

from tokenloom.data.augment import Augmentation, Draws, augment, augment_each
from tokenloom.data.samples import generator_for


def image() -> torch.Tensor:
    return torch.randint(256, (1, 1, 5, 7), generator=torch.Generator().manual_seed(0)).float()


def draws(**values: float) -> Draws:
    names = ["turn", "size", "right", "down", "mirror"]
    affine = np.array([[values.get(name, 0.0) for name in names]], np.float32)
    color = np.array([[values.get("brightness", 0.0), values.get("contrast", 0.0), 0.0]], np.float32)
    return Draws(affine, np.zeros((1, 2, 6, 6), np.float32), color)


def test_without_draws_nothing_changes() -> None:
    X = image()
    everything = Augmentation(0.1, 10.0, 0.1, 0.05, 0.4, 0.2)
    torch.testing.assert_close(augment(X, everything, draws()), X, atol=2e-3, rtol=0)
    assert augment_each(X, Augmentation(), []) is X


def test_a_shift_of_whole_pixels() -> None:
    X = image()
    moved = augment(X, Augmentation(translate=2 / 7), draws(right=1.0))
    torch.testing.assert_close(moved[..., :-2], X[..., 2:], atol=2e-3, rtol=0)


def test_mirrored() -> None:
    X = image()
    torch.testing.assert_close(augment(X, Augmentation(hflip=1.0), draws(mirror=-0.5)), X.flip(-1), atol=2e-3, rtol=0)
    torch.testing.assert_close(augment(X, Augmentation(hflip=0.2), draws(mirror=-0.5)), X, atol=2e-3, rtol=0)


def test_a_quarter_turn() -> None:
    X = image()[..., :5]
    turned = augment(X, Augmentation(rotate=90), draws(turn=1.0))
    torch.testing.assert_close(turned, X.rot90(1, (2, 3)), atol=2e-2, rtol=0)


def test_a_turn_keeps_lengths_in_images_that_are_not_square() -> None:
    X = image()
    half = augment(X, Augmentation(rotate=180), draws(turn=1.0))
    torch.testing.assert_close(half, X.flip((2, 3)), atol=2e-2, rtol=0)
    # A point right of the middle comes to stand above or below it, as far away.
    X = torch.zeros(1, 1, 5, 9)
    X[0, 0, 2, 6] = 100.0
    turned = augment(X, Augmentation(rotate=90), draws(turn=1.0))[0, 0]
    assert float(turned[:, 4].max()) > 90
    assert int(turned[:, 4].argmax()) in (0, 4)


def test_brightness_by_hand() -> None:
    X = torch.full((1, 1, 2, 2), 100.0)
    brighter = augment(X, Augmentation(color_jitter=0.2), draws(brightness=1.0, contrast=1.0))
    torch.testing.assert_close(brighter, torch.full((1, 1, 2, 2), 100 + 255 * 0.2 / 2))


def test_an_image_is_changed_the_same_in_any_batch() -> None:
    X = torch.randint(256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    how = Augmentation(0.1, 10.0, 0.1, 0.05, 0.5, 0.2)

    def changed(rows: list[int]) -> torch.Tensor:
        return augment_each(X[rows], how, [generator_for(3, 5, row) for row in rows])

    together = changed([0, 1, 2, 3, 4, 5])
    assert torch.equal(together[[4, 1]], changed([4, 1]))
    assert float((together - X).abs().mean()) > 5
