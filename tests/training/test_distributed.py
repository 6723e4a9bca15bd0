"""Two processes, in either mode, do what one does: the same losses, weights, evaluations and checkpoints."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from several import in_each
from tiny_training import NextToken, after, batches_of, rows, run_in, tiny_gpt, tiny_settings
from torch import Tensor, nn

from tokenloom.errors import UserError
from tokenloom.models.batch import Batch
from tokenloom.nn.hooks import Hooks
from tokenloom.training.batches import Batches, evaluation_keys
from tokenloom.training.checkpoints import full_tensors, load_weights, model_tensors
from tokenloom.training.distributed import DistributedGroup, checkpoint_activations, full_tensor, local_tensor
from tokenloom.training.events import Evaluated, Saved, StepFinished
from tokenloom.training.loop import NonFiniteLoss, Trainer, fit
from tokenloom.training.muon import Muon
from tokenloom.training.settings import TrainingSettings

# Rows of 1 to 8 targets: the two halves of a batch hardly ever have equally many. The last of the five batches of an
# epoch has one row, so that the second process has none; so has it in the second batch of an evaluation.
BATCH = 6
TRAINING, VALIDATION = rows(25), rows(7, seed=9)
MODES = ("ddp", "fsdp")


def settings_of(optimizer: str, steps: int, grad_accum: int = 1, **more: Any) -> TrainingSettings:
    given = {"batch_size": BATCH, "grad_accum": grad_accum, "eval_every": max(1, steps // 2), "grad_clip": 0.5, **more}
    return tiny_settings(optimizer, steps=steps, **given)


def told(events: Any) -> dict[str, list[float]]:
    """What a training says, as lists of numbers."""
    events = list(events)
    steps = [e for e in events if isinstance(e, StepFinished)]
    return {
        "loss": [e.loss for e in steps],
        "norm": [e.grad_norm for e in steps],
        "targets": [e.num_targets for e in steps],
        "step": [e.step for e in steps],
        "validation": [e.metrics["loss"] for e in events if isinstance(e, Evaluated)],
        "hits": [e.metrics["hits"] for e in events if isinstance(e, Evaluated)],
        "count": [e.metrics["count"] for e in events if isinstance(e, Evaluated)],
    }


def one_process(
    settings: TrainingSettings, validation: Any = VALIDATION, training: Any = TRAINING, **more: Any
) -> dict[str, list[float]]:
    batches = batches_of(settings, training)
    return told(fit(NextToken(), tiny_gpt(depth=2), settings, batches, validation, **more))


def shared(
    processes: DistributedGroup,
    mode: str,
    settings: TrainingSettings,
    validation: Any = VALIDATION,
    training: Any = TRAINING,
    **more: Any,
) -> Any:
    """The same in this process of several: its events, and the weights in the end."""
    assert settings.batch_size is not None
    share = (processes.rank, processes.world_size)
    sizes = {"batch_size": settings.batch_size, "seed": settings.seed, "grad_accum": settings.grad_accum}
    task, model = NextToken(), tiny_gpt(depth=2)
    batches = Batches(training, task.collate, **sizes, share=share)
    said = told(fit(task, model, settings, batches, validation, processes=processes.mode(mode), **more))
    return said, {name: tensor.numpy() for name, tensor in full_tensors(model).items()}


def _run(folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    return run_in(folder)


def furthest(a: list[float], b: list[float]) -> float:
    assert len(a) == len(b) > 0
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


# One process = two = two with a part each = accumulated.


# Muon in bfloat16 turns differences in the last bit into visible ones, which grow from step to step, also between one
# process and itself with accumulation; more so where a loss is the mean of few targets. So there are more of them here.
# (In the short run the fifth batch has but one.)
MANY = {10: rows(4 * 32 + 1, longest=16), 50: rows(18 * 32 + 16, longest=16)}


def _many(optimizer: str, steps: int, grad_accum: int = 1) -> dict[str, Any]:
    return {"settings": settings_of(optimizer, steps, grad_accum, batch_size=32), "training": MANY[steps]}


def _equal_in_each(processes: DistributedGroup, steps: int) -> dict[str, Any]:
    return {
        f"{optimizer}, {mode}, {pieces} pieces": shared(processes, mode, **_many(optimizer, steps, pieces))
        for optimizer in ("adamw", "muon")
        for mode in MODES
        for pieces in (1, 3)
    }


def _check_equal(steps: int) -> None:
    straight = {name: [one_process(**_many(name, steps, pieces)) for pieces in (1, 3)] for name in ("adamw", "muon")}
    for name, (whole_batch, pieces) in straight.items():
        print(
            f"{name}, one process, 1 and 3 pieces: losses differ by {furthest(whole_batch['loss'], pieces['loss']):.1e}"
        )
    first, second = in_each(_equal_in_each, steps)
    for name, (said, weights) in first.items():
        assert second[name][0] == said, "all processes see the same events"
        assert all(np.array_equal(second[name][1][key], weights[key]) for key in weights)
        optimizer = name.split(",")[0]
        bound = {"adamw": 1e-5, "muon": 1e-3}[optimizer]
        for other in straight[optimizer]:
            print(f"{name}: losses differ by {furthest(said['loss'], other['loss']):.1e}")
            for what in ("loss", "validation"):
                assert furthest(said[what], other[what]) <= bound, f"{name}: {what}"
            assert furthest(said["norm"], other["norm"]) <= 100 * bound, f"{name}: norms"
            assert said["targets"] == other["targets"]
            assert said["count"] == other["count"]


def test_one_process_is_two_is_sharded_is_accumulated() -> None:
    _check_equal(10)


@pytest.mark.slow
def test_one_process_is_two_is_sharded_is_accumulated_for_50_steps() -> None:
    _check_equal(50)


def test_the_parts_of_a_batch_do_differ_in_targets() -> None:
    """Else a mean of means would pass for the mean."""
    parts = [Batches(MANY[10], NextToken().collate, batch_size=32, seed=4, share=(r, 2)) for r in (0, 1)]
    counts = [[part(step)[0].counts()["loss"] for part in parts] for step in range(10)]
    assert sum(a != b for a, b in counts) >= 8
    assert [a for a, b in counts if b == 0], "and in one step the second has none"


# Who reads what.


@pytest.mark.parametrize("world", [1, 2, 3, 6])
@pytest.mark.parametrize("grad_accum", [1, 2, 5])
def test_each_sample_of_a_step_is_read_once_by_one_process(world: int, grad_accum: int) -> None:
    taken: list[tuple[int, int]] = []

    class Watched(type(TRAINING)):  # type: ignore[misc]
        def take(self, keys: Any) -> Any:
            taken.extend((-1, int(key)) for key in keys)
            return super().take(keys)

    samples = Watched(TRAINING.items)
    processes = [
        Batches(samples, NextToken().collate, batch_size=BATCH, seed=1, grad_accum=grad_accum, share=(r, world))
        for r in range(world)
    ]
    assert len({one.fingerprint() for one in processes}) == 1
    for step in range(12):
        taken.clear()
        lengths, keys = [], processes[0].keys(step).tolist()
        for rank, one in enumerate(processes):
            before = len(taken)
            lengths.append(len(one(step)))
            taken[before:] = [(rank, key) for _, key in taken[before:]]
        assert len(set(lengths)) == 1, "all take part in every micro-batch"
        if len(keys) >= world:
            assert [key for _, key in taken] == keys
        else:
            # What has nothing to do reads a sample of its own slice of another step, and counts nothing of it.
            assert [key for rank, key in taken if rank < len(keys)] == keys
            idle = [(rank, key) for rank, key in taken if rank >= len(keys)]
            assert all(key in np.array_split(processes[0].keys(0), world)[rank] for rank, key in idle)
            assert all(processes[rank](step)[0].counts() == {"loss": 0} for rank, _ in idle)


@pytest.mark.parametrize(("count", "batch_size", "world"), [(7, 3, 2), (1, 5, 2), (12, 4, 3), (5, 1, 4)])
def test_an_evaluation_is_shared_out_in_order(count: int, batch_size: int, world: int) -> None:
    samples = rows(count)
    parts = [list(evaluation_keys(samples, batch_size, (rank, world))) for rank in range(world)]
    assert len({len(part) for part in parts}) == 1
    assert all(len(keys) <= batch_size for part in parts for keys in part)
    assert np.concatenate([keys for part in parts for keys in part]).tolist() == list(range(count))


def test_fewer_samples_than_processes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"batch_size 2, .* 3 process"):
        Batches(TRAINING, NextToken().collate, batch_size=2, seed=1, share=(0, 3))


# Evaluation, refusals, breakdowns: several checks in one start of two processes.


class Spoilt(NextToken):
    """Not a number from the third batch on, and only in one process."""

    def __init__(self, processes: DistributedGroup) -> None:
        super().__init__()
        self.processes, self.seen = processes, 0

    def compute_loss(self, model: nn.Module, batch: Batch) -> Any:
        terms = super().compute_loss(model, batch)
        self.seen += 1
        if self.seen > 2 and self.processes.rank == 1:
            terms["loss"].sums = terms["loss"].sums * float("nan")
        return terms


def _refusing(processes: DistributedGroup) -> None:
    raise UserError(f"process {processes.rank} cannot read it")


def _many_things(processes: DistributedGroup, folder: Path) -> dict[str, Any]:
    rank = processes.rank
    found: dict[str, Any] = {}
    found["each"] = processes.all_gather_object(
        lambda: {"rank": rank, "long": "é" * 600 * rank, "pi": 0.1 + rank, "none": None}
    )
    found["lead"] = processes.run_on_rank0(lambda: f"{rank} says so")
    found["rows"] = processes.all_gather_rows(torch.arange(2.0 + rank, dtype=torch.float64)).tolist()
    order: list[float] = []
    processes.in_turn(lambda: order.append(rank) or (folder / "made").exists() or (folder / "made").touch())
    found["turn"] = processes.all_gather_object(lambda: order)
    for who in (0, 1):
        try:
            processes.run_on_all(lambda who=who: _refusing(processes) if rank == who else None)
        except UserError as error:
            found[f"refused {who}"] = (str(error), error.told)
    # Gradients: one parameter that only one process uses, and one that none does.
    names = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    names[0].grad = torch.full((2,), 1.0 + rank)
    if rank:
        names[1].grad = torch.tensor([5.0, 6.0])
    processes.mode("ddp").all_reduce_gradients(names)
    found["sums"] = [None if p.grad is None else p.grad.tolist() for p in names]
    # The weights of the first process are those of all.
    model = tiny_gpt(seed=rank)
    processes.wrap(model, False)
    found["spread"] = float(model.lm_head.weight.detach().abs().sum())
    # Muon on parts orthogonalizes the whole matrix, as it does on one process.
    found["muon"] = max(_muon(processes, shape) for shape in ((12, 8), (7, 16), (1, 5)))
    # One validation sample for two processes; and one that asks to stop.
    settings = settings_of("adamw", 6, eval_every=2)
    for mode in MODES:
        found[f"one {mode}"] = shared(processes, mode, settings, rows(1))[0]["validation"]
        stop = after(3) if rank else (lambda: False)
        run = _run(folder / f"stopped {mode}")
        events = list(_events(processes, mode, NextToken(), settings, run=run, stop=stop))
        found[f"stopped {mode}"] = (events[-1].step, events[-1].reason, sum(isinstance(e, Saved) for e in events))
        try:
            list(_events(processes, mode, Spoilt(processes), settings_of("adamw", 6), run=_run(folder / "spoilt")))
        except NonFiniteLoss as error:
            found[f"spoilt {mode}"] = str(error)
        try:
            list(_events(processes, mode, NextToken(), settings, validation=rows(5, seed=rank)))
        except UserError as error:
            found[f"other data {mode}"] = (str(error), error.told)
    return found


def _events(processes: DistributedGroup, mode: str, task: Any, settings: TrainingSettings, **more: Any) -> Any:
    validation = more.pop("validation", VALIDATION)
    share = (processes.rank, processes.world_size)
    batches = Batches(TRAINING, task.collate, batch_size=BATCH, seed=settings.seed, share=share)
    return fit(task, tiny_gpt(depth=2), settings, batches, validation, processes=processes.mode(mode), **more)


def _muon(processes: DistributedGroup, shape: tuple[int, int]) -> float:
    """How far Muon's weights in parts are from those in one piece on the same gradients, after three steps."""
    chance = torch.Generator().manual_seed(5)
    start = torch.randn(shape, generator=chance)
    model = nn.Sequential(nn.Linear(shape[1], shape[0], bias=False))
    with torch.no_grad():
        model[0].weight.copy_(start)
    processes.mode("fsdp").wrap(model, False)
    alone = nn.Parameter(start.clone())
    parts = Muon(model.parameters(), 0.05)
    straight = Muon([alone], 0.05)
    from tokenloom.training.distributed import shard_like

    for _ in range(3):
        gradient = torch.randn(shape, generator=chance)
        (p,) = model.parameters()
        p.grad, alone.grad = shard_like(gradient, p), gradient.clone()
        parts.step()
        straight.step()
    assert local_tensor(p).numel() <= max(1, -(-shape[0] // 2)) * shape[1], "each process has a part"
    return float((full_tensor(p.detach()) - alone).abs().max())


def test_what_processes_tell_each_other(tmp_path: Path) -> None:
    first, second = in_each(_many_things, tmp_path)
    expected = [{"rank": r, "long": "é" * 600 * r, "pi": 0.1 + r, "none": None} for r in (0, 1)]
    assert first["each"] == second["each"] == expected
    assert first["lead"] == second["lead"] == "0 says so"
    assert first["rows"] == second["rows"] == [0.0, 1.0, 0.0, 1.0, 2.0]
    assert first["turn"] == [[0], [1]]
    for who in (0, 1):
        message = f"process {who} cannot read it"
        assert first[f"refused {who}"] == (message, False), "the first tells it"
        assert second[f"refused {who}"] == (message, True), "and the others are silent"
    assert first["sums"] == second["sums"] == [[3.0, 3.0], [5.0, 6.0], None]
    assert first["spread"] == second["spread"]
    assert first["muon"] == second["muon"] <= 1e-6
    alone = one_process(settings_of("adamw", 6, eval_every=2), rows(1))["validation"]
    for mode in MODES:
        assert furthest(first[f"one {mode}"], alone) < 1e-5
        assert first[f"one {mode}"] == second[f"one {mode}"]
        assert first[f"stopped {mode}"] == second[f"stopped {mode}"] == (3, "interrupt", 2)
        assert first[f"spoilt {mode}"] == second[f"spoilt {mode}"]
        assert first[f"spoilt {mode}"].startswith("step 3: the loss is nan")
        message, silent = first[f"other data {mode}"]
        assert message.startswith("process 1 has read other data than process 0")
        assert (silent, second[f"other data {mode}"][1]) == (False, True)


# Checkpoints move between one process and two, and between the modes.

HALF, END = 3, 6
FORMS = ("one", *MODES)


def _save_half(processes: DistributedGroup, folder: Path, optimizer: str) -> None:
    for mode in MODES:
        shared(processes, mode, _halves(optimizer), run=_run(folder / mode), stop=after(HALF))


def _go_on(processes: DistributedGroup, folder: Path, optimizer: str) -> dict[str, Any]:
    return {
        f"{before} → {mode}": shared(
            processes, mode, _halves(optimizer), run=run_in(folder / f"{before} → {mode}"), resume=True
        )
        for before in FORMS
        for mode in MODES
    }


def _halves(optimizer: str) -> TrainingSettings:
    return settings_of(optimizer, END, eval_every=HALF)


@pytest.mark.parametrize("optimizer", ["muon"])
def test_a_checkpoint_of_any_form_is_read_in_any_mode(optimizer: str, tmp_path: Path) -> None:
    straight = one_process(_halves(optimizer))
    one_process(_halves(optimizer), run=_run(tmp_path / "one"), stop=after(HALF))
    in_each(_save_half, tmp_path, optimizer)
    newest = {form: sorted((tmp_path / form / "checkpoints").iterdir())[-1] for form in FORMS}
    names = {form: sorted(path.name for path in folder.iterdir()) for form, folder in newest.items()}
    assert names["one"] == names["ddp"] == ["model.safetensors", "optimizer.safetensors", "state.json"]
    assert [name.startswith("shard-") for name in names["fsdp"]] == [True, True, False]
    for before in FORMS:
        for mode in FORMS:
            shutil.copytree(tmp_path / before, tmp_path / f"{before} → {mode}")
    first, _ = in_each(_go_on, tmp_path, optimizer)
    results = {form: said for form, (said, _) in first.items()}
    for before in FORMS:
        results[f"{before} → one"] = one_process(
            _halves(optimizer), run=run_in(tmp_path / f"{before} → one"), resume=True
        )
    for form, said in results.items():
        assert said["step"] == list(range(HALF + 1, END + 1)), form
        bound = 1e-3 if optimizer == "muon" else 1e-5
        assert furthest(said["loss"], straight["loss"][HALF:]) < bound, form
        assert furthest(said["validation"], straight["validation"][1:]) < bound, form
        # The weights of the run are whole in every mode.
        model = tiny_gpt(depth=2)
        load_weights(model, tmp_path / form / "model.safetensors")
        if form in first:
            best = int(np.argmin(said["validation"]))
            if best == len(said["validation"]) - 1:
                for name, tensor in model_tensors(model).items():
                    assert np.array_equal(tensor.numpy(), first[form][1][name])


def test_the_best_weights_are_put_back_from_a_checkpoint_of_shards(tmp_path: Path) -> None:
    in_each(_save_half, tmp_path, "adamw")
    run = run_in(tmp_path / "fsdp")
    expected = run.weights.read_bytes()
    run.weights.unlink()
    run.checkpoints.restore_weights(HALF, run.weights)
    assert run.weights.read_bytes() == expected
    shard = next(iter(sorted(run.checkpoints.path(HALF).glob("shard-*"))))
    shard.write_bytes(shard.read_bytes()[:-200])
    with pytest.raises(UserError, match=r"shard-00001-.*cut or altered"):
        run.checkpoints.read(HALF)
    with pytest.raises(UserError, match=r"shard-00001-.*cut or altered"):
        run.checkpoints.newest_complete()


# Activation checkpointing.


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_activation_checkpointing_changes_no_value_and_no_gradient(dropout: float) -> None:
    results = []
    for activation_checkpointing in (False, True):
        settings = replace(
            tiny_settings("muon", steps=5, grad_accum=2), activation_checkpointing=activation_checkpointing
        )
        model = tiny_gpt(depth=3, dropout=dropout)
        trainer = Trainer(NextToken(), model, settings, batches_of(settings))
        said = [trainer.step(step, 5) for step in range(5)]
        results.append((said, model_tensors(model)))
    (said, weights), (said_too, weights_too) = results
    assert said == said_too
    assert all(torch.equal(weights[name], weights_too[name]) for name in weights)


def test_activation_checkpointing_keeps_layer_inputs_only() -> None:
    import copy

    settings = tiny_settings()
    batch = batches_of(settings)(0)[0]

    def kept(model: nn.Module) -> int:
        seen: dict[int, Tensor] = {}

        def note(tensor: Tensor) -> Tensor:
            seen[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            NextToken().compute_loss(model, batch)["loss"].sums.sum()
        return len(seen)

    few = {}
    for depth in (2, 6):
        model = tiny_gpt(depth=depth)
        checkpoint_activations(model)
        checkpoint_activations(model)
        few[depth] = kept(copy.deepcopy(model))
    assert few[6] - few[2] <= 4, "a layer keeps its input"
    assert kept(tiny_gpt(depth=6)) - kept(tiny_gpt(depth=2)) > 40


def test_with_hooks_a_layer_is_not_recomputed() -> None:
    """What was recorded in the forward pass is not replaced by the backward pass."""
    model = tiny_gpt(depth=2)
    checkpoint_activations(model)
    hooks = Hooks("*.attn_out")
    output = model(batches_of(tiny_settings())(0)[0], hooks=hooks)
    recorded = dict(hooks.values)
    assert len(recorded) == 2
    output.sum().backward()
    assert all(hooks.values[name] is value for name, value in recorded.items())
