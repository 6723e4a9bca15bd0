"""Text while it comes: whole characters, and nothing of a stop string."""

import itertools
import random

import pytest
from decoding_fakes import ByteStream, PieceStream

from tokenloom.errors import UserError
from tokenloom.generation import TextStreamer


def cut_by_definition(text: str, stops: list[str]) -> str:
    """Character by character: at the first one that completes a stop string, cut where the longest such begins."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return text


def stream(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    streamer = TextStreamer(PieceStream(pieces), stops)
    sent = [streamer.push(n) for n in range(len(pieces))]
    return [*sent, streamer.finish()], streamer.stopped


def test_a_stop_string_that_spans_tokens_is_never_sent() -> None:
    sent, stopped = stream(["Hello", "\n", "\nUs", "er", ": hi", " more"], ["\n\nUser:"])
    assert sent == ["Hello", "", "", "", "", "", ""]
    assert stopped


def test_what_only_looked_like_a_stop_string_is_sent_late() -> None:
    sent, stopped = stream(["a", "\n", "\n", "b", "\n"], ["\n\nUser:"])
    assert sent == ["a", "", "", "\n\nb", "", "\n"]
    assert not stopped


def test_without_stop_strings_nothing_is_held() -> None:
    assert stream(["a", "", "bc"], []) == (["a", "", "bc", ""], False)


def test_any_cut_into_tokens_gives_the_same_text() -> None:
    rng = random.Random(0)
    for _ in range(1500):
        text = "".join(rng.choice("ab") for _ in range(rng.randint(0, 9)))
        stops = ["".join(rng.choice("ab") for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        cuts = sorted(rng.sample(range(len(text) + 1), rng.randint(0, min(3, len(text)))))
        pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
        sent, stopped = stream(pieces, stops)
        expected = cut_by_definition(text, stops)
        assert "".join(sent) == expected, (pieces, stops)
        assert stopped == (expected != text or any(stop in text for stop in stops))


def test_as_much_as_is_safe_is_sent_at_once() -> None:
    """What has been held back is always the beginning of a stop string."""
    streamer = TextStreamer(PieceStream(list("xabaxababc")), ["ababc"])
    sent = [streamer.push(n) for n in range(9)]
    assert sent == ["x", "", "", "", "abax", "", "", "", ""]
    assert streamer.push(9) == ""
    assert streamer.stopped
    assert streamer.push(0) == ""
    assert streamer.finish() == ""


def test_characters_of_several_bytes_come_whole() -> None:
    data = "né 日本 🙂".encode()
    streamer = TextStreamer(ByteStream(), ["本 🙂!"])
    sent = [streamer.push(byte) for byte in data] + [streamer.finish()]
    assert "".join(sent) == "né 日本 🙂"
    assert not any("\ufffd" in text for text in sent)


def test_the_rest_of_the_stream_is_searched_too() -> None:
    class Late(PieceStream):
        def finish(self) -> str:
            return "OP tail"

    streamer = TextStreamer(Late(["go ST"]), ["STOP"])
    assert streamer.push(0) == "go "
    assert streamer.finish() == ""
    assert streamer.stopped


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UserError, match="--stop"):
        TextStreamer(ByteStream(), ["a", ""])
    with pytest.raises(ValueError, match="sequence"):
        TextStreamer(ByteStream(), "abc")
