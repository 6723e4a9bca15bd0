"""The decoder that paints, its guidance, and the autoencoder with a codebook."""

import pytest
import torch

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.image_gpt import ClassifierFreeGuidance, ImageGPT, ImageGPTConfig
from tokenloom.models.vqvae import VQVAE, VQVAEConfig


def randomized(model: torch.nn.Module, scale: float = 0.3) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return model.double().eval()


CONFIG = ImageGPTConfig(vocab_size=6, rows=3, columns=4, classes=2, width=8, depth=1, heads=2)


def decoder() -> ImageGPT:
    model = randomized(ImageGPT(CONFIG))
    assert isinstance(model, ImageGPT)
    return model


def pictures(count: int = 3) -> torch.Tensor:
    """Rows of ids: a class, then all cells but the last."""
    cells = torch.randint(6, (count, 11), generator=torch.Generator().manual_seed(1))
    return torch.cat((6 + torch.arange(count)[:, None] % 3, cells), 1)


def test_the_embedding_has_row_column_class_and_the_cells_above() -> None:
    model, ids = decoder(), pictures(1)
    with torch.no_grad():
        X = model._embedded(ids, ids, torch.arange(12)[None])
        cells = ids[0, 1:].tolist()
        # Place 7 predicts cell 7, in row 1 and column 3: above it cell 3, to the left of that cell 2, nothing right.
        expected = model.tokens.weight[cells[6]] + model.rows.weight[1] + model.columns.weight[3]
        expected = expected + model.class_everywhere.weight[ids[0, 0] - 6]
        for table, cell in zip(model.above, (cells[2], cells[3], 6), strict=True):
            expected = expected + table.weight[cell]
    assert torch.allclose(X[0, 7], expected, atol=1e-12)


def test_no_cell_sees_itself_or_what_comes_after() -> None:
    model, ids = decoder(), pictures(1)
    with torch.no_grad():
        before = model(Batch({"cells": Stream(ids=ids)}))
        other = ids.clone()
        other[0, 7:] = (other[0, 7:] + 1) % 6
        after = model(Batch({"cells": Stream(ids=other)}))
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("cuts", [(12,), (1,) * 12, (5, 1, 6)])
def test_step_by_step_is_one_pass(cuts: tuple[int, ...]) -> None:
    model, ids = decoder(), pictures()
    with torch.no_grad():
        whole = model(Batch({"cells": Stream(ids=ids)})).log_softmax(-1)
    state, parts = model.init_state(3), []
    for chunk in ids.split(cuts, dim=1):
        log_probs, state = model.step(chunk, state)
        parts.append(log_probs)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-12)


def test_rows_of_unequal_length() -> None:
    model, ids = decoder(), pictures(2)
    with torch.no_grad():
        whole = model(Batch({"cells": Stream(ids=ids)})).log_softmax(-1)
    _, state = model.step(ids[:, :6], model.init_state(2), torch.tensor([6, 2]))
    log_probs, state = model.step(torch.stack((ids[0, 6], ids[1, 2]))[:, None], state)
    assert state.lengths.tolist() == [7, 3]
    assert torch.allclose(log_probs[:, 0], torch.stack((whole[0, 6], whole[1, 2])), atol=1e-12)


def test_guidance_is_its_formula() -> None:
    model, ids = decoder(), pictures(2)
    free = ids.clone()
    free[:, 0] = CONFIG.nothing
    with torch.no_grad():
        asked, none = (model(Batch({"cells": Stream(ids=rows)})).log_softmax(-1) for rows in (ids, free))
    guided = ClassifierFreeGuidance(model, 1.7)
    state = guided.init_state(2)
    first, state = guided.step(ids[:, :5], state)
    second, state = guided.step(ids[:, 5:], state.select(torch.arange(2)))
    expected = (none + 1.7 * (asked - none)).log_softmax(-1)
    assert torch.allclose(torch.cat((first, second), 1), expected, atol=1e-12)
    assert torch.allclose(ClassifierFreeGuidance(model, 1.0).step(ids, guided.init_state(2))[0], asked, atol=1e-12)


def test_sides_that_are_no_multiple_of_the_factor() -> None:
    model = VQVAE(VQVAEConfig(height=7, width=10, channels=3, factor=4, codes=5, features=8, depth=4))
    model.codebook.begin(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    X = torch.rand(2, 70, 3, generator=torch.Generator().manual_seed(0))
    coded = model.eval()(Batch({"picture": Stream(features=X)}))
    assert coded.pictures.shape == X.shape
    assert coded.codes.shape == coded.commitment.shape == (2, 2 * 3)
    assert torch.equal(model.encode(X), coded.codes)
    assert torch.allclose(model.decode(coded.codes), coded.pictures.clamp(0, 1), atol=1e-6)


def test_gradients_reach_the_encoder_through_the_codes() -> None:
    model = VQVAE(VQVAEConfig(8, 8, 1, codes=4, features=8, depth=4))
    X = torch.rand(2, 64, 1, generator=torch.Generator().manual_seed(0))
    model(Batch({"picture": Stream(features=X)})).pictures.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.encoder.parameters())
