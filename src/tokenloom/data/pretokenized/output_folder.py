"""The folder that tokenized text is written into: what may be written where, and what an interruption leaves."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tokenloom.data.pretokenized.shards import (
    FORMAT,
    KIND,
    MANIFEST,
    PARTS,
    TOKENIZER,
    UNFINISHED,
    PretokenizedCorpus,
    is_marked,
    is_ours,
    self_hash,
)
from tokenloom.errors import UserError
from tokenloom.utils.files import sync, write_json

STDIN = ".standard-input.part"

Extra = Callable[[PretokenizedCorpus], dict[str, Any]]
"""What else the manifest should keep, found out from the finished shards."""


class OutputFolder:
    """The folder that is written."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tokenizer = folder, folder / TOKENIZER

    def claim(self, *, overwrite: bool) -> None:
        """Check that it may be written. Raises UserError, and changes nothing, when not."""
        folder = self.folder
        try:
            if folder.exists() and not folder.is_dir():
                raise UserError(f"--out {folder}: is a file; give the name of a folder")
            if folder.is_dir() and any(folder.iterdir()) and not is_ours(folder) and not self._only_ours():
                raise UserError(f"--out {folder}: is there, and holds no tokenized text; give another name")
            if (folder / MANIFEST).is_file() and not overwrite:
                raise UserError(f"--out {folder}: is there already, and finished; --overwrite starts over")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / STDIN).touch()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"--out {folder}: cannot be written ({reason})") from None

    def _only_ours(self) -> bool:
        return all(path.name == STDIN for path in self.folder.iterdir())

    def spool(self) -> Path:
        """Standard input as a file: it must be read more than once."""
        path = self.folder / STDIN
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        return path

    def begin(self, begun: dict[str, Any], *, overwrite: bool) -> dict[str, Any]:
        """Mark the folder as unfinished, and return what is known of earlier work. Raises UserError when that differs.

        overwrite: nothing earlier is kept.
        """
        path = self.folder / UNFINISHED
        if is_marked(self.folder, UNFINISHED) and not overwrite:
            try:
                before = json.loads(path.read_text("utf-8"))
                old, new = {**before["settings"], "text": before["text"]}, {**begun["settings"], "text": begun["text"]}
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{path}: damaged; --overwrite starts over") from None
            for name in new if "tokenizer" in before else ():
                if old.get(name) != new[name]:
                    what = (
                        "the text is another" if name == "text" else f"--{name.replace('_', '-')} was {old.get(name)!r}"
                    )
                    raise UserError(f"--out {self.folder}: was begun otherwise ({what}); --overwrite starts over")
            if "tokenizer" in before:
                assert isinstance(before, dict)
                return before
            # Nothing was made yet, so that nothing is lost.
        begun = {"format": FORMAT, "kind": KIND, **begun}
        self.note(begun)
        # From here on the folder passes for unfinished, so that what an earlier work left can go.
        (self.folder / MANIFEST).unlink(missing_ok=True)
        self._remove_shards()
        self.tokenizer.unlink(missing_ok=True)
        return begun

    def _remove_shards(self, but: Collection[str] = ()) -> None:
        """Remove the files of all shards, but for some of them."""
        for one in list(self.folder.iterdir()):
            part, _, number = one.stem.rpartition("-")
            ours = part in PARTS and number.isdigit() and one.suffix in (".ids", ".starts", ".json")
            if ours and one.name not in but:
                one.unlink()

    def note(self, begun: dict[str, Any]) -> None:
        """Keep what must be known to go on."""
        write_json(self.folder / UNFINISHED, begun)

    def finish(self, content: dict[str, Any], extra: Extra) -> PretokenizedCorpus:
        """Write the manifest: now the folder is whole."""
        content = {**content, **extra(PretokenizedCorpus(self.folder, content))}
        content["sha256"] = self_hash(content)
        sync(self.folder)
        write_json(self.folder / MANIFEST, content)
        shards = [shard for part in PARTS for shard in content["parts"][part]]
        # Records, and what an earlier work that was overwritten may have left.
        self._remove_shards(but={shard[what] for shard in shards for what in ("file", "starts")})
        (self.folder / UNFINISHED).unlink(missing_ok=True)
        return PretokenizedCorpus(self.folder, content)

    def sweep(self) -> None:
        """Remove what is half-written, and the folder if nothing came into it."""
        try:
            for part in self.folder.glob(".*.part"):
                part.unlink(missing_ok=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()
        except OSError:
            return
