"""The command line. Each command parses, calls the library, and prints; nothing heavy is imported before it is used."""

from __future__ import annotations

import inspect
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter, UnknownOptionError, UnusedCliTokensError

from tokenloom.cli.output import DATA, DEVICE, JSON, QUIET, RUN, STDIN, leads, whole_number
from tokenloom.errors import UserError
from tokenloom.version import VERSION

OTHER_DATA = Annotated[str | None, Parameter(help="measure on all of these data instead")]
NAMES = Annotated[str, Parameter(help="run folders; with --models, a text to train on")]
MODELS = Annotated[str | None, Parameter(help="language models to train, such as unigram,bigram,ngram,rnn,lstm,gpt")]
CONTEXT = Annotated[
    str | None,
    Parameter(help="of text: running, or N for separate windows of N tokens, which --models shows beside running"),
]
COMPARED = Annotated[str | None, Parameter(help="folder of the runs that --models trains [default: runs/compare-DATA]")]
STEPS = Annotated[int | None, Parameter(converter=whole_number, help="train each for so many steps")]
BATCH = Annotated[int, Parameter(converter=whole_number, help="samples at a time; makes no difference to the result")]
RUN_OR_TASK = Annotated[str, Parameter(name="RUN", help="a run folder, or the name of a task")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 broke down, 2 cannot be used, 130 interrupted."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a letter shows its number; nothing breaks.
            stream.reconfigure(errors="backslashreplace")
    try:
        app = make_app(tokens)
        # A lone - is no flag, but the parser takes it for one.
        words = [STDIN if token == "-" else token for token in tokens]
        code = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except UserError as error:
        return _complain(str(error), error.exit_code, quiet=error.told or not leads(machine=True))
    except CycloptsError as error:
        return _complain(_one_line(error), 2, quiet=not leads(machine=True))
    except BrokenPipeError:
        # Whoever read our output has gone; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _complain(str(error), 1)
    except ArithmeticError as error:
        if not type(error).__module__.startswith("tokenloom"):
            raise
        return _complain(str(error), 1, quiet=not leads())
    except KeyboardInterrupt as stop:
        return _complain(str(stop) or "stopped", 130, quiet=not leads())
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else bool(stop.code)
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int, *, quiet: bool = False) -> int:
    sys.stdout.flush()
    if not quiet:
        print(f"tokenloom: {' '.join(message.split())}", file=sys.stderr)
    return code


def _one_line(error: CycloptsError) -> str:
    if isinstance(error, UnusedCliTokensError):
        text = f"one word too many: {' '.join(map(repr, error.unused_tokens or []))}"
    else:
        text = " ".join(str(error).split())
    if isinstance(error, UnknownOptionError) and (error.command_chain or ()) == ("train",):
        from tokenloom.cli.options import tasks_with

        if tasks := tasks_with(error.token.keyword or ""):
            text = f"{error.token.keyword} is an option of {' and '.join(f'--task {name}' for name in tasks)}"
    return f"{text} (see {' '.join(['tokenloom', *(error.command_chain or ())])} --help)"


def make_app(tokens: Sequence[str]) -> App:
    """The commands. The options of `train` and of the verbs depend on the task, so the words are looked at first."""
    app = App(
        name="tokenloom",
        help="Train, evaluate, use and look inside small transformers for any data.",
        version=VERSION,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
    )
    command = next((token for token in tokens if not token.startswith("-")), None)
    rest = list(tokens[tokens.index(command) + 1 :]) if command else []
    app.command(_train_command(command, rest), name="train")
    for verb, what in _verbs(command, rest).items():
        app.command(_verb_command(verb, what, command, rest), name=verb)
    app.command(_info_command(command, rest), name="info")
    app.command(_plan_command(command), name="plan")
    app.command(_evaluate_command(command, rest), name="evaluate")
    app.command(compare)
    app.command(models)
    app.command(_data_app())
    app.command(_lab_app())
    return app


# Commands whose options depend on the task.


def _train_command(command: str | None, rest: list[str]) -> Callable[..., Any]:
    from tokenloom.cli.train import COMMON, train_run

    def train(data: DATA = None, /, **given: Any) -> int:
        return train_run(data, given)

    train.__doc__ = (
        "Train on DATA: a file, a folder, - for standard input, or the name of a built-in data set.\n\n"
        "The task is guessed from the data when not given; every size and rate that is not given is derived and shown."
    )
    extra: list[Any] = []
    if command == "train":
        from tokenloom.cli.options import task_in
        from tokenloom.training.settings import TrainingSettings

        extra = [task_in(rest).Settings, TrainingSettings]
    return _with_options(train, COMMON, extra)


def _verb_command(verb: str, what: str, command: str | None, rest: list[str]) -> Callable[..., Any]:
    def use(run: RUN, /, *, device: DEVICE = "cpu", json: JSON = False, quiet: QUIET = False, **given: Any) -> None:
        from tokenloom.cli.use import use_run

        use_run(verb, run, given, device=device, as_json=json, quiet=quiet)

    use.__doc__ = what
    extra: list[Any] = []
    if command == verb:
        from tokenloom.cli.options import task_of_run

        found = task_of_run(rest, verb)
        extra = [] if found is None else [found.uses[verb]]
    return _with_options(use, [], extra)


def _verbs(command: str | None, rest: list[str]) -> dict[str, str]:
    """The uses that trained runs have; a verb that only a task of the user's own knows is among them where it is given.

    They are said here, not asked of the tasks, which take torch's second to import: a test holds them against those.
    """
    verbs = {
        "generate": "Continue from RUN: make new data with a trained model.",
        "score": "Score given data with RUN: its log-probability under a trained model.",
        "predict": "Predict with RUN: a label, or whatever the task answers, for each input.",
        "look": "Look inside RUN, of image-classification: where a picture's class comes from, drawn over it.",
        "reconstruct": "Pictures as they come back from the codes of RUN, of image-tokenizer.",
        "neighbors": "The words nearest to a word, in RUN of word-vectors.",
        "analogy": "What is to C as B is to A, in RUN of word-vectors.",
        "map": "Draw the words of RUN, of word-vectors, in a plane.",
        "export": "Write RUN, of word-vectors, as a file that other programs read.",
    }
    others = ("train", "info", "plan", "evaluate", "compare", "models", "data", "lab", *verbs)
    if command is not None and command not in others and rest:
        from tokenloom.cli.options import is_verb

        if is_verb(command, rest):
            verbs[command] = f"{command.capitalize()} with RUN."
    return verbs


def _evaluate_command(command: str | None, rest: list[str]) -> Callable[..., Any]:
    def evaluate(
        run: RUN,
        /,
        *,
        data: OTHER_DATA = None,
        batch: BATCH = 64,
        device: DEVICE = "cpu",
        json: JSON = False,
        **given: Any,
    ) -> None:
        from tokenloom.cli.use import evaluate_run

        evaluate_run(run, data, given, batch=batch, device=device, as_json=json)

    evaluate.__doc__ = "Measure RUN on the whole validation part of its data, or on all of other data."
    extra: list[Any] = []
    if command == "evaluate":
        from tokenloom.cli.options import task_measured

        extra = [task.measuring for task in task_measured(rest) if task.measuring is not None]
    return _with_options(evaluate, [], extra)


def _info_command(command: str | None, rest: list[str]) -> Callable[..., Any]:
    def info(run: RUN_OR_TASK, /, *, json: JSON = False, **given: Any) -> None:
        from tokenloom.cli.info import show_info

        show_info(run, given, as_json=json)

    info.__doc__ = (
        "Show what RUN is: a run folder, or the name of a task with settings (info text-generation --size small)."
    )
    extra: list[Any] = []
    if command == "info":
        from tokenloom.cli.options import task_named

        found = task_named(rest)
        extra = [] if found is None else [found.Settings]
    return _with_options(info, [], extra)


def _plan_command(command: str | None) -> Callable[..., Any]:
    def plan(data: DATA = None, /, *, json: JSON = False, **given: Any) -> None:
        from tokenloom.cli.plan import show_plan

        show_plan(data, given, as_json=json)

    plan.__doc__ = (
        "Plan a training of a text model, here or elsewhere: FLOPs, memory a device, tokens a second, days.\n\n"
        "Nothing is trained. DATA is read to count its tokens; without it, --tokens says how many."
    )
    extra: list[Any] = []
    if command == "plan":
        from tokenloom.planning.text import PlanSettings
        from tokenloom.tasks._text_generation_settings import TextGenerationSettings

        extra = [TextGenerationSettings, PlanSettings]
    return _with_options(plan, [], extra)


def _with_options(function: Callable[..., Any], common: Sequence[Any], classes: Sequence[type]) -> Callable[..., Any]:
    """Give a function that takes **given one parameter for every option; only those given reach it, by name."""
    from tokenloom.cli.options import parameters

    signature = inspect.signature(function, eval_str=True, globals=globals())
    kept = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [*common, *(p for cls in classes for p in parameters(cls))]

    positional = [p for p in (*kept, *added) if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    own = sum(p in kept for p in positional)

    def call(*args: Any, **kwargs: Any) -> Any:
        named = {p.name: value for p, value in zip(positional[own:], args[own:], strict=False)} | kwargs
        named = {k: "-" if v == STDIN else v for k, v in named.items() if v is not None}
        return function(*("-" if value == STDIN else value for value in args[:own]), **named)

    call.__doc__, call.__name__ = function.__doc__, function.__name__
    call.__signature__ = inspect.Signature(sorted((*kept, *added), key=lambda p: p.kind))  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in (*kept, *added)}
    return call


# Commands that are the same for all.


def compare(
    *names: NAMES,
    models: MODELS = None,
    context: CONTEXT = None,
    out: COMPARED = None,
    minutes: Annotated[float | None, Parameter(help="train each about this long")] = None,
    steps: STEPS = None,
    size: Annotated[str | None, Parameter(help="of each: nano, tiny, small, medium or large")] = None,
    tokenizer: Annotated[str | None, Parameter(help="of all: auto, char, word, bpe or byte-bpe")] = None,
    vocab_size: Annotated[int | None, Parameter(converter=whole_number, help="ids of the tokenizer")] = None,
    threads: Annotated[int | None, Parameter(converter=whole_number, help="CPU threads in training")] = None,
    seed: Annotated[int | None, Parameter(converter=whole_number, help="seed of everything random")] = None,
    overwrite: Annotated[bool, Parameter(negative="", help="replace the runs that are there")] = False,
    device: DEVICE = "cpu",
    json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Compare trained runs in pairs, on the same validation samples; or, with --models, language models on one text.

    tokenloom compare RUN RUN: differences with 95 % intervals, by a paired bootstrap. tokenloom compare DATA --models
    bigram,ngram,gpt: trains each on the same split, and draws what it reaches against time and size.
    """
    from tokenloom.cli.compare import compare_models, compare_runs

    text = {"size": size, "tokenizer": tokenizer, "vocab_size": vocab_size}
    training = {"minutes": minutes, "steps": steps, "seed": seed, "threads": threads}
    given = {name: value for name, value in {**text, **training, "out": out}.items() if value is not None}
    if models is None:
        if given or overwrite:
            raise UserError(f"--{next(iter(given), 'overwrite')} is for trainings: it has no effect without --models")
        compare_runs(names, context, device=device, as_json=json)
        return
    if len(names) != 1:
        raise UserError("--models: give one text to train them on; runs are compared without --models")
    compare_models(
        names[0],
        models,
        str(given.pop("out", f"runs/compare-{Path(names[0]).stem}")),
        {name: given[name] for name in text if name in given},
        {name: given[name] for name in training if name in given},
        context=context,
        overwrite=overwrite,
        as_json=json,
        quiet=quiet,
    )


def models(*, json: JSON = False) -> None:
    """List the tasks, and the models that each can train."""
    from tokenloom.cli.info import show_models

    show_models(as_json=json)


def _data_app() -> App:
    from tokenloom.cli import data

    app = App(name="data", help="Built-in data sets: list, get, add a copy of your own, check. Tokenize large text.")
    for function in (data.list_all, data.get, data.add, data.check, data.tokenize):
        app.command(function, name=function.__name__.removesuffix("_all"))
    return app


def _lab_app() -> App:
    from tokenloom.cli import lab

    app = App(name="lab", help="The figures of the textbook's chapter, run again: list, run, report, new.")
    for function in (lab.list_all, lab.run, lab.report, lab.new):
        app.command(function, name=function.__name__.removesuffix("_all"))
    return app
