"""Encoding by byte-pair encoding as one call of compiled code: `kernels/bpe.cpp`, for the tokenizers of `tokenizers/bpe.py`.

Chunks are cut, looked up and merged in one pass over the code points. Without a compiler, or with TOKENLOOM_NATIVE=0,
`tokenizers/bpe.py` does the same, some ten times slower.
"""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenloom.kernels.loader import library
from tokenloom.tokenizers.base import Ids
from tokenloom.tokenizers.pretokenize import BLOCK, CLASSES

# Code points past the first plane that a class names lie in these; all others are letters.
_HIGH = (range(0x1F000, 0x20000), range(0xE0000, 0xE1000))


@lru_cache(maxsize=1)
def classes() -> NDArray[np.uint8]:
    """The class of each code point, (0x110000,): 0 for a letter, else 1 + its place in `CLASSES`."""
    table = np.zeros(0x110000, dtype=np.uint8)
    for codes in (range(0x10000), *_HIGH):
        text = np.arange(codes.start, codes.stop, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
        for number, characters in enumerate(CLASSES, start=1):
            for run in re.finditer(f"[{characters}]+", text):
                table[codes.start + run.start() : codes.start + run.end()] = number
    return table


class NativeEncoder:
    """The merges of one tokenizer, and the chunks that it has met. Calls from several threads wait for each other."""

    def __init__(self, run: Any, alphabet: Sequence[str] | None, size: int, merges: Any, unknown: int) -> None:
        letters = np.zeros(0, dtype=np.int32)
        if alphabet is not None:
            letters = np.full(max(map(ord, alphabet), default=-1) + 1, -1, dtype=np.int32)
            letters[[ord(char) for char in alphabet]] = np.arange(len(alphabet))
        self._bytes = alphabet is None
        pairs = np.array(merges, dtype=np.int32).reshape(-1, 2)
        self._run = run
        self._classes = classes()
        self._handle: int = run.bpe_new(
            self._bytes, _place(self._classes), _place(letters), len(letters), unknown, size, _place(pairs), len(pairs)
        )
        weakref.finalize(self, run.bpe_free, self._handle)

    @classmethod
    def of(
        cls, alphabet: Sequence[str] | None, size: int, merges: Sequence[tuple[int, int]], unknown: int
    ) -> NativeEncoder | None:
        """An encoder for these merges of ids, of which the first `size` are the alphabet, or None without native code.

        alphabet: the characters by their ids, cut by `SPACED`; None for bytes, cut by `SCRIPTED`. unknown: the id of
        other characters, or −1.
        """
        run = library("bpe")
        return None if run is None else cls(_typed(run), alphabet, size, merges, unknown)

    def encode(self, text: str) -> Ids | None:
        """The ids of a text without surrogates; None where it has a character without one."""
        blocks = []
        start, block = 0, BLOCK
        read = ctypes.c_int64()
        while start < len(text):
            piece = text[start : start + block]
            codes = np.frombuffer(piece.encode("utf-32-le"), dtype="<u4")
            room = len(piece) if not self._bytes or piece.isascii() else len(piece.encode())
            ids = np.empty(room + 3, dtype=np.int32)
            last = start + len(piece) >= len(text)
            count = self._run.bpe_encode(self._handle, _place(codes), len(codes), last, _place(ids), ctypes.byref(read))
            if count < 0:
                return None
            # A chunk may be longer than a block.
            block = BLOCK if read.value else 2 * block
            start += read.value
            blocks.append(ids[:count].copy())
        return blocks[0] if len(blocks) == 1 else np.concatenate([np.zeros(0, dtype=np.int32), *blocks])


def _place(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


@lru_cache(maxsize=1)
def _typed(run: Any) -> Any:
    """The library, with the types of its functions."""
    pointer, number, long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    run.bpe_new.argtypes = [ctypes.c_int, pointer, pointer, number, number, number, pointer, number]
    run.bpe_new.restype = pointer
    run.bpe_free.argtypes = [pointer]
    run.bpe_free.restype = None
    run.bpe_encode.argtypes = [pointer, pointer, long, ctypes.c_int, pointer, pointer]
    run.bpe_encode.restype = long
    return run
