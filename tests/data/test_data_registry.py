import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tokenloom.data import registry
from tokenloom.data.documents import Document, TextData
from tokenloom.data.download import Advance, DownloadError
from tokenloom.data.registry import Recipe
from tokenloom.errors import UserError


@dataclass
class Shelf:
    """A source that hands out a file, or fails, and counts how often it was asked."""

    file: str
    content: bytes
    reachable: bool = True
    asked: int = 0
    origin: str = field(init=False)

    def __post_init__(self) -> None:
        self.origin = f"the shelf of {self.file}"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def size(self) -> int:
        return len(self.content)

    def download(self, target: Path, advance: Advance) -> None:
        self.asked += 1
        if not self.reachable:
            raise DownloadError(f"{self.origin} (out of reach)")
        target.write_bytes(self.content)
        advance(self.size)


def joined(paths: Sequence[Path]) -> TextData:
    return TextData([Document(path.name, path.read_text()) for path in paths])


@pytest.fixture
def shelves(cache: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Shelf, Shelf, Shelf]:
    """A data set `fables` with two ways: one of two files, and one file instead of them."""
    first, second, other = Shelf("one.txt", b"one"), Shelf("two.txt", b"two"), Shelf("both.txt", b"one two")
    ways = ((first, second), (other,))
    fables = Recipe("fables", "two fables", "CC0-1.0", joined, ways, held_out="tail")
    known = {"fables": fables, "python-docs": registry.find("python-docs")}
    monkeypatch.setattr(registry, "_recipes", lambda: known)
    return first, second, other


def test_fetched_once_and_used_without_a_network_afterwards(shelves: tuple[Shelf, ...], cache: Path) -> None:
    first, second, other = shelves
    data = registry.load("fables", progress=False)
    assert [document.text for document in data.documents] == ["one", "two"]
    assert (data.name, data.license, data.held_out) == ("fables", "CC0-1.0", "tail")
    for shelf in shelves:
        shelf.reachable = False
    assert registry.load("fables") == data
    assert registry.download("fables") == [cache / "data" / "one.txt", cache / "data" / "two.txt"]
    assert (first.asked, second.asked, other.asked) == (1, 1, 0)


def test_the_ways_are_tried_in_order(shelves: tuple[Shelf, ...]) -> None:
    shelves[1].reachable = False
    assert [document.id for document in registry.load("fables").documents] == ["both.txt"]
    # Once a complete way is in the cache, nothing else is asked.
    shelves[1].reachable = True
    assert [document.id for document in registry.load("fables").documents] == ["both.txt"]
    assert shelves[1].asked == 1


def test_when_no_way_delivers(shelves: tuple[Shelf, ...]) -> None:
    for shelf in shelves:
        shelf.reachable = False
    with pytest.raises(UserError) as refused:
        registry.load("fables")
    message = str(refused.value)
    assert "the shelf of one.txt (out of reach), then the shelf of both.txt (out of reach)" in message
    assert "tokenloom data add fables FILE" in message
    assert "\n" not in message


def test_a_damaged_file_is_named_and_fetched_again(
    shelves: tuple[Shelf, ...], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.download("fables")
    damaged = cache / "data" / "two.txt"
    damaged.write_bytes(b"twx")
    assert [checked.state for checked in registry.check("fables")] == ["intact", "damaged", "not downloaded"]

    shelves[1].reachable = shelves[2].reachable = False
    with pytest.raises(UserError, match=r"two\.txt is damaged.*tokenloom data download fables"):
        registry.load("fables")
    assert damaged.read_bytes() == b"twx"

    shelves[1].reachable = True
    data = registry.load("fables")
    assert [document.text for document in data.documents] == ["one", "two"]
    assert data.notes == [f"{damaged} was damaged (wrong SHA-256) and was downloaded again"]
    assert shelves[0].asked == 1

    damaged.write_bytes(b"")
    registry.download("fables")
    assert "two.txt was damaged" in capsys.readouterr().err


def test_the_catalogue(shelves: tuple[Shelf, ...]) -> None:
    fables, docs = registry.catalog()
    assert (fables.name, fables.cached, fables.size) == ("fables", False, 6)
    assert fables.origin == "the shelf of one.txt + the shelf of two.txt"
    assert (docs.name, docs.cached, docs.size, docs.origin) == ("python-docs", True, None, "comes with Python")
    registry.download("fables")
    assert registry.catalog()[0].cached


def test_a_copy_of_ones_own(shelves: tuple[Shelf, ...], tmp_path: Path, cache: Path) -> None:
    copy = tmp_path / "my copy.txt"
    copy.write_bytes(b"one two")
    assert registry.add("fables", copy) == cache / "data" / "both.txt"
    assert [document.text for document in registry.load("fables").documents] == ["one two"]
    assert [shelf.asked for shelf in shelves] == [0, 0, 0]

    copy.write_bytes(b"one twoo")
    with pytest.raises(UserError) as refused:
        registry.add("fables", copy)
    assert hashlib.sha256(b"one twoo").hexdigest() in str(refused.value)
    for shelf in shelves:
        assert shelf.sha256 in str(refused.value)


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("fables", "nowhere.txt", "cannot read 'nowhere.txt'"),
        ("fables", ".", "cannot read '.'"),
        ("python-docs", "x", "comes with Python"),
        ("fabels", "x", "did you mean 'fables'"),
    ],
)
def test_copies_that_are_refused(shelves: tuple[Shelf, ...], name: str, file: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        registry.add(name, file)


def test_unknown_names_everywhere(shelves: tuple[Shelf, ...]) -> None:
    for ask in (registry.download, registry.load, registry.check, registry.find):
        with pytest.raises(UserError, match=r"'fabel'; did you mean 'fables'\? \(there are fables, python-docs\)"):
            ask("fabel")


def test_check_says_what_comes_with_python(shelves: tuple[Shelf, ...]) -> None:
    states = {checked.name: checked.state for checked in registry.check()}
    assert states == {"fables": "not downloaded", "python-docs": "comes with Python"}


def test_the_list_of_built_in_data_sets_is_sound() -> None:
    assert registry.names() == sorted(registry.names())
    assert {"python-docs", "python-source", "shakespeare", "tinyshakespeare"} < set(registry.names())
    hashes: dict[str, str] = {}
    for name in registry.names():
        recipe = registry.find(name)
        assert recipe.name == name
        assert recipe.description
        assert recipe.license
        for source in (source for way in recipe.sources for source in way):
            # One name in the cache, one file.
            assert hashes.setdefault(source.file, source.sha256) == source.sha256
            assert len(bytes.fromhex(source.sha256)) == 32
            assert source.size > 0
