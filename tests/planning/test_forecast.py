"""The formulas of a plan, held against models that are built, tensors that are saved, and published trainings."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tiny_training import NextToken, tiny_settings

from tokenloom.kernels import loader
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.gpt import GPT, GPTConfig
from tokenloom.nn import ops
from tokenloom.nn.modules import count_parameters
from tokenloom.planning import costs
from tokenloom.planning.costs import Work, activation_bytes, flops_per_token, memory, planned_model
from tokenloom.planning.estimate import measure_memory
from tokenloom.planning.forecast import Training, forecast, forecasts
from tokenloom.planning.hardware import Hardware, built_in

# vocab, context, width, depth, heads
SMALL, DEEP, LONG = (96, 64, 32, 1, 2), (300, 48, 64, 4, 4), (40, 192, 64, 2, 4)
GATED = {"kind": "gated", "activation": "silu", "bias": False, "hidden": 160}
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "dropout": {"dropout": 0.1},
    "shared keys": {"kv_heads": 1, "dropout": 0.1},
    "gated": {"mlp": GATED},
    "other norms": {"norm": "layer", "qk_norm": None},
    "plain norms": {"norm": "rms-plain", "qk_norm": "rms-plain"},
    "no positions": {"positions": {"kind": "none"}},
}


def config_of(preset: str, sizes: tuple[int, ...] = SMALL, **changes: Any) -> GPTConfig:
    vocab_size, context, width, depth, heads = sizes
    parts = {**GPTConfig.parts(preset), **changes}
    return GPTConfig(vocab_size, context, width=width, depth=depth, heads=heads, **parts)


def batch_of(config: GPTConfig, rows: int, borders: bool = False) -> Batch:
    ids = torch.randint(config.vocab_size, (rows, config.context + 1), generator=torch.Generator().manual_seed(0))
    stream = Stream(ids=ids[:, :-1])
    if borders:
        stream.segments = (torch.arange(config.context) >= config.context // 2).long().expand(rows, -1)
        stream.positions = torch.arange(config.context).expand(rows, -1)
    return Batch({"text": stream}, {"loss": ids[:, 1:]})


@pytest.mark.parametrize("preset", GPTConfig.presets)
@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_and_flops_are_those_of_the_model(preset: str, variant: str) -> None:
    config = config_of(preset, DEEP, **VARIANTS[variant])
    model, planned = GPT(config), planned_model(config)
    assert count_parameters(planned) == count_parameters(model)
    assert all(p.is_meta for p in planned.parameters())
    D, F, features = config.width, planned.transformer.layers[0].mlp.W_out.in_features, config.depth * config.width
    keys = D * (config.kv_heads or config.heads) // config.heads
    matrices = 2 * D * D + 2 * D * keys + (3 if config.mlp["kind"] == "gated" else 2) * D * F
    products = 6 * (config.depth * matrices + config.vocab_size * D)
    assert flops_per_token(planned, config.context) == products + 6 * features * config.context


def test_a_window_leaves_out_the_pairs_that_it_forbids() -> None:
    """Counted pair by pair; the formula takes N²/2 for N (N + 1) / 2."""
    config = config_of("modern", LONG, sliding_window=32)
    N, W = config.context, 32
    pairs = sum(min(n + 1, W) for n in range(N))
    matrices = sum(m.weight.numel() for m in planned_model(config).modules() if isinstance(m, torch.nn.Linear))
    expected = 6 * matrices + 12 * config.depth * config.width * pairs / N
    assert flops_per_token(planned_model(config), N) == pytest.approx(expected, rel=0.005)
    assert flops_per_token(planned_model(config_of("modern", LONG, sliding_window=N)), N) == flops_per_token(
        planned_model(config_of("modern", LONG)), N
    )


@pytest.mark.parametrize("preset", GPTConfig.presets)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_memory_is_what_a_training_saves(preset: str, variant: str, precision: Any) -> None:
    """Three sizes, three batches: weights, gradients and optimizer to the byte, activations within 3 %.

    (15 % is asked for. Norms without parameters on queries and keys lie a little differently in memory.)
    """
    for shape, rows in ((SMALL, 5), (DEEP, 1), (LONG, 2)):
        config = config_of(preset, shape, **VARIANTS[variant])
        settings = dataclasses.replace(tiny_settings("muon"), dtype=precision)
        with loader.disabled():
            real = measure_memory(NextToken(), GPT(config).train(), settings, batch_of(config, rows))
        said = memory(planned_model(config), Work(rows, precision))
        assert (said.weights, said.gradients, said.optimizer) == (real.weights, real.gradients, real.optimizer)
        assert said.activations == pytest.approx(real.activations, rel=0.03), (shape, rows)
        native = measure_memory(NextToken(), GPT(config).train(), settings, batch_of(config, rows)).activations
        assert native <= 1.01 * real.activations, "kernels keep shared keys once, and nothing more"
    planned = planned_model(config)
    assert memory(planned, Work(1), optimizer="adamw").optimizer == 8 * count_parameters(planned)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_masks_are_counted_where_they_are_kept(precision: Any) -> None:
    settings = dataclasses.replace(tiny_settings(), dtype=precision)
    for borders, window in ((True, None), (False, 8), (True, 8)):
        config = config_of("modern", LONG, sliding_window=window)
        real = measure_memory(NextToken(), GPT(config).train(), settings, batch_of(config, 3, borders))
        said = activation_bytes(planned_model(config), Work(3, precision, separate_documents=borders))
        assert said == pytest.approx(real.activations, rel=0.03), (borders, window)


def test_attention_in_blocks_keeps_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ops, costs):
        monkeypatch.setattr(module, "BLOCK_ENTRIES", 5000)
    config = config_of("modern", LONG)
    real = measure_memory(NextToken(), GPT(config).train(), tiny_settings(), batch_of(config, 3, borders=True))
    said = activation_bytes(planned_model(config), Work(3, separate_documents=True))
    assert said == pytest.approx(real.activations, rel=0.15)


@pytest.mark.parametrize("preset", GPTConfig.presets)
def test_checkpointing_keeps_the_inputs_and_one_layer(preset: str) -> None:
    """Held against torch's own checkpointing of each layer: what is saved at the end of the forward pass, and what the
    recomputation of one layer saves."""
    config = config_of(preset, DEEP, dropout=0.1)
    planned, rows = planned_model(config), 4
    whole = activation_bytes(planned, Work(rows))
    said = activation_bytes(planned, Work(rows, activation_checkpointing=True))
    model = Checkpointed(config).train()
    inputs = measure_memory(NextToken(), model, tiny_settings(), batch_of(config, rows)).activations
    real = inputs + costs.layer_activation_bytes(planned, Work(rows))
    assert said == pytest.approx(real, rel=0.15)
    assert said < whole / 2


class Checkpointed(GPT):
    """Each layer computed again in the backward pass."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        from torch.utils.checkpoint import checkpoint

        for layer in self.transformer.layers:
            usual = layer.forward
            layer.forward = lambda X, _usual=usual, **rest: checkpoint(_usual, X, use_reentrant=False, **rest)


def test_sharding_shares_everything_out_but_the_activations() -> None:
    planned = planned_model(config_of("modern", DEEP))
    one, work = memory(planned, Work(2)), Work(2)
    assert memory(planned, work, mode="fsdp", devices=1) == one
    eight = memory(planned, work, mode="fsdp", devices=8)
    layer = count_parameters(planned.transformer.layers[0])
    outside = count_parameters(planned) - len(planned.transformer.layers) * layer
    assert eight.weights == -(-one.weights // 8) + 4 * (outside + 2 * layer)
    assert eight.gradients == -(-one.gradients // 8) + 4 * (outside + layer)
    assert eight.optimizer == -(-one.optimizer // 8)
    assert eight.activations == one.activations


def test_data_parallel_devices_hold_everything_and_a_copy_of_the_gradients_in_place_of_activations() -> None:
    planned = planned_model(config_of("modern", DEEP))
    for rows in (1, 50):
        one = memory(planned, Work(rows))
        eight = memory(planned, Work(rows), mode="ddp", devices=8)
        assert (eight.weights, eight.gradients, eight.optimizer) == (one.weights, one.gradients, one.optimizer)
        assert eight.activations == max(one.activations, one.gradients)


# Published trainings.


def published(vocab_size: int, context: int, width: int, depth: int, heads: int, **changes: Any) -> GPT:
    """A model of the GPT family by its published sizes; norms and positions make no difference to FLOPs."""
    return planned_model(
        dataclasses.replace(
            GPTConfig(vocab_size, context, width=width, depth=depth, heads=heads, **GPTConfig.parts("classic")),
            **changes,
        )
    )


def test_gpt_3() -> None:
    """Brown et al. 2020, tables 2.1 and D.1: 174.6e9 parameters, 3.14e23 FLOPs for 300e9 tokens.

    They count 6 a parameter and no attention; we count attention, and the head apart from the embedding: 1.5 % more.
    """
    model = published(50257, 2048, 12288, 96, 96)
    assert count_parameters(model) == pytest.approx(174.6e9, rel=0.005)
    assert Training(model, 300 * 10**9, 1536).flops == pytest.approx(3.14e23, rel=0.02)


def test_chinchilla() -> None:
    """Hoffmann et al. 2022, table 4 and section 3: 70e9 parameters, 1.4e12 tokens, the budget of Gopher, 5.76e23 FLOPs.

    Less the numbers of its relative positions, which ours does not have: 3.7 % fewer.
    """
    model = published(32000, 2048, 8192, 80, 64)
    assert Training(model, 1400 * 10**9, 1536).flops == pytest.approx(5.76e23, rel=0.05)


LLAMA_2 = [
    (4096, 32, 32, None, 11008, 6.74e9, 184_320),
    (5120, 40, 40, None, 13824, 13.0e9, 368_640),
    (8192, 80, 64, 8, 28672, 69.0e9, 1_720_320),
]


@pytest.mark.parametrize(("width", "depth", "heads", "kv_heads", "hidden", "size", "hours"), LLAMA_2)
def test_llama_2(
    width: int, depth: int, heads: int, kv_heads: int | None, hidden: int, size: float, hours: int
) -> None:
    """Touvron et al. 2023b, table 2: GPU-hours on A100-80GB for 2.0e12 tokens, with a context of 4,096.

    At an MFU of 40 % the plan says 3.5 % more, 0.8 % less and 10.9 % more.
    """
    config = GPTConfig(
        32000,
        4096,
        width=width,
        depth=depth,
        heads=heads,
        kv_heads=kv_heads,
        mlp={**GATED, "hidden": hidden},
        qk_norm=None,
    )
    model = planned_model(config)
    assert count_parameters(model) == pytest.approx(size, rel=0.005)
    one = forecast(Training(model, 2 * 10**12, 1024), built_in()["a100-80"], num_devices=1024, mode="fsdp")
    assert one.dtype == "bfloat16"
    assert one.num_devices * one.seconds / 3600 == pytest.approx(hours, rel=0.12)


# Forecasts.

BOX = Hardware("box", {"float32": 1e9, "bfloat16": 4e9}, 10**7)


def test_rates_by_hand() -> None:
    model = planned_model(config_of("modern", DEEP))
    training = Training(model, 10**6, batch_size=16)
    one = forecast(training, BOX, num_devices=4, mode="ddp", mfu=0.5)
    assert one.dtype == "bfloat16"
    assert one.tokens_per_second == pytest.approx(4 * 4e9 * 0.5 / flops_per_token(model, model.config.context))
    assert one.seconds == pytest.approx(10**6 / one.tokens_per_second)
    assert one.days == one.seconds / 86400
    plain = forecast(training, BOX, dtype="float32")
    assert plain.tokens_per_second == pytest.approx(1e9 * 0.4 / flops_per_token(model, model.config.context))
    # Recomputing costs a third of the layers' work: 8 operations a number for 6.
    again = forecast(training, BOX, dtype="float32", activation_checkpointing=True)
    layers = flops_per_token(model, model.config.context) - 6 * model.lm_head.weight.numel()
    expected = 1 + layers / 3 / flops_per_token(model, model.config.context)
    assert plain.tokens_per_second / again.tokens_per_second == pytest.approx(expected)
    measured = dataclasses.replace(BOX, mfu=0.25)
    assert forecast(training, measured).mfu == 0.25, "what was measured holds"


def test_a_device_works_on_its_own_samples() -> None:
    training = Training(planned_model(config_of("modern")), 1, batch_size=32, grad_accum=2)
    assert [training.micro_batch_size(n) for n in (1, 2, 3, 16)] == [16, 8, 6, 1]


def test_what_fits_keeps_a_tenth_free() -> None:
    training = Training(planned_model(config_of("modern")), 1, batch_size=2)
    need = forecast(training, BOX).needed
    assert forecast(training, dataclasses.replace(BOX, memory=int(need / 0.9) + 10)).fits
    assert forecast(training, dataclasses.replace(BOX, memory=int(need / 0.9) - 10)).missing > 0


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (1.2, ""),
        (0.85, "--grad-accum 4"),
        (0.65, "--grad-accum 2 and --activation-checkpointing"),
        (0.5, "--parallel fsdp on 2 devices"),
        (0.15, "--parallel fsdp --activation-checkpointing on 8 devices"),
        (0.01, "smaller"),
    ],
)
def test_what_does_not_fit_says_what_would(share: float, words: str) -> None:
    """And it is true: with the remedy it fits."""
    training = Training(planned_model(config_of("modern", (40, 16, 64, 16, 4))), 10**6, batch_size=8)
    need = forecast(training, BOX).needed
    machine = dataclasses.replace(BOX, memory=int(need * share))
    found = forecasts(training, machine, num_devices=2)
    assert [one.mode for one in found] == ["one device"] * 2 + ["ddp"] * 2 + ["fsdp"] * 2
    assert [one.activation_checkpointing for one in found] == [False, True] * 3
    first = found[0]
    assert words in first.remedy
    assert first.fits == (first.remedy == "") == (words == "")
    if first.remedy.startswith("--grad-accum"):
        grad_accum = int(first.remedy.split()[1])
        eased = dataclasses.replace(training, grad_accum=grad_accum)
        assert forecast(eased, machine, activation_checkpointing="--activation-checkpointing" in first.remedy).fits
        assert not forecast(dataclasses.replace(training, grad_accum=grad_accum // 2), machine).fits, "with less not"
    if first.remedy.startswith("--parallel"):
        count = int(first.remedy.split(" on ")[1].split()[0].replace(",", ""))
        smallest = dataclasses.replace(training, batch_size=max(8, count), grad_accum=max(1, 8 // count))
        arguments: dict[str, Any] = {
            "mode": "fsdp",
            "activation_checkpointing": "--activation-checkpointing" in first.remedy,
        }
        assert forecast(smallest, machine, num_devices=count, **arguments).fits


def test_the_work_space_is_what_the_loss_takes_going_backward() -> None:
    """Tensors of the logits' shape that are there at once: those that two nodes of the graph hand on."""
    model = planned_model(config_of("modern"))
    logits = torch.zeros(2 * model.config.context, model.vocab_size, requires_grad=True)
    made: list[torch.Tensor] = []
    loss = torch.nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64), reduction="sum")
    node = loss.grad_fn
    while node is not None:
        node.register_hook(lambda inputs, outputs: made.extend(t for t in inputs if t is not None))
        node = next((following for following, _ in node.next_functions if following is not None), None)
    loss.backward()
    large = {t.data_ptr(): t.nbytes for t in made if t.shape == logits.shape}
    assert sum(large.values()) == costs.workspace_bytes(model, Work(2))
