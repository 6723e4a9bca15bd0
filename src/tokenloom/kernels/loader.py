"""One C++ file of this room as a loaded library: compiled on first use, kept in the cache, None where that fails.

The files hold plain C functions on pointers and no headers of torch, so compiling takes a second or two. The result
stands in the cache folder under a hash of everything that it depends on; it is written all-or-nothing, so any number of
processes may come at once. Nothing here raises: `library` gives None, and `reason` says why.

    lib = library("kernels")
    if lib is not None:
        lib.gelu_forward(...)

TOKENLOOM_NATIVE=0 switches everything native off, and `disabled()` does so for a block of code.
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
# No -ffast-math: it would take not-a-number and infinity as never there. These two change no result.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden")
# A compiler knows one of these or the other for the machine that it runs on.
NATIVE = ("-march=native", "-mcpu=native")
SECONDS = 120  # for the compiler to finish

_HERE = Path(__file__).parent
_log = logging.getLogger(__name__)
_lock = threading.Lock()
# Name → the library, or why there is none. Asked once in a process.
_found: dict[str, ctypes.CDLL | str] = {}
_off: ContextVar[bool] = ContextVar("native switched off", default=False)


class _No(Exception):
    """Why there is no library."""


@contextmanager
def disabled() -> Iterator[None]:
    """Inside, `library` gives None: for what must be computed as it is everywhere, compiler or none."""
    token = _off.set(True)
    try:
        yield
    finally:
        _off.reset(token)


def library(name: str) -> ctypes.CDLL | None:
    """`name.cpp` of this room as a library, or None where it is switched off or cannot be had.

    It is compiled once for a machine and loaded once for a process; so is its absence. Argument types of its functions
    are the caller's to set.
    """
    if _why_off():
        return None
    found = _found.get(name)
    if found is None:
        with _lock:
            found = _found.get(name)
            if found is None:
                found = _found[name] = _find(name)
    return found if isinstance(found, ctypes.CDLL) else None


def reason(name: str) -> str:
    """Why `library(name)` gives None, in a few words; "" where it gives a library."""
    if why := _why_off():
        return why
    library(name)
    found = _found[name]
    return found if isinstance(found, str) else ""


def summary() -> str:
    """What this process has asked for so far, in a line for people: "native attention, gelu", or why there is none; ""
    when nothing was asked for."""
    if why := _why_off():
        return f"nothing native ({why})"
    loaded = sorted(name for name, found in _found.items() if isinstance(found, ctypes.CDLL))
    reasons = sorted({found for found in _found.values() if isinstance(found, str)})
    parts = [f"native {', '.join(loaded)}"] if loaded else []
    return ", ".join(parts + [f"nothing native ({why})" for why in reasons[:1] if not loaded])


def _why_off() -> str:
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE}=0"
    return "switched off" if _off.get() else ""


def _find(name: str) -> ctypes.CDLL | str:
    try:
        return _compiled(name)
    except _No as no:
        why = str(no)
    except (OSError, subprocess.SubprocessError, UnicodeError, ValueError, RuntimeError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
    _log.debug("no native %s: %s", name, why)
    return why


def _compiled(name: str) -> ctypes.CDLL:
    """The library, compiled unless a good one is there. Raises _No, OSError, SubprocessError."""
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
    """The path of a C++ compiler: the first of `COMPILERS` that is there."""
    for name in COMPILERS:
        if path := shutil.which(name):
            return path
    raise _No(f"no C++ compiler ({', '.join(COMPILERS)})")


def _key(source: Path, compiler: str) -> str:
    """A hash of source, headers, flags, compiler and processor: what the compiled code depends on."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL
    )
    if version.returncode:
        raise _No(f"{compiler} does not work")
    parts = [repr((FLAGS, NATIVE)).encode(), os.path.realpath(compiler).encode(), version.stdout, _processor()]
    parts += [path.read_bytes() for path in (source, *sorted(_HERE.glob("*.h")))]
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:32]


def _processor() -> bytes:
    """What the processor is and which instructions it has, as far as it says."""
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
            raise _No(f"{compiler} gave up: {messages[0].strip()}")
        beside.chmod(0o644)  # A cache may be shared: others may read.
        with beside.open("r+b") as file:
            # Its own hash behind it, which loaders of libraries overlook.
            file.write(hashlib.sha256(file.read()).digest())


def _is_whole(path: Path) -> bool:
    """Whether a library ends with its own hash: one that a full disk cut short would end the process that loads it."""
    raw = path.read_bytes()
    return hashlib.sha256(raw[:-32]).digest() == raw[-32:]


def _load(path: Path) -> ctypes.CDLL:
    """The library, if nobody else can have written it: it is code that will run."""
    if hasattr(os, "getuid"):
        facts = path.stat()
        if facts.st_uid not in (0, os.getuid()) or facts.st_mode & 0o022:
            raise _No(f"{path} can be written by others")
    return ctypes.CDLL(str(path))
