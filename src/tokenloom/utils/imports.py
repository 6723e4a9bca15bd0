"""Import of a Python file of the user's."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tokenloom.errors import UserError
from tokenloom.utils.files import sha256


def import_file(path: Path, label: str | None = None) -> ModuleType:
    """Run a Python file and return it as a module.

    label: how messages name the file, such as `--task mine.py`; its path when None. Raises UserError for a file that
    does not exist or cannot be imported.
    """
    label = label or str(path)
    if not path.is_file():
        raise UserError(f"{label}: there is no such file")
    # The name is derived from the path, so that the file hides no other module. Dataclasses need it in sys.modules.
    name = f"user_{path.stem}_{sha256(str(path.resolve()))[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{label}: cannot be imported: {type(error).__name__}: {error}") from error
    return module
