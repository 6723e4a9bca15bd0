"""The folder of a pretokenized corpus while it is written: what may be overwritten, and what an interruption leaves."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tokenloom.config import flag
from tokenloom.data.pretokenized.shards import (
    FORMAT,
    KIND,
    MANIFEST,
    PARTS,
    TOKENIZER,
    UNFINISHED,
    PretokenizedCorpus,
    is_corpus,
    is_marked,
    self_hash,
)
from tokenloom.errors import UserError
from tokenloom.utils.files import sync, write_json

STDIN = ".standard-input.part"

Extra = Callable[[PretokenizedCorpus], dict[str, Any]]
"""Further entries of the manifest, computed from the finished shards."""


class OutputFolder:
    """The folder that is written."""

    def __init__(self, path: Path) -> None:
        self.path, self.tokenizer = path, path / TOKENIZER

    def claim(self, *, overwrite: bool) -> None:
        """Check that the folder may be written, and make it. Raises UserError, and changes nothing, otherwise."""
        path = self.path
        try:
            if path.exists() and not path.is_dir():
                raise UserError(f"--out {path}: is a file; give the name of a folder")
            if path.is_dir() and not is_corpus(path) and any(one.name != STDIN for one in path.iterdir()):
                raise UserError(f"--out {path}: exists and contains no tokenized text; give another name")
            if (path / MANIFEST).is_file() and not overwrite:
                raise UserError(f"--out {path}: exists already and is finished; --overwrite starts over")
            path.mkdir(parents=True, exist_ok=True)
            (path / STDIN).touch()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"--out {path}: cannot be written ({reason})") from None

    def spool(self) -> Path:
        """Copy standard input, which must be read more than once, to a file."""
        path = self.path / STDIN
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        return path

    def begin(self, state: dict[str, Any], *, overwrite: bool) -> dict[str, Any]:
        """Mark the folder as unfinished, and return the state of the earlier work that is continued, or the new one.

        overwrite: keep nothing of earlier work. Raises UserError when that was on other text or with other settings.
        """
        path = self.path / UNFINISHED
        if is_marked(self.path, UNFINISHED) and not overwrite:
            try:
                before = json.loads(path.read_text("utf-8"))
                old, new = ({**one["settings"], "text": one["text"]} for one in (before, state))
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{path}: damaged; --overwrite starts over") from None
            if "tokenizer" in before:  # Otherwise nothing was tokenized yet.
                for name in new:
                    if old.get(name) != new[name]:
                        what = "the text has changed" if name == "text" else f"{flag(name)} was {old.get(name)!r}"
                        raise UserError(
                            f"--out {self.path}: the unfinished work differs ({what}); --overwrite starts over"
                        )
                assert isinstance(before, dict)
                return before
        state = {"format": FORMAT, "kind": KIND, **state}
        self.write_state(state)
        # The folder now counts as unfinished, so that earlier files may be removed.
        (self.path / MANIFEST).unlink(missing_ok=True)
        self._remove_shards()
        self.tokenizer.unlink(missing_ok=True)
        return state

    def _remove_shards(self, keep: Collection[str] = ()) -> None:
        for one in list(self.path.iterdir()):
            part, _, number = one.stem.rpartition("-")
            ours = part in PARTS and number.isdigit() and one.suffix in (".ids", ".starts", ".json")
            if ours and one.name not in keep:
                one.unlink()

    def write_state(self, state: dict[str, Any]) -> None:
        """Write what is needed to continue."""
        write_json(self.path / UNFINISHED, state)

    def finish(self, content: dict[str, Any], extra: Extra) -> PretokenizedCorpus:
        """Write the manifest, with further entries of `extra`: the folder is finished."""
        content = {**content, **extra(PretokenizedCorpus(self.path, content))}
        content["sha256"] = self_hash(content)
        sync(self.path)
        write_json(self.path / MANIFEST, content)
        shards = [shard for part in PARTS for shard in content["parts"][part]]
        # Records, and shards of overwritten work.
        self._remove_shards(keep={shard[what] for shard in shards for what in ("file", "starts")})
        (self.path / UNFINISHED).unlink(missing_ok=True)
        return PretokenizedCorpus(self.path, content)

    def remove_temporary(self) -> None:
        """Remove temporary files, and the folder if it is empty."""
        try:
            for part in self.path.glob(".*.part"):
                part.unlink(missing_ok=True)
            if not any(self.path.iterdir()):
                self.path.rmdir()
        except OSError:
            return
