"""Data for the tests of trainings, and no figures where they are not asked for."""

from pathlib import Path

import pytest
from kit.own_task import write_sums
from kit.session_helpers import VERSE

from tokenloom.planning import estimate
from tokenloom.runs import session as fitting


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "verse é.txt"
    lines = [f"{n} {VERSE}" for n in range(12)]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def sums(tmp_path: Path) -> str:
    return write_sums(tmp_path / "sums.txt")


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing the machine and drawing the curve take longer than these trainings: only tests about them do it."""
    if "curve" not in request.node.name:
        monkeypatch.setattr(fitting, "draw_curve", lambda folder, unit, baseline: None)
    if "minutes" not in request.node.name:
        monkeypatch.setattr(estimate, "seconds_per_step", lambda *args, **more: 0.01)
