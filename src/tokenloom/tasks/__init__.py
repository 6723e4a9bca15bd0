"""Tasks: one module per task. What is known of them without importing them, which takes torch's second."""

from __future__ import annotations

import ast
from pathlib import Path

# Modules that are not tasks.
NOT_TASKS = {"__init__", "base", "registry"}


def task_names() -> list[str]:
    """Return the names of the built-in tasks: `text_generation.py` is `text-generation`."""
    names = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(name.replace("_", "-") for name in names if not name.startswith("_") and name not in NOT_TASKS)


def declared_actions() -> dict[str, str]:
    """Return the actions of the built-in tasks, name → help text, from their source alone.

    A method under `@action(Options)` is an action: see `tokenloom.tasks.base.action`. An action that several tasks
    declare has the help texts of all, such as "Give texts a label; classify image files."
    """
    found: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        text = path.read_text("utf-8")
        if "@action(" in text:
            for method in ast.walk(ast.parse(text)):
                if isinstance(method, ast.FunctionDef) and (name := _action_name(method)):
                    text = (ast.get_docstring(method) or "").partition("\n")[0].rstrip(".")
                    found[name] = [*found.get(name, []), *([text] if text else [])]
    return {name: f"{'; '.join(_joined(texts))}." for name, texts in found.items()}


def _joined(texts: list[str]) -> list[str]:
    """Return texts that can follow each other in one sentence."""
    return [*texts[:1], *(text[0].lower() + text[1:] for text in texts[1:])]


def _action_name(method: ast.FunctionDef) -> str:
    """Return the name of the action that a method is declared as; empty for any other method."""
    for call in method.decorator_list:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "action":
            given = {word.arg: word.value.value for word in call.keywords if isinstance(word.value, ast.Constant)}
            return str(given.get("name", method.name.strip("_").replace("_", "-")))
    return ""
