"""The command line: each command parses, calls the library and prints. Heavy modules are imported when used."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter, UnknownCommandError, UnknownOptionError, UnusedCliTokensError

from tokenloom.cli.output import STDIN, is_main_process
from tokenloom.cli.parameters import with_options
from tokenloom.cli.use import INSPECT
from tokenloom.errors import UserError
from tokenloom.tasks import declared_actions
from tokenloom.version import VERSION

DATA = Annotated[
    str | None, Parameter(help="a file, a folder, - for standard input, or a built-in data set (tokenloom data list)")
]
RUN = Annotated[str, Parameter(help="a run folder, written by tokenloom train")]
RUN_OR_TASK = Annotated[str, Parameter(name="RUN", help="a run folder, or the name of a task")]
WHAT = Annotated[str | None, Parameter(help="what to look at; the task of the run decides")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code: 0 success, 1 failure, 2 wrong usage, 130 interrupted."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the terminal's encoding lacks are printed as escapes.
            stream.reconfigure(errors="backslashreplace")
    # The parser takes a lone - for a flag.
    words = [STDIN if token == "-" else token for token in tokens]
    try:
        app = make_app(words)
        code = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except UserError as error:
        return _fail(str(error), error.exit_code, quiet=error.told or not is_main_process(machine=True))
    except CycloptsError as error:
        return _fail(_one_line(error, tokens), 2, quiet=not is_main_process(machine=True))
    except BrokenPipeError:
        # The reader of standard output has closed it: nothing is left to print.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(str(error), 1)
    except ArithmeticError as error:
        if not type(error).__module__.startswith("tokenloom"):
            raise
        return _fail(str(error), 1, quiet=not is_main_process())
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or "stopped", 130, quiet=not is_main_process())
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else bool(stop.code)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int, *, quiet: bool = False) -> int:
    sys.stdout.flush()
    if not quiet:
        print(f"tokenloom: {' '.join(message.split())}", file=sys.stderr)
    return code


def _one_line(error: CycloptsError, tokens: Sequence[str]) -> str:
    """Return the message of a parsing error on one line, with the command whose help to read."""
    error.verbose = False
    chain = list(error.command_chain or ())
    if not chain and not isinstance(error, UnknownCommandError):
        chain = [token for token in tokens if not token.startswith("-")][:1]
    if isinstance(error, UnusedCliTokensError):
        text = f"unexpected argument: {' '.join(map(repr, error.unused_tokens or []))}"
    else:
        text = " ".join(str(error).split())
    if isinstance(error, UnknownOptionError) and chain == ["train"]:
        from tokenloom.cli.train import tasks_with

        if names := tasks_with(error.token.keyword or ""):
            text = f"{error.token.keyword} is an option of other tasks: {', '.join(names)}"
    return f"{text} (see {' '.join(['tokenloom', *chain])} --help)"


def train(data: DATA = None, /, **given: Any) -> int:
    """Train on DATA: a file, a folder, standard input (-) or a built-in data set.

    The task is guessed from the data unless --task is given. Sizes and learning rates that are not given are chosen
    automatically and shown.
    """
    from tokenloom.cli.train import train_run

    return train_run(data, given)


def plan(data: DATA = None, /, **given: Any) -> None:
    """Plan the training of a GPT: FLOPs, memory per device, tokens/s, days.

    Nothing is trained. DATA is read to count its tokens; without DATA, the number of tokens is an option.
    """
    from tokenloom.cli.plan import show_plan

    show_plan(data, given)


def sweep(data: Annotated[str, Parameter(help="a text to train on")], /, **given: Any) -> None:
    """Train several language models on DATA and compare them."""
    from tokenloom.cli.compare import sweep_models

    sweep_models(data, given)


def info(run: RUN_OR_TASK, /, **given: Any) -> None:
    """Show the sizes, settings and metrics of RUN.

    With the name of a task, show the sizes of its model without data: info text-generation --size small."""
    from tokenloom.cli.info import show_info

    show_info(run, given)


def compare(**given: Any) -> None:
    """Compare runs in pairs on the same validation examples, by a paired bootstrap."""
    from tokenloom.cli.compare import compare_runs

    compare_runs(given)


def tasks(**given: Any) -> None:
    """List the tasks, and the models that each can train."""
    from tokenloom.cli.info import show_tasks

    show_tasks(given)


def _inspect(names: Sequence[str]) -> Callable[..., Any]:
    def inspect(run: RUN, what: WHAT = None, /, **given: Any) -> None:
        from tokenloom.cli.use import inspect_run

        inspect_run(run, what, given)

    inspect.__doc__ = f"Look inside RUN: inspect RUN {', '.join(names)}."
    return inspect


def _action(name: str, help: str) -> Callable[..., Any]:
    def act(run: RUN, /, **given: Any) -> None:
        from tokenloom.cli.use import use_run

        use_run(name, run, given)

    act.__doc__, act.__name__ = help, name
    return act


# Groups of `--help`, in this order. Actions of tasks are in "Use", unless they are named in ACTION_GROUPS.
COMMANDS: dict[str, tuple[Callable[..., Any], ...]] = {
    "Train": (train, plan, sweep),
    "Use": (),
    "Look inside": (info, compare, tasks),
    "Exchange": (),
    "Learn": (),
    "Data": (),
}
ACTION_GROUPS = {"export": "Exchange"}


def make_app(tokens: Sequence[str]) -> App:
    """Return the commands. The options of one depend on its task, which the tokens decide."""
    from tokenloom.cli import data, lab

    app = App(
        name="tokenloom",
        help="Train, evaluate, use and look inside small transformers for any data.",
        version=VERSION,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
    )
    command = next((token for token in tokens if not token.startswith("-")), "")
    rest = list(tokens[tokens.index(command) + 1 :]) if command else []
    groups = {name: Group(name, sort_key=place) for place, name in enumerate(COMMANDS)}
    named = {f.__name__: (f, group) for group, functions in COMMANDS.items() for f in functions}
    actions = declared_actions()
    inspections = sorted(name.removeprefix(INSPECT) for name in actions if name.startswith(INSPECT))
    named["inspect"] = _inspect(inspections), "Look inside"
    for name, help in actions.items():
        if not name.startswith(INSPECT):
            named[name] = _action(name, help), ACTION_GROUPS.get(name, "Use")
    if command and rest and command not in (*named, "data", "lab") and _is_action(command, rest):
        named[command] = _action(command, f"{command.capitalize()} with RUN."), "Use"
    for name, (function, group) in named.items():
        classes = _option_classes(name, rest) if name == command else []
        app.command(with_options(function, classes), name=name, group=groups[group])
    for name, help, group, functions in (
        ("lab", "Run the reference experiments of the textbook's chapter.", "Learn", lab.COMMANDS),
        ("data", "List, download and check built-in data sets; tokenize large text.", "Data", data.COMMANDS),
    ):
        sub = App(name=name, help=help, group=groups[group])
        for function in functions:
            sub.command(function, name=function.__name__.removesuffix("_all"))
        app.command(sub)
    return app


def _is_action(name: str, rest: list[str]) -> bool:
    """Return whether the run of a command line, which may be of a user's own task, has an action of that name."""
    from tokenloom.cli.use import option_classes

    try:
        return len(option_classes(name, rest)) > 1
    except UserError:
        return False


def _option_classes(command: str, rest: list[str]) -> list[type]:
    """Return the settings classes whose options a command line may have."""
    if command in ("compare", "sweep"):
        from tokenloom.cli import compare

        return compare.compare_classes() if command == "compare" else compare.sweep_classes()
    if command in ("info", "tasks"):
        from tokenloom.cli import info

        return info.option_classes(rest if command == "info" else [])
    if command == "train":
        from tokenloom.cli import train

        return train.option_classes(rest)
    if command == "plan":
        from tokenloom.cli import plan

        return plan.option_classes()
    from tokenloom.cli import use

    return use.option_classes(command, rest)
