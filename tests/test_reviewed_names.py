"""Every option, command and JSON key is in reviewed_names.txt, so that each new name is looked at once.

`python tests/test_reviewed_names.py` rewrites the file; read what changes.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import pkgutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kit.kit_examples import KITS
from tiny_cli import RHYME

import tokenloom
from tokenloom.cli.main import main, make_app
from tokenloom.config import Options, options

REVIEWED = Path(__file__).with_name("reviewed_names.txt")
# Objects whose keys are data: classes, words, settings (which are options), …
KEYED_BY_DATA = {"probabilities", "neighbors", "settings", "model", "training", "assets", "maps", "report"}
# Commands that run every action of every task; DATA is what its example was trained on.
ACTIONS = {
    "text-generation": ["generate RUN --max-new-tokens 2", "score RUN --continuation One"],
    "text-classification": ["predict RUN pear"],
    "token-classification": ["predict RUN Rome"],
    "fill-mask": ["predict RUN One___"],
    "translation": ["predict RUN abc"],
    "word-vectors": [
        "inspect RUN neighbors one",
        "inspect RUN analogy one two buckle",
        "inspect RUN embeddings --out map.png",
        "export RUN --out vectors.txt",
    ],
    "image-classification": ["predict RUN IMAGE", "inspect RUN attention IMAGE --out attention.png"],
    "image-tokenizer": ["reconstruct RUN --out sheet.png"],
    "image-generation": ["generate RUN --out sheet.png"],
}
WRITTEN = {"attention.png", "map.png", "sheet.png", "vectors.txt"}


def settings_classes(cls: type[Options] = Options) -> Iterator[type[Options]]:
    """Yield the settings classes of the package."""
    for sub in cls.__subclasses__():
        if sub.__module__.startswith("tokenloom."):
            yield sub
        yield from settings_classes(sub)


def commands(app: Any, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the commands, and the flags that do not come from settings classes."""
    for name in app:
        if name.startswith("-"):
            continue
        arguments = app[name].assemble_argument_collection() if app[name].default_command else []
        yield prefix + name, [flag for one in arguments for flag in one.names if flag.startswith("--")]
        yield from commands(app[name], f"{prefix}{name} ")


def keys_of(value: Any) -> Iterator[str]:
    """Yield the keys of JSON at any depth; of f1/LABEL, f1."""
    if isinstance(value, list):
        for item in value:
            yield from keys_of(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key.split("/")[0]
            if key not in KEYED_BY_DATA:
                yield from keys_of(item)


def results(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield commands and the JSON that they print."""

    def run(*words: str) -> tuple[str, Any]:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as err:
            code = main([*words, "--json"])
        assert code == 0, f"{' '.join(words)}: {err.getvalue()}"
        return words[0], json.loads(out.getvalue().splitlines()[-1])

    for name, kit in KITS.items():
        (folder / name).mkdir()
        for number, example in enumerate(kit.examples(folder / name).values()):
            out = str(folder / f"{name}-{number}")
            flags = [word for option, value in example.settings.items() for word in words_of(option, value)]
            steps = [] if example.fitted else ["--steps", "2"]
            yield run("train", example.data, "--task", name, "--out", out, "--threads", "1", *steps, *flags)
            yield run("evaluate", out)
            yield run("info", out)
            yield "config.json", json.loads((Path(out) / "config.json").read_text())
            for line in (Path(out) / "metrics.jsonl").read_text().splitlines():
                yield "metrics.jsonl", json.loads(line)
            if number == 0:
                image = next((str(path) for path in sorted((folder / name).rglob("*.pgm"))), "")
                for command in ACTIONS[name]:
                    paths = {"RUN": out, "IMAGE": image, **{file: str(folder / file) for file in WRITTEN}}
                    yield run(*(paths.get(word, word) for word in command.split()))
    text = folder / "text.txt"
    text.write_text(RHYME * 100)
    yield run("sweep", str(text), "--models", "unigram,bigram", "--out", str(folder / "sweep"))
    yield run("compare", str(folder / "sweep" / "unigram"), str(folder / "sweep" / "bigram"))
    yield run("plan", "--size", "nano", "--num-tokens", "1e6", "--vocab-size", "64")
    yield run("info", "text-generation")
    yield run("lab", "list")
    yield run("lab", "run", "1.2", "--quick", "--out", str(folder / "lab"))
    yield run("lab", "report", "--out", str(folder / "lab"))
    yield run("data", "list")
    yield run("tasks")


def words_of(name: str, value: Any) -> list[str]:
    """Return an option as words of a command line."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]


def found(folder: Path) -> dict[str, list[str]]:
    """Return all names by section."""
    for module in pkgutil.walk_packages(tokenloom.__path__, "tokenloom."):
        if module.name.split(".")[1] in ("cli", "planning", "runs", "evaluation", "tasks"):
            importlib.import_module(module.name)
    declared = {one.name for cls in settings_classes() for one in options(cls)}
    flags = {flag[2:].removeprefix("no-") for _, names in commands(make_app([])) for flag in names}
    keys: dict[str, set[str]] = {}
    for command, result in results(folder):
        keys.setdefault(command, set()).update(keys_of(list(result.values()) if command == "tasks" else result))
    return {
        "commands": sorted(name for name, _ in commands(make_app([]))),
        "options": sorted(declared | {flag.replace("-", "_") for flag in flags} - {"help", "version"}),
        **{f"JSON of {command}": sorted(names) for command, names in sorted(keys.items())},
    }


def test_every_name_is_reviewed(tmp_path: Path) -> None:
    reviewed: dict[str, set[str]] = {}
    section = ""
    for line in REVIEWED.read_text("utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            reviewed[section] = set()
        elif line:
            reviewed[section].add(line)
    names = found(tmp_path)
    new = [f"{part}: {name}" for part in names for name in names[part] if name not in reviewed.get(part, ())]
    gone = [f"{part}: {name}" for part in reviewed for name in reviewed[part] - set(names.get(part, ()))]
    assert not new, f"names to review, then add to {REVIEWED.name}: {', '.join(new)}"
    assert not gone, f"names that are no longer used, to be removed from {REVIEWED.name}: {', '.join(gone)}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sections = [f"[{section}]\n" + "\n".join(all) for section, all in found(Path(temporary)).items()]
    REVIEWED.write_text("\n\n".join(sections) + "\n", "utf-8")
