"""ImageGPT with its decoding state and guidance, and the VQ-VAE."""

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


def image_gpt() -> ImageGPT:
    model = randomized(ImageGPT(CONFIG))
    assert isinstance(model, ImageGPT)
    return model


def rows_of_ids(count: int = 3) -> torch.Tensor:
    """Rows of ids: a class, then all tokens but the last."""
    tokens = torch.randint(6, (count, 11), generator=torch.Generator().manual_seed(1))
    return torch.cat((6 + torch.arange(count)[:, None] % 3, tokens), 1)


def test_the_embedding_has_row_column_class_and_the_tokens_above() -> None:
    model, ids = image_gpt(), rows_of_ids(1)
    with torch.no_grad():
        X = model._embed(ids, ids, torch.arange(12)[None])
        tokens = ids[0, 1:].tolist()
        # Position 7 predicts token 7, in row 1 and column 3: above it token 3, left of that token 2, right none.
        expected = model.tokens.weight[tokens[6]] + model.rows.weight[1] + model.columns.weight[3]
        expected = expected + model.class_everywhere.weight[ids[0, 0] - 6]
        for table, token in zip(model.above, (tokens[2], tokens[3], 6), strict=True):
            expected = expected + table.weight[token]
    assert torch.allclose(X[0, 7], expected, atol=1e-12)


def test_a_token_depends_on_earlier_tokens_only() -> None:
    model, ids = image_gpt(), rows_of_ids(1)
    with torch.no_grad():
        before = model(Batch({"tokens": Stream(ids=ids)}))
        other = ids.clone()
        other[0, 7:] = (other[0, 7:] + 1) % 6
        after = model(Batch({"tokens": Stream(ids=other)}))
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("cuts", [(12,), (1,) * 12, (5, 1, 6)])
def test_step_by_step_is_one_pass(cuts: tuple[int, ...]) -> None:
    model, ids = image_gpt(), rows_of_ids()
    with torch.no_grad():
        whole = model(Batch({"tokens": Stream(ids=ids)})).log_softmax(-1)
    state, parts = model.init_state(3), []
    for chunk in ids.split(cuts, dim=1):
        log_probs, state = model.step(chunk, state)
        parts.append(log_probs)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-12)


def test_rows_of_unequal_length() -> None:
    model, ids = image_gpt(), rows_of_ids(2)
    with torch.no_grad():
        whole = model(Batch({"tokens": Stream(ids=ids)})).log_softmax(-1)
    _, state = model.step(ids[:, :6], model.init_state(2), torch.tensor([6, 2]))
    log_probs, state = model.step(torch.stack((ids[0, 6], ids[1, 2]))[:, None], state)
    assert state.lengths.tolist() == [7, 3]
    assert torch.allclose(log_probs[:, 0], torch.stack((whole[0, 6], whole[1, 2])), atol=1e-12)


def test_guidance_is_its_formula() -> None:
    model, ids = image_gpt(), rows_of_ids(2)
    null = ids.clone()
    null[:, 0] = CONFIG.null_class
    with torch.no_grad():
        conditional, free = (model(Batch({"tokens": Stream(ids=rows)})).log_softmax(-1) for rows in (ids, null))
    guided = ClassifierFreeGuidance(model, 1.7)
    state = guided.init_state(2)
    first, state = guided.step(ids[:, :5], state)
    second, state = guided.step(ids[:, 5:], state.select(torch.arange(2)))
    expected = (free + 1.7 * (conditional - free)).log_softmax(-1)
    assert torch.allclose(torch.cat((first, second), 1), expected, atol=1e-12)
    assert torch.allclose(
        ClassifierFreeGuidance(model, 1.0).step(ids, guided.init_state(2))[0], conditional, atol=1e-12
    )


def test_sides_that_are_no_multiple_of_the_factor() -> None:
    model = VQVAE(VQVAEConfig(7, 10, 3, downsample_factor=4, codebook_size=5, hidden_channels=8, code_dim=4))
    model.codebook.begin(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    X = torch.rand(2, 70, 3, generator=torch.Generator().manual_seed(0))
    output = model.eval()(Batch({"image": Stream(features=X)}))
    assert output.images.shape == X.shape
    assert output.codes.shape == output.commitment.shape == (2, 2 * 3)
    assert torch.equal(model.encode(X), output.codes)
    assert torch.allclose(model.decode(output.codes), output.images.clamp(0, 1), atol=1e-6)


def test_gradients_reach_the_encoder_through_the_codes() -> None:
    model = VQVAE(VQVAEConfig(8, 8, 1, codebook_size=4, hidden_channels=8, code_dim=4))
    X = torch.rand(2, 64, 1, generator=torch.Generator().manual_seed(0))
    model(Batch({"image": Stream(features=X)})).images.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.encoder.parameters())
