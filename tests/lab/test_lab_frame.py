"""Running experiments, their results, exit codes, interruption and resume, and the report."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from lab_page import check_page

from tokenloom.cli.main import main
from tokenloom.errors import UserError
from tokenloom.lab.experiment import Experiment, ExperimentContext, Outcome, exact, near, shown, sort_key
from tokenloom.lab.runner import ResultsFolder, RunOptions, measure, run
from tokenloom.plotting.svg import Line, Panel, Plot, draw, svg

PLOT = Plot("a < b & c", "It rises.", x="n", y="value", lines=[Line("one", [1, 2, 3], [1.0, 4.0, 9.0])])


def experiment_of(id: str, value: float = 1.0, **fields: Any) -> Experiment:
    def measure_value(ctx: ExperimentContext) -> Outcome:
        return Outcome([near("value", 1.0, value, 0.1), shown("other", "3")], [PLOT])

    return Experiment(id, f"title {id}", "asked?", "so.", "because <so>.", measure_value, **fields)


def test_ids_are_sorted_by_number() -> None:
    assert sorted(["1.12b", "2.1", "1.2", "1.12", "1.10", "mine"], key=sort_key) == [
        "1.2",
        "1.10",
        "1.12",
        "1.12b",
        "2.1",
        "mine",
    ]


def test_tolerances() -> None:
    assert exact("x", "1.0", "1.0").passed
    assert not exact("x", "1.0", "1.1").passed
    assert near("x", 1.0, 1.1, 0.1001).passed
    assert not near("x", 1.0, float("nan"), 1.0).passed
    assert not Outcome([shown("x", "1")]).passed, "a row without a tolerance does not pass"
    default, other = ExperimentContext(1), ExperimentContext(2, default_seed=False)
    assert not default.digits("x", 1.0, 1.01, 2, 0.05).passed
    assert other.digits("x", 1.0, 1.01, 2, 0.05).passed
    assert not other.near("x", 1.0, 1.5, 0.1, 0.2).passed


def test_cached_values_are_created_once() -> None:
    ctx, calls = ExperimentContext(0), []
    for _ in range(2):
        assert ctx.cached("model", lambda: calls.append(1) or "trained") == "trained"  # type: ignore[func-returns-value]
    assert calls == [1]


def test_an_interrupted_run_keeps_its_rows_and_resumes(tmp_path: Path) -> None:
    chosen, folder = [experiment_of("1"), experiment_of("2"), experiment_of("3")], ResultsFolder(tmp_path)
    first = run(chosen, folder, RunOptions())
    assert next(first)["id"] == "1"
    first.close()
    with pytest.raises(UserError, match=r"left 1 finished rows .* --resume"):
        next(run(chosen, folder, RunOptions()))
    with pytest.raises(UserError, match="another seed"):
        next(run(chosen, folder, RunOptions(seed=5), resume=True))
    assert [row["id"] for row in run(chosen, folder, RunOptions(), resume=True)] == ["2", "3"]
    assert [row["id"] for row in folder.rows()] == ["1", "2", "3"]
    assert [row["id"] for row in run(chosen, folder, RunOptions())] == ["1", "2", "3"], "a finished run is run again"


def test_a_corrupt_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "row-1.json").write_text("{")
    with pytest.raises(UserError, match=r"row-1\.json"):
        ResultsFolder(tmp_path).rows()


def test_quick_applies_to_rows_with_a_quick_form() -> None:
    assert not measure(experiment_of("1"), RunOptions(quick=True))["quick"]
    assert measure(experiment_of("1", quick=True), RunOptions(quick=True))["quick"]


def test_the_page_is_self_contained() -> None:
    from tokenloom.lab.report import html

    rows = [
        measure(one, RunOptions()) for one in (experiment_of("1.1"), experiment_of("2.1", 2.0), experiment_of("mine"))
    ]
    text = html(json.loads(json.dumps(rows)))
    page = check_page(text, len(rows))
    assert page.tags.count("svg") == 6, "each plot, light and dark"
    assert {"row-1.1", "row-2.1", "row-mine"} <= set(page.ids)
    assert "2 of 3 rows" in text
    assert "because &lt;so&gt;." in text
    assert text.index("Attention</h2>") < text.index("Language before transformers</h2>") < text.index("Your own</h2>")


def test_plots_draw_what_they_were_given() -> None:
    figure = draw(PLOT)
    assert figure.axes[0].get_lines()[0].get_ydata().tolist() == [1.0, 4.0, 9.0]  # type: ignore[union-attr]
    values = [[0.0, 1.0], [2.0, -3.0]]
    panels = Plot("heat", "Squares.", panels=[Panel("a", values, ["$x", "y"], ["p", "q"], signed=True)] * 3)
    figure = draw(panels, dark=True)
    assert figure.axes[0].images[0].get_array().tolist() == values  # type: ignore[union-attr]
    light, dark = svg(panels), svg(panels, dark=True)
    assert light != dark
    assert light.startswith("<svg")
    assert light == svg(panels), "the same plot is the same text"


def test_tick_labels_and_a_legend_above_the_axes() -> None:
    lines = [Line(name, [1, 2, 3], [0.0, 1.0, 0.5]) for name in ("one", "another")]
    named = draw(Plot("a", "b.", lines=lines, x_labels=["x", "y", "z"], legend_above=True)).axes[0]
    assert [label.get_text() for label in named.get_xticklabels()] == ["x", "y", "z"]
    legend = named.get_legend()
    assert legend is not None
    named.figure.draw_without_rendering()  # type: ignore[union-attr]
    assert legend.get_window_extent().y0 >= named.get_window_extent().y1
    whole = draw(Plot("a", "b.", lines=lines)).axes[0]
    assert all(place == int(place) for place in whole.get_xticks()), "integer ticks"


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["lab", "list"]) == 0
    assert "1.3" in capsys.readouterr().out
    assert main(["lab", "run", "1.33"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert main(["lab", "run"]) == 2
    assert main(["lab", "report"]) == 2
    assert main(["lab", "new", "mine"]) == 0
    assert main(["lab", "new", "mine"]) == 2
    assert main(["lab", "new", "Not-good"]) == 2
    assert main(["lab", "run", "./mine.py", "1.3"]) == 0
    capsys.readouterr()
    assert main(["lab", "report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": "runs/lab/report.html", "rows": 2, "passed": 2}
    broken = Path("mine.py").read_text().replace("3.5, means", "4.5, means").replace('"mine"', '"broken"')
    Path("broken.py").write_text(broken)
    assert main(["lab", "run", "./broken.py"]) == 1
    assert "out of tolerance: broken" in capsys.readouterr().out


def test_missing_data_name_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise UserError("no network")

    monkeypatch.setattr("tokenloom.data.registry.download", refuse)
    with pytest.raises(UserError, match=r"tokenloom data download tinyshakespeare .*; rows that read it: 2, 3$"):
        next(
            run(
                [experiment_of("1"), *(experiment_of(id, dataset="tinyshakespeare") for id in "23")],
                ResultsFolder(tmp_path),
                RunOptions(),
            )
        )


def test_a_missing_package_names_its_extra(tmp_path: Path) -> None:
    rows = [experiment_of("1"), experiment_of("2", requires=("no_such_package", "digits"))]
    with pytest.raises(UserError, match=r"row 2 is compared with no_such_package: pip install 'tokenloom\[digits\]'"):
        next(run(rows, ResultsFolder(tmp_path), RunOptions()))
    assert not list(tmp_path.iterdir()), "nothing was started"


SLOW = '''"""One experiment that finishes at once, and one that waits."""

import time
from io import StringIO

from tokenloom.lab.experiment import ExperimentContext, Outcome, at_most, experiment

fields = {"question": "?", "protocol": "none", "explanation": "none"}


@experiment("first", "At once", **fields)
def first(ctx: ExperimentContext) -> Outcome:
    return Outcome([at_most("zero", 0.0, 0.0)])


@experiment("second", "Waits for a file", **fields)
def second(ctx: ExperimentContext) -> Outcome:
    from pathlib import Path

    Path("waiting").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    return first.run(ctx)
'''


@pytest.mark.skipif(os.name == "nt", reason="no such signal")
def test_ctrl_c_keeps_finished_rows_and_the_next_run_suggests_resume(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "tokenloom", "lab", "run", "./slow.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "waiting").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    assert "stopped; 1 finished row in runs/lab; the same command with --resume continues" in error
    assert [row["id"] for row in ResultsFolder(tmp_path / "runs/lab").rows()] == ["first"]
    (tmp_path / "go").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert main(["lab", "run", "./slow.py"]) == 2
        assert main(["lab", "run", "./slow.py", "--resume", "--json"]) == 0
    rows = ResultsFolder(tmp_path / "runs/lab").rows()
    assert [row["id"] for row in rows] == ["first", "second"]
    assert rows[0]["run"] == rows[1]["run"], "the first was not run again"


def test_quick_rows_and_rows_out_of_tolerance_are_marked() -> None:
    from tokenloom.lab.report import html

    rows = [
        measure(experiment_of("1.1", quick=True), RunOptions(quick=True)),
        measure(experiment_of("2.1", 2.0), RunOptions(quick=True)),
    ]
    text = html(rows)
    assert "1 of 2 rows were run in quick form" in text
    assert text.count('class="quick"') == 2, "in the contents and at the row"
    assert 'Out of tolerance: <a href="#row-2.1">' in text
    assert '<tr class="bad"><td>value</td>' in text
    plain = html([measure(experiment_of("1.1"), RunOptions())])
    assert "quick form" not in plain
    assert "Out of tolerance" not in plain


def test_a_browser_opens_the_page_without_console_messages(tmp_path: Path) -> None:
    from tokenloom.lab.report import html

    browser = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    page = tmp_path / "report.html"
    page.write_text(
        html([measure(one, RunOptions()) for one in (experiment_of("1.1"), experiment_of("mine"))]), "utf-8"
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=900,1600"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={tmp_path / 'page.png'}"]
    done = subprocess.run([browser, *flags, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_progress_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenloom.cli.lab import LabProgress

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    chosen = [experiment_of("1", seconds=60.0), experiment_of("2", seconds=120.0)]
    progress = LabProgress(chosen, quick=False, quiet=False)
    progress.start(chosen[0])
    progress.update(0.25)
    progress.update(0.5)
    progress.finish({"seconds": 30.0})
    progress.start(chosen[1])
    progress.close()
    lines = [line.strip() for line in terminal.getvalue().split("\r")]
    assert lines == [
        "1 of 2: 1 title 1, ETA 3:00",
        "1 of 2: 1 title 1, ETA 3:00, training 25%",
        "2 of 2: 2 title 2, ETA 1:00",
        "",
        "",
    ], "limited in frequency; the ETA uses the measured pace"
