"""Text of any size, tokenized into shards before training."""

from dataclasses import dataclass
from typing import ClassVar

from tokenloom.config import Options, option

SHARD_BYTES = 1 << 24


@dataclass(frozen=True)
class TokenizationSettings(Options):
    """How text is tokenized into shards.

    tokenizer: a kind, as in `choose_tokenizer`, or the path of a tokenizer file (`.json`). val_fraction: for None see
    `scan.split_corpus`. The others are those of `read_text` and of text tasks.
    """

    group: ClassVar[str] = "Data"

    tokenizer: str = option("auto", "auto, char, word, bpe or byte-bpe; or the tokenizer.json of a run or of a corpus")
    vocab_size: int | None = option(None, "vocabulary size of a word, bpe or byte-bpe tokenizer", low=1)
    separate_documents: bool | None = option(
        None, "put an end token between documents [default: where there are several]"
    )
    val_fraction: float | None = option(
        None,
        "fraction of the text used for validation [default: a tenth, at most 10 million characters]",
        above=0,
        below=1,
    )
    text_column: str | None = option(None, "table column or JSON field with the text")
    encoding: str = option("utf-8", "character encoding of the files")
    normalize_newlines: bool = option(True, "read every kind of line ending as a line feed")
    shard_bytes: int = option(SHARD_BYTES, "bytes of text per shard, about", low=1)
