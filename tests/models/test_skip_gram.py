"""Word vectors over blocks of a row are the plain formulas, word by word."""

import pytest
import torch
from torch import Tensor

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.word_vectors import BLOCK, WordVectors, neighbors_of, window_mask


def model_of(kind: str, window: int, width: int = 6) -> WordVectors:
    model = WordVectors(kind, 11, width, window, seed=3).double()  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def rows(N: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(N)
    return tuple(torch.randint(11, shape, generator=generator) for shape in ((2, N), (2, 4), (2, N)))  # type: ignore[return-value]


@pytest.mark.parametrize("N", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
@pytest.mark.parametrize("window", [1, 3])
def test_skip_gram_is_each_word_times_each_beside_it(N: int, window: int) -> None:
    model, (ids, negatives, _) = model_of("skip-gram", window), rows(N)
    positive, negative = model(Batch({"words": Stream(ids=ids), "negatives": Stream(ids=negatives)}))
    v, u = model.words.weight, model.outputs.weight
    assert positive.shape == (2, N, 2 * window)
    distances = [*range(-window, 0), *range(1, window + 1)]
    beside = neighbors_of(ids, window)
    for b in range(2):
        for n in range(N):
            for place, distance in enumerate(distances):
                if 0 <= n + distance < N:
                    assert beside[b, n, place] == ids[b, n + distance]
                    expected = v[ids[b, n]] @ u[ids[b, n + distance]]
                    torch.testing.assert_close(positive[b, n, place], expected)
            torch.testing.assert_close(negative[b, n], u[negatives[b]] @ v[ids[b, n]])


@pytest.mark.parametrize("N", [1, BLOCK, 2 * BLOCK + 3])
def test_cbow_is_the_mean_of_the_words_around_times_the_word(N: int) -> None:
    window = 2
    model, (ids, negatives, reach) = model_of("cbow", window), rows(N)
    around = window_mask(torch.zeros_like(ids), reach % (window + 1), window)
    streams = {"words": Stream(ids=ids), "negatives": Stream(ids=negatives), "window": Stream(features=around)}
    positive, negative = model(Batch(streams))
    v, u = model.words.weight, model.outputs.weight
    for b in range(2):
        for n in range(N):
            r = int(reach[b, n]) % (window + 1)
            context = [int(ids[b, m]) for m in range(max(0, n - r), min(N, n + r + 1)) if m != n]
            mean = v[context].mean(0) if context else torch.zeros_like(v[0])
            torch.testing.assert_close(positive[b, n, 0], mean @ u[ids[b, n]])
            torch.testing.assert_close(negative[b, n], u[negatives[b]] @ mean)


def test_the_window_mask_of_a_row_with_two_documents_and_padding() -> None:
    """Worked by hand: places 0 1 2 | 3 4 and one of padding; reach 1 2 2 1 2."""
    segments = torch.tensor([[0, 0, 0, 1, 1, -1]])
    inside = window_mask(segments, torch.tensor([[1, 2, 2, 1, 2, 2]]), 2)[0].int().tolist()
    # Columns: −2, −1, 1, 2.
    assert inside == [[0, 0, 1, 0], [0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]


def test_gradients_go_to_the_words_that_took_part() -> None:
    model = model_of("skip-gram", 2)
    batch = Batch({"words": Stream(ids=torch.tensor([[1, 2, 3]])), "negatives": Stream(ids=torch.tensor([[4]]))})
    positive, negative = model(batch)
    asked = window_mask(torch.zeros(1, 3, dtype=torch.int64), torch.full((1, 3), 2), 2)
    ((positive * asked).sum() + negative.sum()).backward()
    assert model.words.weight.grad is not None
    assert model.outputs.weight.grad is not None
    assert model.words.weight.grad.any(1).nonzero().flatten().tolist() == [1, 2, 3]
    assert model.outputs.weight.grad.any(1).nonzero().flatten().tolist() == [1, 2, 3, 4]
    u = model.outputs.weight
    torch.testing.assert_close(model.words.weight.grad[1], u[2] + u[3] + u[4])
