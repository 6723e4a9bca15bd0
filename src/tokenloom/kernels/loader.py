"""A C++ file of this package as a loaded library: compiled on first use and cached; None where that fails.

The files have plain C functions on pointers and no headers of torch, so compiling takes a second or two. The library is
cached under a hash of everything that it depends on, and written atomically, so several processes may compile at once.
Nothing here raises: `library` returns None, and `unavailable_reason` says why.

    lib = library("kernels")
    if lib is not None:
        lib.gelu_forward(...)

TOKENLOOM_NATIVE=0 disables all native code, and `disabled()` does so for a block.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from tokenloom.utils.cache import cache_folder
from tokenloom.utils.files import atomic_path

VARIABLE = "TOKENLOOM_NATIVE"
COMPILERS = ("g++", "c++", "clang++")
# No -ffast-math: it assumes that there are no NaN and infinity. These flags change no result.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden")
# Compilers know one of these, for the processor that they run on.
NATIVE = ("-march=native", "-mcpu=native")
SECONDS = 120  # for the compiler to finish

_HERE = Path(__file__).parent
_log = logging.getLogger(__name__)
_lock = threading.Lock()
# Name → the library, or why there is none. Decided once per process.
_found: dict[str, ctypes.CDLL | str] = {}
_off: ContextVar[bool] = ContextVar("native disabled", default=False)


class _Unavailable(Exception):
    """No library; the message says why."""


@contextmanager
def disabled() -> Iterator[None]:
    """Context in which `library` returns None, for results that must not depend on a compiler."""
    token = _off.set(True)
    try:
        yield
    finally:
        _off.reset(token)


def library(name: str) -> ctypes.CDLL | None:
    """Return `name.cpp` as a library, or None where native code is disabled or unavailable.

    It is compiled once per machine and loaded once per process. The caller sets the argument types of its functions.
    """
    if _disabled_reason():
        return None
    found = _found.get(name)
    if found is None:
        with _lock:
            found = _found.get(name)
            if found is None:
                found = _found[name] = _find(name)
    return found if isinstance(found, ctypes.CDLL) else None


def unavailable_reason(name: str) -> str:
    """Return why `library(name)` is None, in a few words; "" where it is not."""
    if why := _disabled_reason():
        return why
    library(name)
    found = _found[name]
    return found if isinstance(found, str) else ""


def summary() -> str:
    """Return the libraries that this process has asked for, as "kernels attention, gelu", or why there is none; "" when
    it has asked for none."""
    if why := _disabled_reason():
        return f"no kernels ({why})"
    loaded = sorted(name for name, found in _found.items() if isinstance(found, ctypes.CDLL))
    reasons = sorted({found for found in _found.values() if isinstance(found, str)})
    parts = [f"kernels {', '.join(loaded)}"] if loaded else []
    return ", ".join(parts + [f"no kernels ({why})" for why in reasons[:1] if not loaded])


def _disabled_reason() -> str:
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE}=0"
    return "disabled" if _off.get() else ""


def _find(name: str) -> ctypes.CDLL | str:
    try:
        return _compiled(name)
    except _Unavailable as no:
        why = str(no)
    except (OSError, subprocess.SubprocessError, UnicodeError, ValueError, RuntimeError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
    _log.debug("no native %s: %s", name, why)
    return why


def _compiled(name: str) -> ctypes.CDLL:
    """Return the library, compiled unless it is cached. Raises _Unavailable, OSError, SubprocessError."""
    source = _HERE / f"{name}.cpp"
    compiler = _compiler()
    target = cache_folder() / "native" / f"{name}-{_key(source, compiler)}.so"
    if target.is_file():
        if _is_whole(target):
            return _load(target)
        _log.debug("%s is damaged, and made again", target)
    _compile(source, compiler, target)
    return _load(target)


def _compiler() -> str:
    """Return the path of the first of `COMPILERS` that is installed."""
    for name in COMPILERS:
        if path := shutil.which(name):
            return path
    raise _Unavailable(f"no C++ compiler ({', '.join(COMPILERS)})")


def _key(source: Path, compiler: str) -> str:
    """Return a hash of source, headers, flags, compiler and processor: all that the compiled code depends on."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL
    )
    if version.returncode:
        raise _Unavailable(f"{compiler} does not work")
    parts = [repr((FLAGS, NATIVE)).encode(), os.path.realpath(compiler).encode(), version.stdout, _processor()]
    parts += [path.read_bytes() for path in (source, *sorted(_HERE.glob("*.h")))]
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:32]


def _processor() -> bytes:
    """Return the model and the instruction sets of the processor, as far as known."""
    lines = {platform.machine(), platform.processor()}
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        text = ""  # no Linux
    known = ("model name", "flags", "Features", "CPU implementer", "CPU part", "isa")
    lines.update(line for line in text.splitlines() if line.startswith(known))
    return "\n".join(sorted(lines)).encode()


def _compile(source: Path, compiler: str, target: Path) -> None:
    """Compile beside the target and rename: a process sees all of it or none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(target, shared=True) as beside:
        for native in NATIVE:
            command = [compiler, *FLAGS, native, str(source), "-o", str(beside)]
            done = subprocess.run(
                command, capture_output=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL, cwd=target.parent
            )
            if done.returncode == 0:
                break
        else:
            lines = done.stderr.decode("utf-8", "replace").splitlines()
            messages = [line for line in lines if "error" in line] or lines or [f"exit code {done.returncode}"]
            raise _Unavailable(f"{compiler} gave up: {messages[0].strip()}")
        beside.chmod(0o644)  # A cache may be shared: others may read.
        with beside.open("r+b") as file:
            # Its own hash behind it, which loaders of libraries overlook.
            file.write(hashlib.sha256(file.read()).digest())


def _is_whole(path: Path) -> bool:
    """Return whether a library ends with its own hash: loading a truncated one would crash the process."""
    raw = path.read_bytes()
    return hashlib.sha256(raw[:-32]).digest() == raw[-32:]


def _load(path: Path) -> ctypes.CDLL:
    """Load the library, unless other users can have written it. Raises _Unavailable."""
    if hasattr(os, "getuid"):
        facts = path.stat()
        if facts.st_uid not in (0, os.getuid()) or facts.st_mode & 0o022:
            raise _Unavailable(f"{path} can be written by others")
    return ctypes.CDLL(str(path))
