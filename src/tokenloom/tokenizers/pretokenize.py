"""Pre-tokenization: how a text is split into chunks before tokenization.

Three rules, each a partition of the text: the joined chunks are the text. Character classes are written out here
because regular-expression engines and Unicode tables differ (`\\s` of one engine lacks U+001C–1F, tables grow with
every Unicode version), and a tokenizer must split a text the same way on every machine.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

# Everything that Python's str.isspace() calls whitespace.
_WHITESPACE = r"\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# Characters that hold a sequence together: joiners, variation selectors, the tags of flag sequences.
_JOINERS = r"\u200c\u200d\ufe00-\ufe0f\U000e0020-\U000e007f"
# Between words: control characters, punctuation, currency, arrows, mathematics, emoji.
_SYMBOLS = (
    r"\x00-\x08\x0e-\x1b!-/:-@\[-`{-\x84\x86-\x9f\xa1-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\xd7\xf7"  # ASCII, Latin-1
    r"\u037e\u0387\u055a-\u055f\u0589\u058a\u05be\u05c0\u05c3\u05c6\u05f3\u05f4"  # Greek, Armenian, Hebrew
    r"\u060c\u061b\u061f\u066a-\u066d\u06d4\u0964\u0965\u0e4f\u0e5a\u0e5b\u1361-\u1368"  # Arabic to Ethiopic
    r"\u200b\u200e\u200f\u2010-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u206f"  # general punctuation
    r"\u20a0-\u20cf\u2100-\u2bff\u3001-\u3004\u3008-\u3020\u3030\u303d\u30fb"  # symbols, CJK punctuation
    r"\ufe10-\ufe6b\ufeff\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65\uffe0-\uffee\ufff9-\uffff"
    r"\U0001f000-\U0001faff"
)
CLASSES = (_WHITESPACE, _JOINERS, _SYMBOLS, "0-9")
"""Each class as the inside of a regular expression's brackets; all other characters are letters."""
_LETTER = f"[^{_WHITESPACE}{_JOINERS}{_SYMBOLS}0-9]"
_LETTERS = f"[^{_WHITESPACE}{_SYMBOLS}0-9]"
_WORD = f"[^{_WHITESPACE}{_JOINERS}{_SYMBOLS}][^{_WHITESPACE}{_SYMBOLS}]*"

SPACED = re.compile(f"[{_WHITESPACE}]?[^{_WHITESPACE}]+|[{_WHITESPACE}]")
"""The rule of `BPE`: one optional whitespace character and the non-space run after it, or one whitespace character.

Only the first character of a chunk can be whitespace, so no merge inside a chunk ever joins a token to a second
one that starts with whitespace.
"""

SCRIPTED = re.compile(
    f"[ '’]?{_LETTER}{_LETTERS}{{0,31}}"
    "| ?[0-9]{1,3}"
    f"| ?[{_SYMBOLS}{_JOINERS}]{{1,32}}"
    f"|[{_WHITESPACE}]{{1,32}}(?= [^{_WHITESPACE}])"
    f"|[{_WHITESPACE}]{{1,32}}"
)
"""The rule of `ByteBPE`, for any script. Tried in this order:

1. up to 32 letters, with the space or apostrophe before them; a letter is every character that is not
   whitespace, an ASCII digit or a symbol, so combining marks stay with their base characters, and joiners are kept;
2. up to three ASCII digits, with the space before them;
3. up to 32 symbols (punctuation, controls, emoji) and joiners, with the space before them;
4. up to 32 whitespace characters, except a last space that belongs to the next chunk.

The limit of 32 bounds the work in text without spaces or of one repeated character.
"""

WORDS = re.compile(f"{_WORD}(?:['’]{_WORD})*|[{_SYMBOLS}{_JOINERS}](?:[{_JOINERS}][{_SYMBOLS}]?)*|[{_WHITESPACE}]+")
"""The rule of `WordTokenizer`: a word (letters, digits, inner apostrophes), a symbol, or a run of whitespace."""

PROSE = re.compile(f"{_WORD}(?:['’]{_WORD})*")
"""The words that `WORDS` finds, without symbols and whitespace."""

NAMES = re.compile(_WORD)
"""Runs of letters and digits in source code: an underscore or an apostrophe ends one."""

BLOCK = 1 << 22
_WORD_END = re.compile(f"[^{_WHITESPACE}](?=[{_WHITESPACE}])")


def last_word_end(text: str) -> int:
    """Return the last index of a whitespace character that follows another character; 0 where there is none.

    A chunk ends there by every rule, whatever surrounds it: no chunk contains whitespace after another character, and
    no rule looks further ahead.
    """
    reach = 1 << 12
    while True:
        start = max(0, len(text) - reach)
        last = 0
        for found in _WORD_END.finditer(text, start):
            last = found.end()
        if last or start == 0:
            return last
        reach *= 16


def safe_split(pattern: re.Pattern[str], text: str) -> int:
    """Return an index where a chunk ends whatever follows the text; 0 where none is certain.

    The text must begin where a chunk does. The index is the last end of a word, or else excludes the last two chunks,
    which later text may still change (see `chunk_blocks`).
    """
    return last_word_end(text) or sum(map(len, pattern.findall(text)[:-2]))


def chunk_blocks(pattern: re.Pattern[str], text: str, block: int = BLOCK) -> Iterator[list[str]]:
    """Yield the chunks of a text in lists that cover about `block` characters each, which bounds memory.

    Equal to `pattern.findall(text)`: the last two chunks of a block are split again together with the text after them,
    because the block's end may have truncated them.
    """
    start = 0
    while start < len(text):
        end = start + block
        chunks = pattern.findall(text, start, end)
        while end < len(text) and len(chunks) <= 2:
            end += end - start
            chunks = pattern.findall(text, start, end)
        if end < len(text):
            del chunks[-2:]
        yield chunks
        start += sum(map(len, chunks))


def count_chunks(pattern: re.Pattern[str], texts: Iterable[str]) -> dict[str, int]:
    """Return how often each distinct chunk occurs, in order of first appearance. No chunk crosses two texts."""
    counts: Counter[str] = Counter()
    for text in texts:
        for chunks in chunk_blocks(pattern, text):
            counts.update(chunks)
    return counts
