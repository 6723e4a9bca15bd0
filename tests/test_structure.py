"""Static rules of the code base: allowed imports, import time, no pickle."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tokenloom"
TOP = {"__init__", "__main__", "config", "errors", "version"}
# What every package may import.
SHARED = {"config", "errors", "utils", "version"}


def table() -> dict[str, set[str]]:
    """Room → the packages that it may import, as the table in ARCHITECTURE.md has it."""
    rows = re.findall(r"^\| `(\w+)/` \|.*\| ([^|]+) \|$", (ROOT / "ARCHITECTURE.md").read_text("utf-8"), re.MULTILINE)
    allowed: dict[str, set[str]] = {}
    for package, cell in rows:
        allowed[package] = set(allowed) if cell.strip() == "all above" else set(re.findall(r"`(\w+)`", cell))
    return allowed


def reached(package: str, allowed: dict[str, set[str]]) -> set[str]:
    """What a package may import, and what that may import in turn: left of it, or below."""
    found: set[str] = set()
    waiting = [package]
    while waiting:
        for one in allowed[waiting.pop()] - found:
            found.add(one)
            waiting.append(one)
    return found


@functools.cache
def parsed(path: Path) -> list[ast.AST]:
    """Every node of a file."""
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, full name) of everything that a file imports, wherever in it."""
    for node in parsed(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports by their full names"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def package_of(path: Path) -> str:
    inside = path.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else "top"


def sources(*folders: str) -> list[Path]:
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    assert len(files) > 20
    return files


def wrong_imports(path: Path, allowed: dict[str, set[str]]) -> list[str]:
    """One line for each import of a package that the file's own package may not import."""
    package = package_of(path)
    if package == "top":
        return []
    mine = {package} | SHARED | reached(package, allowed)
    found = []
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] == "tokenloom" and len(parts) > 1 and parts[1] not in mine:
            found.append(f"{path.relative_to(ROOT)}:{line}: {package} may not import {name}")
    return found


def test_imports_point_left_or_down_never_up() -> None:
    allowed = table()
    wrong = [line for path in sources("src") for line in wrong_imports(path, allowed)]
    assert not wrong, "\n".join(wrong)


def test_the_table_names_every_package_and_has_no_cycle() -> None:
    allowed = table()
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert set(allowed) == packages
    assert all(package not in reached(package, allowed) for package in packages)
    assert allowed["utils"] == allowed["plotting"] == set()
    assert allowed["nn"] == {"kernels"}
    assert "cli" not in set().union(*allowed.values()), "no package imports the command line"
    assert all("tasks" not in reached(package, allowed) for package in packages - {"runs", "cli", "lab"})
    assert not reached("models", allowed) & {"data", "tokenizers", "training"}, "models know tensors alone"


def test_a_wrong_import_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This test can fail: also for an import inside a function."""
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "tokenloom")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "tokenloom" / "nn" / "bad.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import torch\ndef f():\n    from tokenloom.data.text import read_text\n    import tokenloom.errors\n"
    )
    assert wrong_imports(path, {"nn": set(), "data": set()}) == [
        "tokenloom/nn/bad.py:3: nn may not import tokenloom.data.text.read_text"
    ]


def import_graph() -> dict[str, set[str]]:
    """Return module → the modules of the package that it imports, at any level of its file, TYPE_CHECKING included."""
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        named = {name for _, name in imports(path)}
        graph[module] = {name if name in files else name.rpartition(".")[0] for name in named} & files.keys() - {module}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            component = [stack.pop()]
            while component[-1] != module:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for module in graph:
        if module not in index:
            visit(module)
    return found


def test_imports_have_no_cycles() -> None:
    found = cycles(import_graph())
    assert not found, "\n".join(" – ".join(component) for component in found)


def test_a_cycle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through an import inside a function, and one for type checking."""
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "tokenloom")
    package = tmp_path / "tokenloom" / "nn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from tokenloom.nn.b import f\n")
    (package / "b.py").write_text("def f():\n    from tokenloom.nn import c\n")
    (package / "c.py").write_text("if TYPE_CHECKING:\n    import tokenloom.nn.a\n")
    (package / "d.py").write_text("from tokenloom.nn.a import f\n")
    assert cycles(import_graph()) == [["tokenloom.nn.a", "tokenloom.nn.b", "tokenloom.nn.c"]]


def test_top_level_modules() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == TOP
    names = {name.split(".")[1] for _, name in imports(PACKAGE / "errors.py") if name.startswith("tokenloom.")}
    assert not names


@pytest.mark.parametrize("package", ["kernels", "nn"])
def test_tensor_modules_need_torch_alone(package: str) -> None:
    outside = {name.split(".")[0] for path in (PACKAGE / package).rglob("*.py") for _, name in imports(path)}
    assert outside - set(sys.stdlib_module_names) <= {"torch", "tokenloom"}


# What stays light.


def loaded_by(code: str) -> set[str]:
    """The top-level names of all modules that are there after some code has run in a fresh process."""
    report = f"import sys\n{code}\nprint('\\n' + ' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


HEAVY = {"torch", "tokenizers", "matplotlib", "yaml", "sklearn", "tensorboard", "transformers"}
LIGHT = {
    "import tokenloom": "import tokenloom; assert 'train' in dir(tokenloom)",
    "the error": "from tokenloom import UserError",
    "--help": "from tokenloom.cli.main import main; assert main(['--help']) == 0",
    "--version": "from tokenloom.cli.main import main; assert main(['--version']) == 0",
    "data and its readers": "import tokenloom.data.text, tokenloom.data.registry, tokenloom.data.split",
    "samples": "import tokenloom.data.samples",
    "tables and curves": "import tokenloom.plotting.tables, tokenloom.plotting.terminal, tokenloom.plotting.loss_curve",
}


@pytest.mark.parametrize("what", LIGHT)
def test_nothing_heavy_is_imported_before_it_is_needed(what: str) -> None:
    assert not loaded_by(LIGHT[what]) & HEAVY


def test_what_is_heavy_is_seen_when_it_is_there() -> None:
    assert "torch" in loaded_by("import tokenloom; tokenloom.train")


def test_what_is_not_there_is_no_attribute() -> None:
    import tokenloom

    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        tokenloom.trian  # type: ignore[attr-defined]  # noqa: B018
    assert set(tokenloom.__all__) <= set(dir(tokenloom))
    assert all(getattr(tokenloom, name) is not None for name in tokenloom.__all__)


# No pickle.

UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {("torch", "load"), ("torch", "save"), ("np", "load"), ("np", "save"), ("pd", "read_pickle")}


def unsafe(path: Path) -> list[str]:
    """One line for each place that reads or writes pickles."""
    found = [(line, name) for line, name in imports(path) if name.split(".")[0] in UNSAFE_MODULES]
    found += [(line, name) for line, name in imports(path) if tuple(name.split(".")) in UNSAFE_CALLS]
    for node in parsed(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in UNSAFE_CALLS:
                found.append((node.lineno, f"{node.value.id}.{node.attr}"))
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
            found.append((node.value.lineno, node.arg))
    return [f"{path}:{line}: {name}" for line, name in found]


def test_nothing_reads_or_writes_pickles() -> None:
    found = [line for path in sources("src", "tests") for line in unsafe(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from joblib import dump",
        "x = torch.load('a')",
        "from torch import load",
        "f(allow_pickle=True)",
    ],
)
def test_a_pickle_is_found(code: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(code + "\n")
    assert unsafe(path)


def test_test_files_have_names_of_their_own() -> None:
    """Without packages, two of one name would be taken for each other; `conftest.py` is known by its place."""
    names = [path.name for path in sources("tests") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
    assert not list((ROOT / "tests").rglob("__init__.py"))
