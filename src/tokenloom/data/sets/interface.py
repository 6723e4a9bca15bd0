"""Messages of a user interface and their translations."""

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from tokenloom.data.download import PipArchive, members
from tokenloom.data.pairs import Pair, PairData
from tokenloom.data.registry import Recipe
from tokenloom.utils.names import counted

_CONTEXT = "\x04"  # Parts the context of a message from the message.


def _catalogues(paths: Sequence[Path]) -> PairData:
    """Return the messages of all catalogs, in the singular, each distinct pair once."""
    pairs: dict[tuple[str, str], Pair] = {}
    repeated = empty = 0
    for name, raw in members(paths[0], "*/locale/*/LC_MESSAGES/*.json"):
        for message, translations in json.loads(raw).items():
            if not message:
                continue  # What stands under no message are words on the catalog itself.
            source, target = message.rpartition(_CONTEXT)[2].strip(), translations[0].strip()
            if not source or not target:
                empty += 1
            elif (source, target) in pairs:
                repeated += 1
            else:
                pairs[source, target] = Pair(f"{PurePosixPath(name).stem}:{message}", source, target)
    notes = [f"left out {counted(repeated, 'message')} that repeat another with its translation"] if repeated else []
    notes += [f"left out {counted(empty, 'message')} without text"] if empty else []
    return PairData(list(pairs.values()), notes=notes)


RECIPES = (
    Recipe(
        name="interface-fr",
        description="3,240 English words and sentences of a program's interface and their French translations",
        license="BSD-3-Clause",
        loader=_catalogues,
        sources=(
            (
                PipArchive(
                    "jupyterlab-language-pack-fr-fr",
                    "4.5.post3",
                    sha256="9f6ce9d4e64b367ff084a2313af29d6ad8a02d1d08000f3e6c53e2856fa9a11f",
                    size=222_292,
                ),
            ),
        ),
        data_class=PairData,
    ),
)
