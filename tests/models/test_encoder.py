"""The encoder: looks both ways, never at padding nor at other segments; three heads from one backbone."""

import pytest
import torch

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.encoder import Encoder, EncoderConfig, class_token, mean_over_real
from tokenloom.nn.hooks import Hooks


def encoder(preset: str = "modern", pool: str = "none", seed: int = 0) -> Encoder:
    config = EncoderConfig(11, 12, 3, pool, width=16, depth=2, heads=2, **EncoderConfig.parts(preset))
    model = Encoder(config, seed)
    with torch.no_grad():
        # Modern layers start as the identity, which would hide what attention does.
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model.double().eval()


def text(ids: list[list[int]], **more: torch.Tensor) -> Batch:
    return Batch({"text": Stream(ids=torch.tensor(ids), **more)})


@pytest.mark.parametrize("preset", EncoderConfig.presets)
def test_every_token_sees_every_other(preset: str) -> None:
    model = encoder(preset)
    before, after = model(text([[1, 2, 3, 4]])), model(text([[1, 2, 3, 5]]))
    assert bool(((before - after).abs().amax(-1) > 1e-6).all())


@pytest.mark.parametrize("preset", EncoderConfig.presets)
@pytest.mark.parametrize("pool", ["none", "cls", "mean"])
def test_padding_on_either_side_changes_nothing(preset: str, pool: str) -> None:
    model = encoder(preset, pool)
    alone = model(text([[1, 2, 3]]))
    for ids, real in (([1, 2, 3, 9, 9], [1, 1, 1, 0, 0]), ([9, 9, 1, 2, 3], [0, 0, 1, 1, 1])):
        mask = torch.tensor([real], dtype=torch.bool)
        padded = model(text([ids], real=mask))
        torch.testing.assert_close(padded[mask][None] if pool == "none" else padded, alone)


@pytest.mark.parametrize("preset", EncoderConfig.presets)
def test_segments_in_one_row_are_as_if_alone(preset: str) -> None:
    model = encoder(preset)
    packed = model(
        text(
            [[1, 2, 3, 7, 8]],
            positions=torch.tensor([[0, 1, 2, 0, 1]]),
            segments=torch.tensor([[0, 0, 0, 1, 1]]),
        )
    )
    alone = [model(text([[1, 2, 3]])), model(text([[7, 8]]))]
    torch.testing.assert_close(packed, torch.cat(alone, 1))


def test_the_order_of_tokens_matters() -> None:
    model = encoder(pool="mean")
    assert float((model(text([[1, 2, 3]])) - model(text([[3, 2, 1]]))).detach().abs().max()) > 1e-6


def test_pools_by_hand() -> None:
    X = torch.arange(12.0).reshape(2, 3, 2)
    real = torch.tensor([[True, True, False], [False, True, True]])
    assert class_token(X, real).tolist() == [[0.0, 1.0], [8.0, 9.0]]
    assert class_token(X, None).tolist() == [[0.0, 1.0], [6.0, 7.0]]
    assert mean_over_real(X, real).tolist() == [[1.0, 2.0], [9.0, 10.0]]
    assert mean_over_real(X, None).tolist() == [[2.0, 3.0], [8.0, 9.0]]
    assert mean_over_real(X, torch.zeros(2, 3, dtype=torch.bool)).tolist() == [[0.0, 0.0]] * 2


def test_the_backbone_starts_the_same_whatever_the_head_is() -> None:
    sizes = {"width": 16, "depth": 2, "heads": 2}
    models = [Encoder(EncoderConfig(11, 12, n, pool, **sizes), 5) for n, pool in ((11, "none"), (2, "cls"))]
    first, second = (model.backbone.state_dict() for model in models)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_taps_show_the_features_and_the_patterns() -> None:
    model = encoder()
    hooks = Hooks(["final", "*.pattern"])
    logits = model(text([[1, 2, 3]]), hooks=hooks)
    torch.testing.assert_close(model.head(hooks.values["final"]), logits)
    pattern = hooks.values["layers.0.pattern"]
    assert pattern.shape == (1, 2, 3, 3)
    assert bool((pattern > 0).all())


def test_unknown_pool() -> None:
    with pytest.raises(ValueError, match="no pool 'last'"):
        Encoder(EncoderConfig(11, 12, pool="last", width=16, depth=2, heads=2))
