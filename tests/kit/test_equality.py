"""The equality kit: two paths that should agree, for every built-in task and every kind of model it builds.

`kit_examples.py` has the tiny trainings; a path that does not apply to one needs a reason there. The measured
differences are printed as a table (pytest -s tests/kit/test_equality.py, or at the end of a failing run).
"""

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kit_examples import KITS, Example
from several import in_each
from torch import Tensor

import tokenloom
from tokenloom.data.samples import generator_for
from tokenloom.kernels import loader
from tokenloom.models.batch import IGNORE, Batch, Stream
from tokenloom.models.gpt import GPT
from tokenloom.nn.attention import MultiHeadAttention
from tokenloom.nn.hooks import Hooks
from tokenloom.plotting.tables import plain_table
from tokenloom.runs.events import PrerequisiteEvent
from tokenloom.runs.folder import RunFolder
from tokenloom.runs.session import start_session
from tokenloom.tasks import task_names
from tokenloom.tasks.base import Task
from tokenloom.training.batches import BatchContext, Batches
from tokenloom.training.checkpoints import full_tensors
from tokenloom.training.distributed import SINGLE_PROCESS, DistributedGroup, ProcessGroup
from tokenloom.training.events import Finished, StepFinished
from tokenloom.training.loop import Trainer
from tokenloom.training.settings import TrainingSettings

STEPS = 4
ROWS = 5


@dataclass
class Subject:
    """A tiny trained task in float64, a validation batch of it, and how it came about."""

    name: str
    task: Task
    example: Example
    samples: Any
    keys: Any
    training: Any
    settings: TrainingSettings
    folder: Path

    @property
    def model(self) -> Any:
        return self.task.model

    def batch(self, rows: slice = slice(None)) -> Batch:
        keys = self.keys[rows]
        return self.task.collate(self.samples.take(keys), BatchContext(0, -1, keys))

    @torch.no_grad()
    def sums(self, batch: Batch) -> Tensor:
        """What each sample adds to the loss: (B,)."""
        return self.task.compute_loss(self.model, batch)["loss"].sums


def _subject(name: str, task_name: str, example: Example, folder: Path) -> Subject:
    settings = {"threads": 1, "out": folder / "run", **example.settings}
    if not example.fitted:
        settings["steps"] = STEPS
    session = start_session(example.data, task=task_name, **settings)
    for _ in session:
        pass
    prepared = session.task.load(example.data)
    session.task.model.double().eval()
    keys = prepared.validation.all()[:ROWS]
    return Subject(name, session.task, example, prepared.validation, keys, prepared.train, session.training, folder)


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference; what is not a number counts as infinite."""
    assert a.shape == b.shape, f"{tuple(a.shape)} against {tuple(b.shape)}"
    return float((a - b).abs().nan_to_num(nan=float("inf")).max())


# The paths.


def batch_single(s: Subject) -> float:
    singles = [s.sums(s.batch(slice(row, row + 1))) for row in range(len(s.keys))]
    return apart(s.sums(s.batch()), torch.cat(singles))


def _padded(batch: Batch, extra: int, left: bool) -> Batch:
    """The batch with rows lengthened by tokens that only pad, whose contents are as misleading as can be."""
    streams = {}
    for name, stream in batch.streams.items():
        B, N = stream.shape
        real = torch.ones(B, N, dtype=torch.bool) if stream.real is None else stream.real
        positions = stream.positions_or_count().expand(B, N)
        tokens = stream.tokens
        junk = tokens[:, torch.randint(N, (extra,), generator=torch.Generator().manual_seed(1))]

        def join(middle: Tensor, end: Tensor) -> Tensor:
            return torch.cat((end, middle) if left else (middle, end), dim=1)

        more = {
            "real": join(real, torch.zeros(B, extra, dtype=torch.bool)),
            "positions": join(positions, torch.zeros(B, extra, dtype=torch.int64)),
        }
        if stream.segments is not None:
            more["segments"] = join(stream.segments, stream.segments[:, :1].expand(B, extra))
        kind = "ids" if stream.ids is not None else "features"
        streams[name] = Stream(**{kind: join(tokens, junk)}, **more)
    targets = {}
    for name, target in batch.targets.items():
        if target.dim() == 1:
            targets[name] = target
            continue
        nothing = torch.full((len(target), extra), IGNORE)
        targets[name] = torch.cat((nothing, target) if left else (target, nothing), dim=1)
    return Batch(streams, targets)


def padded_left(s: Subject) -> float:
    return apart(s.sums(s.batch()), s.sums(_padded(s.batch(), 3, left=True)))


def padded_right(s: Subject) -> float:
    return apart(s.sums(s.batch()), s.sums(_padded(s.batch(), 3, left=False)))


def packed_alone(s: Subject) -> float:
    """All rows one after the other in a single row without padding, kept apart by segments and positions."""
    batch = s.batch()
    name = KITS[s.task.name].stream
    B, N = batch[name].shape
    real = batch[name].real
    kept = torch.ones(B, N, dtype=torch.bool) if real is None else real
    stream = Stream(
        ids=batch[name].tokens[kept][None],
        positions=batch[name].positions_or_count().expand(B, N)[kept][None],
        segments=torch.arange(B)[:, None].expand(B, N)[kept][None],
    )
    targets = {key: target[kept][None] for key, target in batch.targets.items()}
    return apart(s.sums(batch).sum(), s.sums(Batch({name: stream}, targets)).sum())


@torch.no_grad()
def cached_uncached(s: Subject) -> float:
    """Fed token by token, and in chunks, against one pass; also where what the model is conditioned on is padded."""
    batch = s.batch()
    ids = batch[KITS[s.task.name].stream].tokens
    whole = s.model(batch).log_softmax(-1)
    padded = _padded(batch, 3, left=False)
    padded.streams[KITS[s.task.name].stream] = batch[KITS[s.task.name].stream]
    worst = 0.0
    for cut, given in ((1, batch), (3, batch), (1, padded)):
        model = KITS[s.task.name].decoder(s.task, given)
        log_probs, _ = _fed(model, ids, model.init_state(len(ids)), cut)
        worst = max(worst, apart(log_probs, whole))
    return worst


def _fed(model: Any, ids: Tensor, state: Any, cut: int = 1) -> tuple[Tensor, Any]:
    parts = []
    for start in range(0, ids.shape[1], cut):
        log_probs, state = model.step(ids[:, start : start + cut], state)
        parts.append(log_probs)
    return torch.cat(parts, dim=1), state


@torch.no_grad()
def selected_alone(s: Subject) -> float:
    """Half of each row, then some rows in another order, one of them twice, then each of those twice."""
    batch = s.batch()
    ids = batch[KITS[s.task.name].stream].tokens
    whole = s.model(batch).log_softmax(-1)
    half = ids.shape[1] // 2
    model = KITS[s.task.name].decoder(s.task, batch)
    _, state = _fed(model, ids[:, :half], model.init_state(len(ids)))
    chosen = torch.tensor([2, 0, 2])
    state = state.select(chosen)
    twice = chosen.repeat_interleave(2)
    repeat_rows, _ = _fed(model, ids[twice, half:], state.repeat(2))
    picked, _ = _fed(model, ids[chosen, half:], state)
    # The model may be made for some of the rows only, in an order of its own.
    again, _ = _fed(model, ids[chosen], model.init_state(3, chosen.tolist()))
    expected = [(repeat_rows, whole[twice, half:]), (picked, whole[chosen, half:]), (again, whole[chosen])]
    return max(apart(a, b) for a, b in expected)


def fused_explicit(s: Subject) -> float:
    """Outputs, and the gradient of every parameter."""
    results = []
    for hooks in (None, Hooks(["*.pattern"])):
        s.model.zero_grad()
        outputs = s.model(s.batch(), hooks=hooks)
        outputs.square().mean().backward()
        results.append([outputs.detach(), *(p.grad.clone() for p in s.model.parameters() if p.grad is not None)])
        layers = sum(isinstance(part, MultiHeadAttention) for part in s.model.modules())
        assert hooks is None or len(hooks.values) == layers, f"{len(hooks.values)} of {layers} attentions were tapped"
    s.model.zero_grad()
    return max(apart(a, b) for a, b in zip(*results, strict=True))


def accumulated_whole(s: Subject) -> float:
    """Weights after two steps, with the batch in one piece and in three; no dropout, and AdamW alone."""
    weights = []
    for pieces in (1, 3):
        settings = replace(s.settings, grad_accum=pieces, optimizer="adamw", muon_lr=None)
        model = copy.deepcopy(s.model).train()
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        batches = Batches(s.training, s.task.collate, batch_size=4, seed=3, grad_accum=pieces)
        trainer = Trainer(s.task, model, settings, batches)
        for step in range(2):
            trainer.step(step, 10)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return apart(*weights)


def two_one(s: Subject) -> float:
    """Weights after two steps of the trained run in two processes, in each mode, against one; no dropout, and AdamW."""
    (straight,) = two_steps(SINGLE_PROCESS, s.folder / "run", [""])
    found = in_each(two_steps, s.folder / "run", ["ddp", "fsdp"])
    return max(apart(torch.from_numpy(weights), torch.from_numpy(straight)) for each in found for weights in each)


def two_steps(processes: ProcessGroup, run: Path, modes: list[str]) -> list[Any]:
    """For each mode, all weights after two steps of three samples: the second process has fewer than the first."""
    results = []
    for mode in modes:
        if isinstance(processes, DistributedGroup):
            processes.mode(mode)
        task, source = tokenloom.load(run), RunFolder(run).read_config()["data"]
        task.model.double()
        for part in task.model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        optimizing = TrainingSettings(
            optimizer="adamw", lr=0.01, weight_decay=0.01, weight_decay_on="all", grad_clip=1.0
        )
        share = (processes.rank, processes.world_size)
        batches = Batches(task.load(source).train, task.collate, batch_size=3, seed=3, share=share)
        trainer = Trainer(task, task.model, optimizing, batches, processes)
        for step in range(2):
            trainer.step(step, 10)
        results.append(torch.cat([tensor.flatten() for tensor in full_tensors(task.model).values()]).numpy())
    return results


def resumed_straight(s: Subject) -> float:
    """Weights of a run that was stopped half-way and resumed, against one that was not: bit for bit."""
    weights = []
    for name, stop_at in (("straight", None), ("stopped", 2)):
        done: list[int] = []

        def stop(at: int | None = stop_at, done: list[int] = done) -> bool:
            return at is not None and len(done) >= at

        out = s.folder / name
        arguments: dict[str, Any] = {**s.example.settings, "steps": STEPS, "threads": 1, "dropout": 0.1}
        session = start_session(s.example.data, task=s.task.name, out=out, stop=stop, **_known(s.task, arguments))
        staged = False
        for event in session:
            staged = not event.over if isinstance(event, PrerequisiteEvent) else staged
            done += [1] * (isinstance(event, StepFinished) and not staged)
        if stop_at is not None:
            assert isinstance(event, Finished)
            assert event.reason == "interrupt"
            session = start_session(None, out=out, resume=True)
            for _ in session:
                pass
        tensors = [p.detach().flatten().double() for p in tokenloom.load(out).model.parameters()]
        weights.append(torch.cat(tensors))
    return apart(*weights)


def _known(task: Task, arguments: dict[str, Any]) -> dict[str, Any]:
    """Without dropout where a task has no such setting."""
    if "dropout" in task.Settings.__dataclass_fields__:
        return arguments
    return {k: v for k, v in arguments.items() if k != "dropout"}


def compiled_eager(s: Subject) -> float:
    """torch.compile in float64; and the compiled step of a model that has one, in the float32 that it is made for."""
    assert native_apart(s) <= 1e-5
    compiled = torch.compile(s.model)
    with torch.no_grad():
        return apart(s.task.compute_loss(compiled, s.batch())["loss"].sums, s.sums(s.batch()))


@torch.no_grad()
def native_apart(s: Subject) -> float:
    """Tokens one by one with native code and without, log-probabilities in float32; 0 where there is no such step."""
    if not isinstance(s.model, GPT) or s.model.config.sliding_window is not None:
        return 0.0
    model = copy.deepcopy(s.model).float()
    ids = s.batch().streams["text"].tokens[:, : model.config.context]

    def steps() -> Tensor:
        state, found = model.init_state(len(ids)), []
        for n in range(ids.shape[1]):
            log_probs, state = model.step(ids[:, n : n + 1], state)
            found.append(log_probs)
        return torch.cat(found, dim=1)

    with loader.disabled():
        plain = steps()
    return apart(steps(), plain)


def saved_loaded(s: Subject) -> float:
    """The loaded run measures what the run itself measured when it was saved, digit for digit."""
    best = [row for row in _metrics(s.folder / "run") if "validation_loss" in row]
    loaded = tokenloom.load(s.folder / "run").evaluate()
    return abs(loaded["loss"] - min(row["validation_loss"] for row in best))


def _metrics(run: Path) -> list[dict[str, Any]]:
    return RunFolder(run).read_metrics()


def streamed_whole(s: Subject) -> float:
    """The pieces of a streamed generation, joined, are the text that comes as a whole: 0 or 1."""
    task: Any = s.task
    options = {"max_new_tokens": 40, "seed": int(generator_for(1).integers(100))}
    return float("".join(task.stream("One", **options)) != task.generate("One", **options))


PATHS: dict[str, tuple[Callable[[Subject], float], float]] = {
    "batch = single": (batch_single, 1e-10),
    "padded left = unpadded": (padded_left, 1e-10),
    "padded right = unpadded": (padded_right, 1e-10),
    "packed = alone": (packed_alone, 1e-10),
    "cached = uncached": (cached_uncached, 1e-10),
    "selected = alone": (selected_alone, 1e-10),
    "fused = explicit": (fused_explicit, 1e-10),
    "accumulated = whole": (accumulated_whole, 1e-10),
    "2 processes = 1": (two_one, 1e-10),
    "resumed = straight": (resumed_straight, 0.0),
    "compiled = eager": (compiled_eager, 1e-10),
    "saved = loaded": (saved_loaded, 0.0),
    "streamed = whole": (streamed_whole, 0.0),
}

TABLE: list[list[object]] = []


def subjects() -> list[tuple[str, str]]:
    """Return (task, example) for every task."""
    with tempfile.TemporaryDirectory() as folder:
        return [(name, example) for name, kit in KITS.items() for example in kit.examples(Path(folder))]


@pytest.fixture(scope="module", params=subjects(), ids=lambda param: "/".join(param))
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    task, example = request.param
    folder = tmp_path_factory.mktemp("kit")
    return _subject(f"{task}/{example}", task, KITS[task].examples(folder)[example], folder)


@pytest.mark.parametrize("path", PATHS)
def test_paths_agree(subject: Subject, path: str) -> None:
    """Each path holds, or there is a reason why it does not apply."""
    if reason := {**KITS[subject.task.name].without, **subject.example.without}.get(path):
        TABLE.append([subject.name, path, f"does not apply: {reason}"])
        return
    compare, bound = PATHS[path]
    difference = compare(subject)
    TABLE.append([subject.name, path, f"{difference:.1e}"])
    assert difference <= bound, f"{subject.name}: {path} differs by {difference:.3g}"


def test_every_task_is_in_the_kit() -> None:
    assert set(KITS) == set(task_names())


@pytest.mark.parametrize("name", KITS)
def test_reasons_are_for_paths_of_the_kit(name: str, tmp_path: Path) -> None:
    kit = KITS[name]
    reasons = [kit.without, *(example.without for example in kit.examples(tmp_path).values())]
    assert not {path for paths in reasons for path in paths} - set(PATHS)


@pytest.fixture(scope="module", autouse=True)
def _print_table() -> Any:
    yield
    rows: dict[object, dict[object, object]] = {}
    for name, path, value in TABLE:
        rows.setdefault(path, {})[name] = value
    names = sorted({str(row[0]) for row in TABLE})
    print("\n" + plain_table([[p, *(cells.get(n) for n in names)] for p, cells in rows.items()], ["path", *names]))


def test_a_broken_path_is_noticed(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit itself can fail: a model that looks at padding does not pass."""
    monkeypatch.setattr(type(subject.task), "collate", _looking_at_neighbors(type(subject.task).collate))
    assert batch_single(subject) > 1e-6


def _looking_at_neighbors(collate: Callable[..., Batch]) -> Callable[..., Batch]:
    def wrong(self: Task, samples: Any, context: BatchContext) -> Batch:
        batch = collate(self, samples, context)
        for stream in batch.streams.values():
            if stream.ids is not None and len(stream.ids) > 1:
                stream.ids = stream.ids.roll(1, 0)
            if stream.features is not None and len(stream.features) > 1:
                stream.features = stream.features.roll(1, 0)
        return batch

    return wrong
