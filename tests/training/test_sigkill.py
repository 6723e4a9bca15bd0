"""A training that is killed with SIGKILL and resumed ends where one that was left alone ends, bit for bit."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from killed_runs import TRAINING, Nursery, assert_same, kill_after, measured, nursery, remains

from tokenloom.runs.events import Planned
from tokenloom.training.events import Saved

RHYME = "One, two, buckle my shoe.\nThree, four, knock at the door.\nFive, six, pick up sticks.\n"


def words_for(folder: Path, out: Path, *more: str) -> list[str]:
    text = folder / "rhyme.txt"
    text.write_text(RHYME * 30, "utf-8")
    return ["train", str(text), *TRAINING, "--out", str(out), *more]


def resume(out: Path) -> list[str]:
    return ["train", "--resume", "--out", str(out)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with nursery(tmp_path_factory.mktemp("killed")) as made:
        yield made


# An epoch is 24 steps, so that there are kills in the first and in the second.
LENGTH = ("--steps", "30", "--eval-every", "8", "--save-every", "3", "--keep-checkpoints", "1")


@pytest.fixture(scope="module")
def straight(home: Nursery) -> Path:
    out = home.folder / "straight"
    code, told = home.live(words_for(home.folder, out, *LENGTH))
    assert code == 0, told
    return out


SEEDED = random.Random(20)
MOMENTS = [
    f"step {SEEDED.randrange(10, 30)}",
    f"save {SEEDED.randrange(5, 24)} {SEEDED.random():.2f}",
    f"rename {SEEDED.randrange(15, 35)}",
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_resumed_is_straight(moment: str, home: Nursery, straight: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, told = home.live(words_for(home.folder, out, *LENGTH), moment)
    assert code == -signal.SIGKILL, told
    assert list(out.glob("checkpoints/step-*"))
    if not moment.startswith("rename"):
        assert bool(remains(out)) == moment.startswith("save"), "a save was cut short, or none was"
    code, told = home.live(resume(out))
    assert code == 0, told
    assert "resumed:" in told
    assert_same(out, straight)
    assert not remains(out)


def test_killed_again_and_again_is_straight(home: Nursery, straight: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, told = home.live(words_for(home.folder, out, *LENGTH), "save 6 0.5")
    for moment in ("step 5", "rename 9", "save 4 0.9"):
        assert code == -signal.SIGKILL, told
        code, told = home.live(resume(out), moment)
    assert code == -signal.SIGKILL, told
    code, told = home.live(resume(out))
    assert code == 0, told
    assert_same(out, straight)


def test_saving_more_often_changes_nothing(home: Nursery, straight: Path, tmp_path: Path) -> None:
    """And --save-every may be changed on the way."""
    out = tmp_path / "run"
    length = ["7" if word == "3" else word for word in LENGTH]
    code, told = home.live(words_for(home.folder, out, *length), "step 16")
    assert code == -signal.SIGKILL, told
    kept = sorted(path.name for path in out.glob("checkpoints/step-*"))
    assert kept == ["step-00000008", "step-00000014"], "the best, and the last"
    code, told = home.live([*resume(out), "--save-every", "1"], "step 4")
    assert code == -signal.SIGKILL, told
    assert (out / "checkpoints" / "step-00000017").is_dir(), "three steps after the last"
    code, told = home.live(resume(out))
    assert code == 0, told
    assert_same(out, straight)
    assert [row["step"] for row in measured(out)] == [8, 16, 24, 30]


@pytest.mark.slow
def test_thirty_kills_at_random_moments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One training, killed from outside at 30 seeded moments: some before its first step, some in a save, some while it
    reads what it resumes from. Each time it goes on, and in the end nothing tells of it.

    A checkpoint at every step makes most of its time one of saving.
    """
    length = ("--steps", "3000", "--eval-every", "250", "--save-every", "1")
    straight, out = tmp_path / "straight", tmp_path / "run"
    with nursery(tmp_path) as home:
        code, told = home.live(words_for(tmp_path, straight, *length))
        assert code == 0, told
    moments = random.Random(7)
    kills, in_saves, steps = 0, 0, []
    began = time.perf_counter()
    while kills < 30:
        there = bool(list(out.glob("checkpoints/step-*")))
        words = resume(out) if there else words_for(tmp_path, out, *length, "--overwrite")
        code, told = kill_after(words, "plan:", moments.uniform(0.0, 1.2))
        assert code == -signal.SIGKILL, told
        assert "Traceback" not in told
        kills += 1
        in_saves += bool(remains(out))
        steps.append(max((int(path.name[5:]) for path in out.glob("checkpoints/step-*")), default=0))
    assert in_saves >= 5, "saves are hit too"
    assert len(set(steps)) >= 15, "and it goes on between the kills"
    with nursery(tmp_path) as home:
        code, told = home.live(resume(out))
    assert code == 0, told
    assert "resumed:" in told
    with capsys.disabled():
        took = time.perf_counter() - began
        print(f"\n30 kills, {in_saves} of them in a save, the last after step {steps[-1]} of 3000; {took:.0f} s")
    assert_same(out, straight)


@pytest.mark.slow
def test_checkpoints_cost_little_of_the_default_training(
    tinyshakespeare: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default recipe, size small, on tinyshakespeare: under 5 % of the time, with the default interval."""
    import tokenloom

    text = tmp_path / "tinyshakespeare.txt"
    text.write_text(tinyshakespeare, "utf-8")
    saves: list[float] = []
    fitting = tokenloom.start_session(text, out=tmp_path / "run")
    before = began = time.perf_counter()
    for event in fitting:
        now = time.perf_counter()
        if isinstance(event, Planned):
            plan = event.plan
            began = now
        if isinstance(event, Saved):
            saves.append(now - before)
            if len(saves) == 3:
                break
        before = now
    share = sum(saves) / (now - began)
    with capsys.disabled():
        print(
            f"\n{plan.settings.steps} steps of {plan.seconds_per_step * 1000:.0f} ms, evaluated every"
            f" {plan.settings.eval_every}, saved every {plan.settings.save_every}: a save takes"
            f" {min(saves) * 1000:.0f} to {max(saves) * 1000:.0f} ms, {share:.2%} of the time"
        )
    assert share < 0.05
