"""What a training will cost, held against counting what it does."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import NextToken, batches_of, run_in, tiny_settings, train, weights
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tokenloom.config import fill
from tokenloom.models.batch import Batch, Stream
from tokenloom.models.convolutional import ConvolutionalConfig, ConvolutionalNetwork
from tokenloom.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from tokenloom.models.gpt import GPT, GPTConfig
from tokenloom.models.image_gpt import ImageGPT, ImageGPTConfig
from tokenloom.models.vision import VisionConfig, VisionTransformer
from tokenloom.models.vqvae import VQVAE, VQVAEConfig
from tokenloom.nn import attention
from tokenloom.planning import estimate
from tokenloom.planning.estimate import (
    evaluations,
    flops_per_token,
    make_plan,
    measure_memory,
    save_interval,
    seconds_per_save,
    seconds_per_step,
)
from tokenloom.training.checkpoints import Checkpoints
from tokenloom.training.loop import Trainer
from tokenloom.training.losses import LossTerms
from tokenloom.training.optimizers import state_tensors
from tokenloom.training.settings import DEFAULT_RECIPE, TrainingSettings

LAYERS, WIDTH, TOKENS = 2, 32, 24


def model_of(preset: str) -> GPT:
    model = GPT(GPTConfig(11, TOKENS, width=WIDTH, depth=LAYERS, heads=4, **GPTConfig.parts(preset)))
    with torch.no_grad():  # maps that start at zero would save the counter nothing, but be on the safe side
        for p in model.parameters():
            p.add_(0.01)
    return model


def full_batch(rows: int = 3) -> Batch:
    ids = torch.randint(11, (rows, TOKENS + 1), generator=torch.Generator().manual_seed(0))
    return Batch({"text": Stream(ids=ids[:, :-1])}, {"loss": ids[:, 1:]})


@pytest.mark.parametrize("preset", ["classic", "modern"])
def test_flops_are_those_that_torch_counts(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the explicit road, which computes all pairs of tokens: the formula counts the half that causality leaves.

    So torch counts 6 L D N more for each token than the formula says, and nothing else.
    """
    monkeypatch.setattr(attention, "fused_attention", lambda *args: attention.explicit_attention(*args)[0])
    model, batch = model_of(preset), full_batch()
    counter = FlopCounterMode(display=False)
    with counter:
        NextToken().compute_loss(model, batch)["loss"].sums.sum().backward()
    tokens = 3 * TOKENS
    forbidden_half = 6 * LAYERS * WIDTH * TOKENS
    formula = flops_per_token(model, TOKENS)
    assert counter.get_total_flops() == pytest.approx((formula + forbidden_half) * tokens, rel=0.01)
    assert forbidden_half > 0.02 * formula, "or the two would not be told apart"


def test_flops_by_hand() -> None:
    """12 D² in each layer and D × 11 for the head, six times; and attention."""
    linear = 6 * (LAYERS * 12 * WIDTH**2 + 11 * WIDTH)
    model = model_of("modern")
    assert flops_per_token(model, 1) == linear + 6 * LAYERS * WIDTH
    assert flops_per_token(model, 100) == linear + 6 * LAYERS * WIDTH * 100


def test_an_encoder_sees_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 24 patches of 4 numbers; the embedding 4 D, 12 D² in each layer, two classes. And as torch counts."""
    monkeypatch.setattr(attention, "fused_attention", lambda *args: attention.explicit_attention(*args)[0])
    model = VisionTransformer(VisionConfig(grid=(4, 6), inputs=4, outputs=2, width=WIDTH, depth=LAYERS, heads=4))
    linear = 6 * (4 * WIDTH + LAYERS * 12 * WIDTH**2 + 2 * WIDTH)
    formula = flops_per_token(model, TOKENS)
    assert formula == linear + 12 * LAYERS * WIDTH * TOKENS
    counter = FlopCounterMode(display=False)
    with counter:
        model(Batch({"image": Stream(features=torch.randn(3, TOKENS, 4))})).sum().backward()
    assert counter.get_total_flops() == pytest.approx(formula * 3 * TOKENS, rel=0.01)


@pytest.mark.parametrize("sides", [(12, 8), (9, 7)])
def test_convolutions_are_counted_at_their_places(sides: tuple[int, int]) -> None:
    """Forward a third of the whole, exactly what torch counts, where sides are no powers of two as well."""
    H, W = sides
    cnn = ConvolutionalNetwork(ConvolutionalConfig((3, H, W), 5, width=8, depth=2))
    codes = VQVAE(VQVAEConfig(H, W, 3, downsample_factor=4, codebook_size=6, hidden_channels=16, code_dim=4))
    for model, name in ((cnn, "image"), (codes, "image")):
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            model(Batch({name: Stream(features=torch.rand(2, H * W, 3))}))
        found = counter.get_total_flops()
        if model is codes:
            rows, columns = codes.config.grid
            found -= 2 * 2 * 4 * 6 * rows * columns  # The nearest of 6 vectors of 4 features: no learned map.
        assert 2 * H * W * flops_per_token(model, H * W) / 3 == pytest.approx(found, rel=1e-4)


def test_a_convolution_by_hand() -> None:
    """3 × 3 × 2 × 8 numbers at each of 16 pixels, 3 × 3 × 8 × 16 at 4, and 16 numbers to 5 classes; 6 times."""
    model = ConvolutionalNetwork(ConvolutionalConfig((2, 4, 4), 5, width=8, depth=2))
    assert flops_per_token(model, 16) == 6 * (144 * 16 + 1152 * 4 + 80) / 16


def test_of_an_encoder_decoder_the_decoders_own_attention_alone_is_halved() -> None:
    """By hand, a layer each: 12 D² and 12 D N of the encoder; 16 D², 6 D N of itself and 12 D N of the source."""
    model = EncoderDecoder(EncoderDecoderConfig(11, 7, TOKENS, TOKENS, width=WIDTH, depth=1, heads=4))
    expected = 6 * (28 * WIDTH**2 + 7 * WIDTH) + (12 + 6 + 12) * WIDTH * TOKENS
    assert flops_per_token(model, TOKENS) == expected
    painter = ImageGPT(ImageGPTConfig(11, 4, 6, width=WIDTH, depth=1, heads=4))
    assert flops_per_token(painter, TOKENS) == 6 * (12 * WIDTH**2 + 11 * WIDTH) + 6 * WIDTH * TOKENS


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_weights_gradients_and_optimizer_take_what_was_foretold(kind: str) -> None:
    """Exactly, but for AdamW's step counters, which are left out: 4 bytes a parameter tensor."""
    settings = tiny_settings(kind)
    model = model_of("classic")
    frozen = model.positions
    frozen.requires_grad_(False)
    memory = measure_memory(NextToken(), model, settings, full_batch())
    trainer = Trainer(NextToken(), model, settings, lambda step: [full_batch()])
    gradients: list[int] = []
    for optimizer in trainer.optimizers:
        optimizer.register_step_pre_hook(
            lambda o, *_: gradients.extend(p.grad.nbytes for g in o.param_groups for p in g["params"])
        )
    trainer.step(0, 10)
    state = state_tensors(model, trainer.optimizers)
    counters = [tensor for name, tensor in state.items() if name.endswith("/step")]
    assert memory.weights == sum(p.nbytes for p in model.parameters())
    assert memory.gradients == sum(gradients) < memory.weights
    assert memory.optimizer == sum(tensor.nbytes for tensor in state.values()) - 4 * len(counters)
    assert memory.total == memory.weights + memory.gradients + memory.optimizer + memory.activations


def saved_by_graph(result: Tensor, own: set[int]) -> int:
    """Bytes that the graph behind a result keeps for backward, read off its nodes; each storage once."""
    storages: dict[int, int] = {}

    def keep(value: Any) -> None:
        if isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in own:
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, list | tuple):
            for one in value:
                keep(one)

    seen, nodes = set(), [result.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        names = [name for name in dir(node) if name.startswith("_saved_")]
        for value in [getattr(node, name) for name in names] + [getattr(node, "saved_tensors", ())]:
            keep(value)
        nodes += [following for following, _ in node.next_functions]
    return sum(storages.values())


@pytest.mark.parametrize("preset", ["classic", "modern"])
@pytest.mark.parametrize("rows", [1, 5])
def test_activations_are_what_the_graph_keeps(preset: str, rows: int) -> None:
    model, batch = model_of(preset), full_batch(rows)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    memory = measure_memory(NextToken(), model, tiny_settings(), batch)
    kept = NextToken().compute_loss(model, batch)["loss"].sums.sum()
    assert memory.activations == pytest.approx(saved_by_graph(kept, own), rel=0.01)
    # And it is of the size to be expected: some tens of tensors of B × N × D floats.
    assert 10 < memory.activations / (rows * TOKENS * WIDTH * 4) < 60 * LAYERS


def test_activations_grow_with_the_micro_batch_and_shrink_in_half_precision() -> None:
    model = model_of("classic")

    def activations(rows: int, precision: str = "float32") -> int:
        settings = replace(tiny_settings(), dtype=precision)  # type: ignore[arg-type]
        return measure_memory(NextToken(), model, settings, full_batch(rows)).activations

    assert activations(8) > 1.8 * activations(4)
    assert activations(8, "bfloat16") < activations(8)


# The plan.


def planned(
    monkeypatch: pytest.MonkeyPatch,
    seconds: float = 0.25,
    cost: float = 0.0,
    folder: Path | None = None,
    **settings: Any,
) -> estimate.Plan:
    """A plan on a machine of known speed."""
    monkeypatch.setattr(estimate, "seconds_per_step", lambda *args, **more: seconds)
    given, _ = fill(TrainingSettings(threads=1, **settings), DEFAULT_RECIPE)
    batches = batches_of(tiny_settings(grad_accum=2))
    derived: dict[str, object] = {"size": "small"}
    return make_plan(NextToken(), model_of("modern"), given, batches, batches.steps_per_epoch, derived, cost, folder)


def test_minutes_fix_the_steps_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A little of the time is kept for evaluations and saving; afterwards the steps hold, whatever the speed."""
    plan = planned(monkeypatch, minutes=2.0)
    assert 0.9 * 480 <= plan.steps <= 480
    assert plan.settings.minutes is None
    assert plan.seconds == pytest.approx(plan.steps * 0.25)
    batches = batches_of(tiny_settings())
    monkeypatch.setattr(estimate, "seconds_per_step", lambda *args, **more: 99.0)
    again = make_plan(NextToken(), model_of("modern"), plan.settings, batches, batches.steps_per_epoch, {})
    assert again.settings == plan.settings


@pytest.mark.parametrize(
    ("steps", "cost", "times"),
    [(1000, 0.0, 20), (1000, 5.0, 20), (1000, 30.0, 5), (1000, 1000.0, 1), (3, 0.0, 3), (1, 50.0, 1)],
)
def test_evaluations_take_little_of_the_time(steps: int, cost: float, times: int) -> None:
    """Twenty of them, or as many as fit in 15 % of the time, but one at least."""
    assert evaluations(steps, cost) == times


def test_minutes_count_the_evaluations_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs 40 steps of a quarter of a second: ten seconds of two minutes."""
    plan = planned(monkeypatch, minutes=2.0, cost=40.0)
    every = plan.settings.eval_every
    assert every is not None
    times = -(-plan.steps // every)
    assert 1 <= times < 20
    assert 0.9 * 120 <= plan.steps * 0.25 + times * 10 <= 120


def test_a_moment_is_at_least_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(monkeypatch, seconds=1000.0, minutes=0.1)
    assert plan.steps == 1
    assert plan.settings.eval_every == 1


@pytest.mark.parametrize(("steps", "every", "warmup_steps"), [(1, 1, 1), (20, 1, 1), (95, 5, 5), (5000, 250, 100)])
def test_what_depends_on_the_steps_is_derived(
    steps: int, every: int, warmup_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(monkeypatch, steps=steps)
    assert (plan.settings.steps, plan.settings.eval_every, plan.settings.warmup_steps) == (steps, every, warmup_steps)


def test_the_plan_says_what_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(monkeypatch, steps=10, eval_every=3)
    assert plan.settings.eval_every == 3, "what was given stays"
    assert plan.parameters == sum(p.numel() for p in model_of("modern").parameters())
    targets = sum(sum(batch.counts().values()) for batch in batches_of(tiny_settings(grad_accum=2))(0))
    assert plan.targets_per_step == targets
    assert plan.tokens_per_second == pytest.approx(targets / 0.25)
    assert plan.steps_per_epoch == 7
    assert plan.device == "cpu"
    assert plan.derived["size"] == "small"


def test_measuring_changes_nothing() -> None:
    """A planned training is the same as one that was not, and a rate that would break it does not break the plan."""
    settings = tiny_settings(steps=5, lr=1e9)
    model = model_of("modern")
    model.register_buffer("seen", torch.zeros(1))

    def count(model: nn.Module, batch: Batch) -> None:
        model.seen += 1  # type: ignore[operator]

    before, state = weights(model), copy.deepcopy(model.state_dict())
    batches = batches_of(settings)
    make_plan(NextToken(count), model, replace(settings, threads=1), batches, 7, {})
    assert torch.equal(weights(model), before)
    assert model.seen == 0
    assert all(p.grad is None for p in model.parameters())
    sound = tiny_settings(steps=5)
    one, _ = train(sound, model=model)
    fresh = model_of("modern")
    fresh.load_state_dict({name: value for name, value in state.items() if name != "seen"})
    two, _ = train(sound, model=fresh)
    assert [getattr(e, "loss", 0) for e in one] == [getattr(e, "loss", 0) for e in two]


def test_the_median_step_is_measured_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only the steps move: the first, which warms up, counts for neither step nor budget."""
    now = 0.0

    class Slow(NextToken):
        delays = iter([0.15, 0.1, 0.02, *[0.05] * 100])

        def compute_loss(self, model: nn.Module, batch: Batch) -> LossTerms:
            nonlocal now
            now += next(self.delays)
            return super().compute_loss(model, batch)

    monkeypatch.setattr(estimate.time, "perf_counter", lambda: now)
    settings = tiny_settings()
    measured = seconds_per_step(Slow(), model_of("modern"), settings, batches_of(settings), budget=0.5)
    assert measured == pytest.approx(0.05)
    assert 0.15 + 0.5 <= now < 0.15 + 0.55


def test_threads_are_timed_and_chosen_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(estimate, "cores", lambda: 2)
    try:
        for fastest in (1, 2):

            def timed(*args: Any, best: int = fastest, **more: Any) -> float:
                return 0.1 if torch.get_num_threads() == best else 0.2

            monkeypatch.setattr(estimate, "seconds_per_step", timed)
            settings = tiny_settings()
            chosen, seconds = estimate.choose_threads(NextToken(), model_of("modern"), settings, batches_of(settings))
            assert chosen.threads == fastest == torch.get_num_threads()
            assert seconds == 0.1
            given = replace(settings, threads=1)
            chosen, _ = estimate.choose_threads(NextToken(), model_of("modern"), given, batches_of(given))
            assert chosen.threads == 1 == torch.get_num_threads(), "what was given is not tried against others"
    finally:
        torch.set_num_threads(before)


# What saving costs.


@pytest.mark.parametrize(
    ("step", "save", "every"),
    [(0.1, 0.01, 300), (0.1, 6.0, 3000), (45.0, 0.1, 1), (100.0, 0.5, 1), (2.0, 30.0, 750), (1e-3, 1e-4, 30000)],
)
def test_a_save_comes_every_half_minute_or_as_seldom_as_two_percent_wants(step: float, save: float, every: int) -> None:
    assert save_interval(step, save) == every
    assert save <= 0.02 * every * step * 1.01


def test_how_often_to_save_is_derived_where_there_is_a_disk_to_save_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(estimate, "seconds_per_save", lambda model, settings, folder: asked.append(folder) or 1.0)
    assert planned(monkeypatch, steps=5000).settings.save_every is None
    assert not asked
    long = planned(monkeypatch, steps=5000, folder=tmp_path)
    assert long.settings.eval_every == 250
    assert long.settings.save_every == 200, "a second each in 50 seconds of steps"
    short = planned(monkeypatch, steps=100, folder=tmp_path)
    assert short.settings.save_every == short.settings.eval_every == 5, "evaluations save anyway"
    asked.clear()
    assert planned(monkeypatch, steps=5000, save_every=3, folder=tmp_path).settings.save_every == 3
    assert not asked, "what was given is not measured"


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_trial_save_is_as_large_as_a_real_one_and_leaves_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def watch(self: Checkpoints, *arguments: Any) -> Path:
        folder = save(self, *arguments)
        sizes.append(sum(path.stat().st_size for path in folder.iterdir()))
        return folder

    save = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", watch)
    settings, model = tiny_settings(kind, steps=1), model_of("modern")
    assert 0 < seconds_per_save(model, settings, tmp_path) < 10
    assert not list(tmp_path.iterdir())
    train(settings, model=model, run=run_in(tmp_path))
    trial, real = sizes
    assert trial == pytest.approx(real, rel=0.1)
