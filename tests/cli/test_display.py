import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tokenloom.cli.display import COLUMN, Display, Speed, field
from tokenloom.runs.events import Prepared
from tokenloom.tasks._text_decoder import GenerateOptions
from tokenloom.tasks.base import EvaluateOptions, Show, action
from tokenloom.training.events import Baseline, Evaluated, Event, Finished, Resumed, Saved, StepFinished
from tokenloom.training.metrics import Metric


def stepped(step: int, seconds: float, loss: float = 2.0, steps: int = 100) -> StepFinished:
    return StepFinished(step, steps, loss, 512, 0.5, False, 0.01, 0.02, seconds)


def evaluated(step: int, loss: float, best: bool = True, seconds: float = 0.0) -> Evaluated:
    return Evaluated(step, {"loss": loss}, best, seconds)


def shown(display: Display, *events: Event) -> None:
    with display:
        for event in events:
            display.show(event)


def test_speed_is_that_of_steps_and_leaves_out_evaluations_and_saves() -> None:
    speed = Speed()
    assert speed.recent is None
    assert speed.overall is None
    # A tenth of a second a step; the evaluation takes 50 seconds and the save another ten.
    events = [stepped(1, 0.1), stepped(2, 0.2), evaluated(2, 2.0), Saved(2, Path()), stepped(3, 60.3), stepped(4, 60.4)]
    for event in events:
        speed.update(event)
    assert speed.recent == pytest.approx(5120)
    assert speed.overall == pytest.approx(5120)


def test_recent_speed_forgets_and_overall_speed_does_not() -> None:
    speed = Speed()
    for step in range(100):
        speed.update(stepped(step, step * 1.0))
    for step in range(100, 200):
        speed.update(stepped(step, 99 + (step - 99) * 0.5))
    assert speed.recent == pytest.approx(1024)
    assert 512 < (speed.overall or 0) < 1024


def test_a_line_at_each_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    events = [stepped(s, 0.1 * s, loss=3 - 0.01 * s) for s in range(1, 51)]
    shown(Display(), *events, evaluated(50, 2.25, seconds=5.0), stepped(51, 65.1), evaluated(51, 2.5, best=False))
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    # The mean of the last 50 losses; five seconds for fifty steps, fifty more to go.
    assert first == " 50/100  loss 2.7450  validation 2.2500 best  5.12k tokens/s  0:05  ETA 0:05"
    assert "validation 2.5000       5.12k tokens/s" in second


def test_labels_stand_in_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    shown(
        display,
        Prepared(["data:       x.txt", "validation: 1 document"], {}),
        Baseline("n-gram", 1.5, "nats/token", "with context"),
        Resumed(7, ["step-9 is cut"]),
    )
    lines = capsys.readouterr().err.splitlines()
    assert lines[2:] == [
        "baseline:          1.5000 nats/token, n-gram with context",
        "resumed:           from step 7",
        "note:              step-9 is cut",
    ]
    for line in lines:
        assert line[COLUMN - 1] == " "
        assert line[COLUMN] != " "
    assert len(field("unseen characters", "")) == COLUMN


def finished(step: int = 100, reason: str = "steps", clipped: int = 0, notes: list[str] | None = None) -> Finished:
    return Finished(step, reason, step, {"loss": 2.0}, 10.0, clipped, notes or [])


def test_the_end_tells_of_clipping_patience_and_what_was_noticed_once(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    events = [stepped(s, 0.1 * s) for s in range(1, 5)]
    shown(display, Resumed(0, ["cut"]), *events, finished(2000, "patience", clipped=5, notes=["cut", "new"]))
    err = capsys.readouterr().err
    assert "in 5 of 2,000 steps (0.2%)" in err
    assert "stopped at step 2,000: no better evaluation since step 2,000" in err
    assert err.count("cut") == 1
    assert "note:              new" in err
    assert "training 2.000" in err, "the curve has a legend"


def test_nothing_left_to_train_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    shown(Display(), Resumed(100, []), finished())
    assert "nothing left to train: 100 steps" in capsys.readouterr().err


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(quiet=True)
    shown(display, Prepared(["data: x"], {}), stepped(1, 0.1), stepped(2, 0.2), evaluated(2, 2.0), finished(clipped=3))
    display.result(SimpleNamespace(), {"loss": 2.0}, example=True)  # type: ignore[arg-type]
    assert capsys.readouterr() == ("", "")


class FakeTask:
    metrics = (Metric("loss", "nats/token"),)

    @action(EvaluateOptions)
    def evaluate(self, options: Any, show: Show) -> dict[str, Any]:
        return {}

    @action(GenerateOptions, example=lambda task: {"max_new_tokens": 4})
    def generate(self, options: Any, show: Show) -> dict[str, Any]:
        show(f"Once upon {options.max_new_tokens} times")
        return {}


def fitting(**more: Any) -> Any:
    return SimpleNamespace(task=FakeTask(), folder=SimpleNamespace(path=Path("runs/two words")), dry_run=False, **more)


@pytest.mark.parametrize(("loss", "verdict"), [(1.2, "better"), (1.5, "worse")])
def test_the_result(loss: float, verdict: str, capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    shown(display, Baseline("n-gram", 1.5, "nats/token"), Finished(5, "steps", 5, {"loss": loss}, 1.0))
    display.result(fitting(), {"loss": loss, "steps": 5, "reason": "steps"}, example=True)
    out = capsys.readouterr().out
    assert f"loss: {loss:.4f} nats/token\n" in out
    assert f"\n{verdict} than the baseline, n-gram (1.5000)\n" in out
    assert "\nOnce upon 4 times\n" in out
    assert out.endswith("saved in 'runs/two words'; try: tokenloom generate 'runs/two words'\n")


def test_the_result_of_an_interrupt_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    Display().result(fitting(), {"steps": 1234, "reason": "interrupt"}, example=False)
    out = capsys.readouterr().out
    assert out == "stopped and saved at step 1,234; resume with: tokenloom train --resume --out 'runs/two words'\n"


def test_long_lines_go_on_under_their_first_column_in_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    display = Display()
    assert display.console.is_terminal
    display.line(field("auto settings", "context 16, " * 12))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().err).splitlines()
    assert len(lines) > 2
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith((" " * COLUMN + "c", " " * COLUMN + "1")) for line in lines[1:])
