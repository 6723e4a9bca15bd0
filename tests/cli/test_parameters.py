"""Command-line parameters: flags in groups, words and flags in any order, and reading before the task is known."""

import inspect
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import pytest
from cyclopts import App, CycloptsError, Parameter

from tokenloom.cli.output import STDIN, OutputOptions
from tokenloom.cli.parameters import parameters, peek, with_options
from tokenloom.config import Options, option


@dataclass(frozen=True)
class MachineSettings(Options):
    """Inside another."""

    group: ClassVar[str] = "Machine"
    compile: bool = option(False, "compile the model")
    threads: int | None = option(None, "CPU threads", low=1)


@dataclass(frozen=True)
class TaskSettings(Options):
    """Each kind of option."""

    group: ClassVar[str] = "Model"
    model: Literal["gpt", "lstm"] = option("gpt", "architecture")
    downsample_factor: Literal[2, 4] | None = option(None, "pixels per token and side")
    kv_heads: int | None = option(None, "key-value heads per layer", low=1)
    dropout: float = option(0.1, "dropout", low=0, below=1)
    header: bool | None = option(None, "the first row has names", group="Data")
    stop: list[str] = option([], "stop texts", group="Other")
    only: list[Literal["a", "b"]] = option([], "some of them")
    files: list[str] = option([], "files", positional=True)
    machine: MachineSettings = field(default_factory=MachineSettings)


def called(*words: str) -> Any:
    """What a command with the options is called with."""

    def use(run: str, /, *, json: Annotated[bool, Parameter(negative="")] = False, **given: Any) -> dict[str, Any]:
        return {"run": run, "json": json, **given}

    app = App(name="tokenloom", help_format="plaintext", default_command=with_options(use, [TaskSettings]))
    return app(list(words), exit_on_error=False, print_error=False, result_action="return_value")


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["RUN"], {}),
        (["--kv-heads", "1e1", "RUN"], {"kv_heads": 10}),
        (["--compile", "RUN", "--no-header"], {"compile": True, "header": False}),
        (["RUN", "a", "--threads=3", "b", "--json", "c"], {"files": ["a", "b", "c"], "threads": 3, "json": True}),
        (["RUN", "--model", "gtp"], {"model": "gtp"}),
        (["RUN", "--downsample-factor", "3"], {"downsample_factor": 3}),
        (["RUN", "--stop", "x", "a", "--stop", "y"], {"files": ["a"], "stop": ["x", "y"]}),
        (["RUN", "--only", "a", "--only", "c"], {"only": ["a", "c"]}),
        (["RUN", "--", "--compile"], {"files": ["--compile"]}),
        (["RUN", STDIN, "--stop", STDIN], {"files": ["-"], "stop": ["-"]}),
        ([STDIN], {"run": "-"}),
    ],
)
def test_only_what_was_given_arrives_by_name(words: list[str], given: dict[str, Any]) -> None:
    assert called(*words) == {"run": "RUN", "json": False} | given


@pytest.mark.parametrize("words", [["RUN", "--kv-heads", "1.5"], ["RUN", "--kv-heds", "3"], [], ["RUN", "--threads"]])
def test_what_cannot_be_read_is_refused(words: list[str]) -> None:
    with pytest.raises(CycloptsError):
        called(*words)


def test_help_shows_flags_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    called("--help")
    shown = capsys.readouterr().out
    titles = [line.split()[1] for line in shown.splitlines() if line.startswith("╭")]
    assert titles == ["Commands", "Arguments", "Parameters", "Data", "Model", "Machine", "Other"]
    assert "architecture [choices: gpt, lstm; default: gpt]" in shown
    assert "dropout [default: 0.1]" in shown
    assert shown.index("--header") < shown.index("--kv-heads") < shown.index("--threads")


def test_every_option_is_a_parameter() -> None:
    found = {p.name: p.kind for p in parameters(TaskSettings)}
    assert found.pop("files") is inspect.Parameter.VAR_POSITIONAL
    assert set(found.values()) == {inspect.Parameter.KEYWORD_ONLY}
    assert {"compile", "threads", "kv_heads"} <= set(found)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], {"arguments": []}),
        (["x.txt", "--kv-heads", "3"], {"arguments": ["x.txt"], "kv_heads": "3"}),
        (["--kv-heads", "three", "x.txt"], {"arguments": ["x.txt"], "kv_heads": "three"}),
        (["--compile", "x.txt", "--no-header"], {"arguments": ["x.txt"], "compile": True, "header": False}),
        (["-q", "x.txt", "y", "--model=gpt"], {"arguments": ["x.txt", "y"], "quiet": True, "model": "gpt"}),
        (["--help", "x.txt"], {"arguments": ["x.txt"], "help": True}),
        (["--own", "8", "x.txt", "--stop", "a"], {"arguments": [], "stop": ["a"]}),
        (["x.txt", "--own", "8"], {"arguments": ["x.txt"]}),
        ([STDIN], {"arguments": ["-"]}),
    ],
)
def test_words_are_read_before_the_task_is_known(words: list[str], given: dict[str, Any]) -> None:
    assert peek(words, [TaskSettings, OutputOptions]) == given


def test_a_flag_without_its_value_is_refused_at_once() -> None:
    with pytest.raises(CycloptsError):
        peek(["x.txt", "--threads"], [TaskSettings])
