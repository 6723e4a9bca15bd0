"""Files: all-or-nothing writes, and SHA-256 hashes."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenloom.errors import UserError


@contextmanager
def atomic_path(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; then sync it and rename it to `path`.

    At any instant a reader finds the old file or the new one, complete. After an error the temporary file is removed.
    shared: several processes may write the same file at once, as in a cache.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part" if shared else f".{path.name}.part")
    try:
        yield part
        sync(part)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_bytes(path: Path, data: bytes, *, shared: bool = False) -> None:
    """Replace the content of a file, all or nothing. Raises UserError when it cannot be written."""
    try:
        with atomic_path(path, shared=shared) as part:
            part.write_bytes(data)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error


def write_text(path: Path, text: str, *, shared: bool = False) -> None:
    """`write_bytes` of a text in UTF-8; lone surrogates are written as backslash escapes."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"), shared=shared)


def write_json(path: Path, value: Any, *, indent: int | None = 2, shared: bool = False) -> None:
    """`write_text` of a value as readable JSON."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n", shared=shared)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(data: bytes | str) -> str:
    """Return the SHA-256 of bytes, or of a text in UTF-8, in hexadecimal."""
    return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()
