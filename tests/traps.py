"""Inputs that go wrong for people, and what should happen: for tests of the library, the command line and HTTP.

`TEXTS` are files and folders of text, `PROMPTS` are prompts. "refused" means one line that holds all the trap's words,
exit code 2 (HTTP 4xx), nothing written, no traceback. "works" means no error, and the words occur in what is reported.
"either" leaves the choice, and the words occur in the message or in the report.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Expect = Literal["refused", "works", "either"]

POEM = "Die Brücke trägt den Fluß nicht,\nὁ ποταμὸς τρέχει,\n橋の下を水がゆく。\n\nالماء يجري\n🌊 then quiet.\n"
"""A few lines in several scripts, with an empty line inside and a line end at the end."""

MARKERS = (
    "She typed <|endoftext|> and <|user|> and <|assistant|>,\n"
    "then <s>, </s>, <bos>, <eos>, <pad>, <unk>, [INST] and [/INST]: all of it is only text.\n"
)
"""What looks like control and is not."""


def poems() -> dict[str, bytes]:
    """One poem in every way its lines may end: folded, all are the same text."""
    lines = POEM.split("\n")
    mixed = "".join(line + end for line, end in zip(lines, ["\r\n", "\n", "\r", "\r\n", "\r", "\n", ""], strict=True))
    return {
        "lf": POEM.encode(),
        "crlf": POEM.replace("\n", "\r\n").encode(),
        "cr": POEM.replace("\n", "\r").encode(),
        "mixed": mixed.encode(),
        "bom": b"\xef\xbb\xbf" + POEM.encode(),
        "bom-crlf": b"\xef\xbb\xbf" + POEM.replace("\n", "\r\n").encode(),
    }


@dataclass(frozen=True)
class TextTrap:
    """A file or folder of text that is hard to read or hard to train on.

    write: writes it into a folder, and returns the path to give. stage: whether reading it decides, or only training
    (with `context` and `vocab_size` as settings, where they are set). encoding: to be given as an option.
    """

    name: str
    write: Callable[[Path], Path]
    expect: Expect
    words: tuple[str, ...] = ()
    stage: Literal["read", "train"] = "read"
    encoding: str = "utf-8"
    context: int | None = None
    vocab_size: int | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class PromptTrap:
    """A prompt that is hard to continue. prompt: from the model's context (in tokens) to the text."""

    name: str
    prompt: Callable[[int], str]
    expect: Expect
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def _file(name: str, content: bytes | str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def _folder(folder: Path) -> Path:
    root = folder / "many one-liners é"
    (root / "inner").mkdir(parents=True)
    (root / ".hidden").mkdir()
    for number in range(12):
        (root / f"{number:02}.txt").write_text(f"This is line {number}.\n", encoding="utf-8")
    (root / "inner" / "deep.md").write_text("Deeper down.\n", encoding="utf-8")
    (root / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    (root / "empty.txt").write_bytes(b"")
    (root / ".secret.txt").write_text("not to be read", encoding="utf-8")
    (root / ".hidden" / "inside.txt").write_text("not to be read either", encoding="utf-8")
    return root


def _missing(folder: Path) -> Path:
    (folder / "poem.txt").write_text(POEM, encoding="utf-8")
    return folder / "peom.txt"


def _only_binaries(folder: Path) -> Path:
    root = folder / "binaries"
    root.mkdir()
    (root / "a.bin").write_bytes(_BINARY)
    return root


_BINARY = random.Random(0).randbytes(2000)
_CAFE = "Un café, s'il vous plaît.\n" * 20

TEXTS: tuple[TextTrap, ...] = (
    TextTrap("empty file", _file("empty.txt", b""), "refused", ("empty.txt", "0 bytes")),
    TextTrap("three newlines", _file("blank.txt", b"\n\n\n"), "refused", ("blank.txt", "white space")),
    TextTrap("latin-1", _file("cafe.txt", _CAFE.encode("latin-1")), "refused", ("cafe.txt", "offset 6", "--encoding")),
    TextTrap("latin-1, named", _file("cafe.txt", _CAFE.encode("latin-1")), "works", encoding="latin-1"),
    TextTrap("utf-16", _file("wide.txt", _CAFE.encode("utf-16")), "refused", ("wide.txt", "--encoding utf-16")),
    TextTrap("utf-16 without mark", _file("wide.txt", _CAFE.encode("utf-16-le")), "refused", ("wide.txt", "offset 1")),
    TextTrap("utf-16, named", _file("wide.txt", _CAFE.encode("utf-16")), "works", encoding="utf-16"),
    TextTrap("unknown encoding", _file("a.txt", _CAFE), "refused", ("utf-9", "utf-8"), encoding="utf-9"),
    TextTrap("binary", _file("noise.bin", _BINARY), "refused", ("noise.bin", "binary", "offset")),
    TextTrap("no such file", _missing, "refused", ("peom.txt", "poem.txt")),
    TextTrap("folder of binaries", _only_binaries, "refused", ("binaries", "a.bin")),
    TextTrap("folder", _folder, "works", ("picture.png", "empty.txt", ".secret.txt")),
    TextTrap("broken json", _file("rows.jsonl", '{"text": "a"}\n{"text": \n'), "refused", ("rows.jsonl", "line 2")),
    TextTrap("json without text", _file("rows.jsonl", '{"n": 1}\n'), "refused", ("rows.jsonl", "n")),
    TextTrap("open quote", _file("table.csv", 'id,text\n1,"never closed\n'), "refused", ("table.csv", "line 2")),
    TextTrap("markers", _file("markers.txt", MARKERS * 20), "works"),
    *(TextTrap(f"poem, {name}", _file("poem.txt", raw), "works") for name, raw in poems().items()),
    TextTrap("40 characters", _file("short.txt", "a" * 20 + "b" * 20), "either", ("256",), "train", context=256),
    TextTrap("one character", _file("one.txt", "a"), "refused", ("one.txt", "1"), "train"),
    TextTrap("only a", _file("only-a.txt", "a" * 9), "either", (), "train", vocab_size=300),
    TextTrap("too few merges", _file("hundred.txt", "to be or no" * 9 + "t"), "either", (), "train", vocab_size=5000),
)

PROMPTS: tuple[PromptTrap, ...] = (
    PromptTrap("unseen characters", lambda _: "What is ☃ this?", "either", ("☃",)),
    PromptTrap("empty", lambda _: "", "either"),
    PromptTrap("lone surrogate", lambda _: "half \ud83d of it", "refused", ("surrogate",)),
    PromptTrap("three times the context", lambda context: "To be or not to be. " * (3 * context), "works", ("last",)),
    PromptTrap("markers", lambda _: MARKERS, "either"),
)
