"""Which tasks there are, and how a file of one's own becomes one."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit import own_task

import tokenloom.tasks
from tokenloom.config import Options, build, options
from tokenloom.errors import UserError
from tokenloom.tasks import declared_actions, task_names
from tokenloom.tasks.base import Match, Task, actions_of, models_of, summary_of
from tokenloom.tasks.registry import all_tasks, find_task, guess_task

OWN = Path(own_task.__file__)


def test_every_module_of_tasks_is_a_task() -> None:
    names = task_names()
    assert "text-generation" in names
    (folder,) = tokenloom.tasks.__path__
    modules = {path.stem for path in Path(folder).glob("[a-z]*.py")} - {"base", "registry"}
    assert names == sorted(module.replace("_", "-") for module in modules)
    for name in names:
        task = find_task(name)
        assert task.name == name
        assert summary_of(task)
        assert all(models_of(task).values()), "the help of the option model says what each model is"
        assert list(options(task.Settings))
        assert all(option.help for option in options(task.Settings)), "each setting says what it is for"
        assert all(one.help for action in actions_of(task).values() for one in options(action.options))


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"^no task 'text-generatoin'; did you mean 'text-generation'\? There are "):
        find_task("text-generatoin")
    with pytest.raises(UserError, match=r"^no task 'qqq'\. There are .*text-generation.*file\.py:ClassName$"):
        find_task("qqq")


@pytest.mark.parametrize("name", ["frame", "text_generation", "", "os", "../text-generation"])
def test_what_is_no_task_is_none(name: str) -> None:
    with pytest.raises(UserError, match="no task"):
        find_task(name)


def test_a_text_is_guessed_and_the_guess_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "poem.txt"
    path.write_text("a rose\n" * 10)
    name, why = guess_task(str(path))
    assert name == "text-generation"
    assert why


def test_actions_are_read_from_the_source_without_importing_torch() -> None:
    """What `tokenloom --help` lists is what the tasks declare."""
    declared = {name for task in all_tasks() for name in actions_of(task)}
    assert set(declared_actions()) == declared
    assert all(declared_actions().values()), "every action has a help text"
    code = "import sys, tokenloom.tasks; tokenloom.tasks.declared_actions(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_fallback_is_asked_last_and_two_claims_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    matches = {"a-fallback": Match("any", fallback=True), "other": Match("Other")}
    modules = {name: SimpleNamespace(recognize=lambda source, match=match: match) for name, match in matches.items()}
    monkeypatch.setattr("tokenloom.tasks.registry.task_names", lambda: list(modules))
    monkeypatch.setattr("tokenloom.tasks.registry._module", modules.__getitem__)
    assert guess_task("data") == ("other", "Other")
    modules["third"] = modules["other"]
    with pytest.raises(UserError, match="may be for other or third; say which with --task"):
        guess_task("data")
    modules.clear()
    modules["none"] = SimpleNamespace(recognize=lambda source: None)
    with pytest.raises(UserError, match="no task recognizes these data; say which with --task"):
        guess_task("something")


def settings_classes(cls: type[Options] = Options) -> Iterator[type[Options]]:
    """Yield the settings classes of the package that no other inherits from."""
    for sub in cls.__subclasses__():
        if sub.__subclasses__():
            yield from settings_classes(sub)
        elif sub.__module__.startswith("tokenloom."):
            yield sub


def test_rules_between_options_name_options_of_the_same_class() -> None:
    for name in task_names():
        find_task(name)
    classes = list(settings_classes())
    assert len(classes) > 15
    for cls in classes:
        declared = {one.name: one for one in options(cls)}
        for one in declared.values():
            for other in (*one.excludes, *one.needs, *one.only):
                assert other in declared, f"{cls.__name__}.{one.name} has a rule about {other}, which is not declared"
            for other, values in one.only.items():
                choices = declared[other].choices
                assert choices is None or set(values) <= {*choices, None}, f"{cls.__name__}.{one.name}: {other}"


# Files of one's own.


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_class_in_a_file_of_ones_own() -> None:
    task = find_task(f"{OWN}:Sums")
    assert issubclass(task, Task)
    assert task.name == "digit-sums"
    assert build(task.Settings, {"width": 4}).width == 4  # type: ignore[attr-defined]


def test_a_path_relative_to_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "größe und mehr"
    folder.mkdir()
    write(folder, OWN.read_text())
    monkeypatch.chdir(folder)
    assert find_task("./mine.py:Sums").name == "digit-sums"
    assert find_task("mine.py:Sums").name == "digit-sums"
    assert find_task(f"{folder / 'mine.py'}:Sums").name == "digit-sums"


def test_a_file_may_have_the_name_of_a_module_and_hides_it_from_no_one(tmp_path: Path) -> None:
    import json

    assert find_task(f"{write(tmp_path, OWN.read_text(), 'json.py')}:Sums").name == "digit-sums"
    import json as again

    assert again is json
    assert json.loads("1") == 1


def test_a_file_that_was_changed_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path, OWN.read_text())
    find_task(f"{path}:Sums")
    path.write_text(OWN.read_text().replace("digit-sums", "digit-products"))
    assert find_task(f"{path}:Sums").name == "digit-products"


HEAD = "from tokenloom.tasks.base import Task\n"
FAULTS = {
    "no such file": (None, "X", "there is no such file"),
    "syntax": ("def broken(:\n", "X", "cannot be imported: SyntaxError"),
    "an error inside": ("1 / 0\n", "X", "cannot be imported: ZeroDivisionError: division by zero"),
    "a missing module": ("import not_there_at_all\n", "X", "cannot be imported: ModuleNotFoundError"),
    "another name": (
        HEAD + "class Mine(Task):\n    pass\n",
        "Mnie",
        "no Task of that name in the file; did you mean 'Mine'?",
    ),
    "no class": (HEAD + "X = 3\n", "X", "no Task of that name in the file"),
    "a class of another kind": ("class X:\n    pass\n", "X", "no Task of that name in the file"),
    "an empty name": (HEAD, "", "no Task of that name in the file"),
    "no settings": (HEAD + "class X(Task):\n    name = 'x'\n", "X", "sets no `Settings`"),
    "settings that are none": (
        OWN.read_text().replace("    Settings = SumsSettings\n", "    Settings = dict\n"),
        "Sums",
        "has `Settings` that do not inherit from tokenloom.config.Options",
    ),
    "methods missing": (
        OWN.read_text().replace("    def build_model(", "    def bild(").replace("    def collate(", "    def colate("),
        "Sums",
        "does not define build_model, collate",
    ),
    "a setting that training has": (
        OWN.read_text().replace("    width: int", '    seed: int = option(1, "x")\n    width: int'),
        "Sums",
        "has settings that training has already: seed",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_is_not_right_is_refused_by_name_in_one_line(fault: str, tmp_path: Path) -> None:
    text, name, message = FAULTS[fault]
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError) as caught:
        find_task(f"{path}:{name}")
    assert str(caught.value).startswith(f"--task {path}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    import sys

    before = set(sys.modules)
    with pytest.raises(UserError):
        find_task(f"{write(tmp_path, '1 / 0')}:X")
    assert set(sys.modules) == before
