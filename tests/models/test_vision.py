"""The vision transformer: the same as transformers' with the same weights; positions; and a convolutional network."""

import pytest
import torch

from tokenloom.models.batch import Batch, Stream
from tokenloom.models.convolutional import ConvolutionalConfig, ConvolutionalNetwork
from tokenloom.models.vision import VisionConfig, VisionTransformer, resized_positions
from tokenloom.nn.hooks import Hooks
from tokenloom.nn.positions import Sinusoidal2D
from tokenloom.tokenizers.patches import Patches

PLAIN = {
    "mlp": {"kind": "plain", "activation": "gelu", "bias": True},
    "norm": "layer",
    "qk_norm": None,
    "pool": "cls",
    "bias": True,
    "init": "classic",
}
CONFIG = VisionConfig(grid=(3, 2), inputs=24, outputs=5, width=16, depth=2, heads=2, pool="cls")


def test_it_agrees_with_transformers() -> None:
    """A random ViT of another implementation, its weights under our names."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.ViTConfig(
        **sizes, image_size=(12, 8), patch_size=4, num_channels=3, num_labels=5, layer_norm_eps=1e-5, hidden_act="gelu"
    )
    torch.manual_seed(0)
    theirs = transformers.ViTForImageClassification(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    ours = VisionTransformer(
        VisionConfig(grid=(3, 2), inputs=48, outputs=5, width=16, depth=2, heads=2, **PLAIN)
    ).eval()
    ours.load_state_dict(from_transformers(theirs.state_dict(), 2))
    pixels = torch.randint(256, (4, 3, 12, 8), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    with torch.no_grad():
        expected = theirs((pixels / 255 - 0.5) / 0.5).logits
        found = ours(Batch({"image": Stream(features=Patches((3, 12, 8), (4, 4)).encode(pixels))}))
    assert float(expected.abs().max()) > 0.5
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def from_transformers(theirs: dict[str, torch.Tensor], depth: int) -> dict[str, torch.Tensor]:
    """Weights of `ViTForImageClassification` under the names of `VisionTransformer`."""

    def take(*endings: str) -> torch.Tensor:
        found = [name for name in theirs for ending in endings if name.endswith(ending)]
        assert len(found) == 1, f"{endings}: {found}"
        return theirs[found[0]]

    weights = {
        "backbone.embedding.weight": take("patch_embeddings.projection.weight").flatten(1),
        "backbone.embedding.bias": take("patch_embeddings.projection.bias"),
        "backbone.class_token": take("embeddings.cls_token")[0, 0],
        "backbone.positions.table": take("position_embeddings")[0],
        "head.weight": take("classifier.weight"),
        "head.bias": take("classifier.bias"),
    }
    for part in ("weight", "bias"):
        weights[f"backbone.transformer.norm.{part}"] = take(f"vit.layernorm.{part}")
        for number in range(depth):
            ours, layer = (
                f"backbone.transformer.layers.{number}",
                f"layers.{number}" if has_new(theirs) else f"layer.{number}",
            )
            for mine, names in (
                ("attention.W_q", ("attention.attention.query", "attention.q_proj")),
                ("attention.W_k", ("attention.attention.key", "attention.k_proj")),
                ("attention.W_v", ("attention.attention.value", "attention.v_proj")),
                ("attention.W_o", ("attention.output.dense", "attention.o_proj")),
                ("norm_attention", ("layernorm_before",)),
                ("norm_mlp", ("layernorm_after",)),
                ("mlp.W_in", ("intermediate.dense", "mlp.fc1")),
                ("mlp.W_out", (f"{layer}.output.dense", "mlp.fc2")),
            ):
                endings = [name if name.startswith(layer) else f"{layer}.{name}" for name in names]
                weights[f"{ours}.{mine}.{part}"] = take(*(f".{ending}.{part}" for ending in endings))
    return weights


def has_new(theirs: dict[str, torch.Tensor]) -> bool:
    return any(".layers.0." in name for name in theirs)


def perturbed(config: VisionConfig) -> VisionTransformer:
    """Layers start as the identity, which would hide what attention does."""
    model = VisionTransformer(config)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return model.double().eval()


def image(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 6, 24, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal-2d", "rotary"])
def test_padding_changes_nothing_and_places_matter(pool: str, positions: str) -> None:
    model = perturbed(VisionConfig(**{**CONFIG.as_dict(), "pool": pool, "positions": {"kind": positions}}))
    X = image()
    alone = model(Batch({"image": Stream(features=X)}))
    padded = torch.cat((torch.full((2, 3, 24), 1e3, dtype=torch.float64), X), 1)
    real = torch.arange(9)[None].expand(2, 9) >= 3
    torch.testing.assert_close(model(Batch({"image": Stream(features=padded, real=real)})), alone)
    swapped = model(Batch({"image": Stream(features=X[:, [1, 0, 2, 3, 4, 5]])}))
    assert float((swapped - alone).detach().abs().max()) > 1e-4


def test_positions_in_two_dimensions_by_hand() -> None:
    """Patch (1, 2) of a grid of 3 columns: sin and cos of its row, then of its column; none for the class token."""
    r = Sinusoidal2D((2, 3), 4).add(torch.zeros(1, 2, 4), torch.tensor([[0, 1 + 1 * 3 + 2]]))[0]
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    torch.testing.assert_close(r[1], torch.stack((one.sin(), one.cos(), two.sin(), two.cos())))
    assert r[0].tolist() == [0, 0, 0, 0]


def test_positions_are_stretched_over_another_grid() -> None:
    """A plane that rises by 1 a row and 10 a column: stretched to twice the columns, two of them rise by 10."""
    plane = torch.arange(6.0)[:, None] + 10 * torch.arange(6.0)[None]
    table = torch.cat((torch.full((1, 1), 99.0), plane.reshape(36, 1)))
    wide = resized_positions(table, (6, 6), (6, 12))
    assert wide[0].item() == 99
    inner = wide[1:].reshape(6, 12)[:, 3:9]
    torch.testing.assert_close(inner[:, 2:] - inner[:, :-2], torch.full((6, 4), 10.0))
    torch.testing.assert_close(inner.diff(dim=0), torch.ones(5, 6))
    assert resized_positions(table, (6, 6), (6, 6)) is table


def test_taps_show_the_patterns() -> None:
    hooks = Hooks("layers.*.pattern")
    perturbed(CONFIG)(Batch({"image": Stream(features=image())}), hooks)
    assert {name: tuple(value.shape) for name, value in hooks.values.items()} == {
        "layers.0.pattern": (2, 2, 7, 7),
        "layers.1.pattern": (2, 2, 7, 7),
    }


def test_a_kind_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no pool 'last'"):
        VisionTransformer(VisionConfig(**{**CONFIG.as_dict(), "pool": "last"}))
    with pytest.raises(ValueError, match="divisible by 4"):
        VisionTransformer(VisionConfig(**{**CONFIG.as_dict(), "width": 6, "positions": {"kind": "sinusoidal-2d"}}))


def test_the_convolutional_network_knows_near_from_far() -> None:
    """A pixel's gradient reaches no further than three blocks can see: 22 pixels to either side."""
    model = ConvolutionalNetwork(ConvolutionalConfig((1, 9, 5), 3, width=8, depth=2))
    assert model.head.in_features == 16 * 3 * 2
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    X = torch.randn(2, 45, 1, generator=torch.Generator().manual_seed(1), requires_grad=True)
    logits = model.eval()(Batch({"image": Stream(features=X)}))
    assert logits.shape == (2, 3)
    logits[0].sum().backward()
    assert X.grad is not None
    assert float(X.grad[1].abs().max()) == 0 < float(X.grad[0].abs().min())
