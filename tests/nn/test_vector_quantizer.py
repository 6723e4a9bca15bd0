"""k-means, and the codebook whose every sum is worked by hand."""

import math

import pytest
import torch

from tokenloom.nn.vector_quantizer import VectorQuantizer, kmeans, nearest, perplexity, update_ema


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_two_heaps_have_their_means_as_centers() -> None:
    points = torch.tensor([[0.0], [0.0], [1.0], [10.0], [11.0], [11.0]])
    centers = kmeans(points, 2, generator()).sort(0).values
    assert torch.allclose(centers, torch.tensor([[1 / 3], [32 / 3]]))
    index, distances = nearest(points, centers)
    assert index.tolist() == [0, 0, 0, 1, 1, 1]
    assert float(distances.sum()) == pytest.approx(6 * (1 / 9) + 2 * (1 / 9) * 3, rel=1e-5)
    assert torch.equal(kmeans(points, 2, generator()).sort(0).values, centers), "the seed alone decides"


def test_as_tight_as_another_implementation() -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    points = torch.rand(2000, 3, generator=generator())
    ours = float(nearest(points, kmeans(points, 16, generator()))[1].sum())
    theirs = cluster.KMeans(16, n_init=3, random_state=0).fit(points.numpy()).inertia_
    assert ours <= 1.05 * theirs


def test_no_more_centers_than_points() -> None:
    with pytest.raises(ValueError, match="3 centers of 2 different points"):
        kmeans(torch.tensor([[0.0], [0.0], [1.0]]), 3, generator())


def codebook(decay: float = 0.5, dead: float = 0.0) -> VectorQuantizer:
    book = VectorQuantizer(2, 1, decay=decay, dead=dead)
    book.begin(torch.tensor([[0.0], [10.0]]))
    return book


def test_a_step_moves_codes_as_worked_by_hand() -> None:
    book = codebook()
    quantized = book(torch.tensor([[0.0], [2.0], [10.0]]))
    assert quantized.codes.tolist() == [0, 0, 1]
    assert quantized.vectors.flatten().tolist() == [0, 0, 10]
    assert quantized.commitment.tolist() == [0, 4, 0]
    update_ema(book, lambda sums: None)
    # N = (1 + 2) / 2 and (1 + 1) / 2, m = (0 + 2) / 2 and (10 + 10) / 2, E = (0 + 4) / 2 and 0.
    assert book.sizes.tolist() == [1.5, 1.0]
    assert book.sums.flatten().tolist() == [1.0, 10.0]
    assert book.errors.tolist() == [2.0, 0.0]
    assert book.vectors.flatten().tolist() == pytest.approx([2 / 3, 10.0])
    assert int(book.moves) == 1
    assert not any(float(new.abs().sum()) for new in book.gathered()), "the next step begins with nothing"


def test_the_gradient_goes_straight_through_and_the_commitment_pulls() -> None:
    book = codebook()
    X = torch.tensor([[2.0], [9.0]], requires_grad=True)
    quantized = book(X)
    (3 * quantized.vectors.sum()).backward()
    assert X.grad is not None
    assert X.grad.flatten().tolist() == [3, 3]
    X.grad = None
    book(X).commitment.sum().backward()
    assert X.grad.flatten().tolist() == [4, -2]  # 2 (x − e)


def test_what_is_not_counted_teaches_nothing_and_neither_does_measuring() -> None:
    book = codebook()
    book(torch.tensor([[1.0], [8.0]]), torch.tensor([True, False]))
    assert book.new_sizes.tolist() == [1, 0]
    book.eval()
    book(torch.tensor([[1.0], [8.0]]))
    assert book.new_sizes.tolist() == [1, 0]


def test_a_step_in_parts_is_the_step_as_a_whole() -> None:
    books = [codebook().double() for _ in range(2)]
    X = torch.randn(20, 1, generator=generator(), dtype=torch.float64) * 5
    books[0](X)
    for part in X.split(7):
        books[1](part)
    for book in books:
        book.move()
    for name, buffer in books[0].named_buffers():
        assert torch.allclose(buffer, dict(books[1].named_buffers())[name], atol=1e-12), name


def test_a_dead_code_shares_the_cell_with_the_largest_error() -> None:
    book = VectorQuantizer(3, 2, decay=0.5, dead=0.3)
    book.begin(torch.tensor([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]]))
    X = torch.tensor([[-3.0, 0.0], [3.0, 0.0], [100.0, 1.0], [100.0, 0.0]]).repeat(10, 1)
    for _ in range(3):
        book(X)
        book.move()
    # The third code had 1 → 0.5 → 0.25 of a mean near 10, at the first step already; the first cell has the error.
    assert float((book.vectors[2] - torch.tensor([0.0, 0.0])).norm()) < 12
    assert bool((book.sizes > 3).all())
    assert set(book(X).codes.tolist()) == {0, 1, 2}
    again = VectorQuantizer(3, 2, decay=0.5, dead=0.3)
    again.begin(torch.tensor([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]]))
    for _ in range(3):
        again(X)
        again.move()
    assert torch.equal(again.vectors, book.vectors), "what is random depends on the number of the step alone"


def test_perplexity_counts_codes_used_alike() -> None:
    assert perplexity(torch.ones(7)) == pytest.approx(7)
    assert perplexity(torch.tensor([5.0, 0.0, 0.0])) == pytest.approx(1)
    expected = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert perplexity(torch.tensor([3, 1])) == pytest.approx(expected)
