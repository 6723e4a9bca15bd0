"""Long work that says how far it is."""

import pytest

from tokenloom.utils import progress as waiting
from tokenloom.utils.progress import reporting_progress, track_progress


class Clock:
    """Each item takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(waiting, "time", made)
    return made


def work(clock: Clock, items: int) -> list[int]:
    done = []
    for item in track_progress(range(items), "images encoded", 500 * items, each=500):
        done.append(item)
        clock.now += 1
    return done


def test_lines_come_after_two_seconds_and_ever_more_seldom(clock: Clock) -> None:
    lines: list[str] = []
    with reporting_progress(lines.append):
        assert work(clock, 20) == list(range(20))
    assert lines == [f"{500 * n:,} of 10,000 images encoded, 500/s, ETA 0:{20 - n:02d}" for n in (2, 4, 8, 16)]


def test_short_work_and_work_that_nobody_listens_to_is_silent(clock: Clock) -> None:
    lines: list[str] = []
    with reporting_progress(lines.append):
        work(clock, 2)
    work(clock, 20)
    assert lines == []
