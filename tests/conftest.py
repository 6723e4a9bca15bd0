"""What every test may ask for: texts that are too large to commit, a cache of its own, one thread for torch."""

import hashlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import lacking

from tokenloom.data import registry
from tokenloom.data.documents import TextData
from tokenloom.data.download import cached
from tokenloom.errors import UserError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Two torch threads on a busy machine can be far slower than one, and results may differ in the last bit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell's background job ignores Ctrl-C, and so would every command that a test starts, and wait for ever."""
    ours = threading.current_thread() is threading.main_thread()
    if ours and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tinyshakespeare() -> str:
    """The text of tinyshakespeare: from the cache, else from the folder of shared data beside the repository."""
    (source,) = registry.find("tinyshakespeare").sources[0]
    places = (cached(source), ROOT.parent / "shared" / "data" / "tinyshakespeare.txt")
    for path in places:
        if path.is_file():
            raw = path.read_bytes()
            assert hashlib.sha256(raw).hexdigest() == source.sha256, f"{path} is another text"
            return raw.decode()
    return lacking(
        "tinyshakespeare is neither in the cache (tokenloom data add tinyshakespeare FILE) nor in ../shared/data"
    )


@pytest.fixture(scope="session")
def shakespeare() -> TextData:
    """The built-in data set shakespeare: from the cache, else fetched."""
    try:
        return registry.load("shakespeare", progress=False)
    except UserError as error:
        lacking(f"shakespeare could not be had: {error}")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test alone."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TOKENLOOM_CACHE", str(folder))
    return folder
