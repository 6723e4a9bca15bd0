import hashlib
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenloom.errors import UserError
from tokenloom.tokenizers.text import (
    BPE,
    ByteBPE,
    CharTokenizer,
    TextTokenizer,
    WordTokenizer,
    choose_tokenizer,
    load_tokenizer,
    suggested_vocab_size,
)

SCRIPTS = {
    "greek": "Καλημέρα, κόσμε· τι κάνεις;\n",
    "japanese": "橋の下を水がゆく。カタカナも、ｶﾅも。\u3000全角\n",
    "arabic": "الماء يجري، هل ترى؟ مُحَمَّد ١٢٣\n",
    "hindi": "हिन्दी में लिखा हुआ पाठ।\n",
    "emoji": "👩\u200d👩\u200d👧 ❤\ufe0f 👍🏽 🏴\U000e0067\U000e0062\U000e007f 1\ufe0f\u20e3",
    "marks": "e\u0301 a\u0308\u0323 \u0301 Z͑ͫ̓ͪ̂",
    "separators": "a\x1cb\x1dc\x1ed\x1fe\x85f\u2028g\u2029h\xa0i\u3000j",
    "controls": "nul\x00 bell\x07 del\x7f bom\ufeff last\U0010ffff\uffff",
    "line ends": "one\r\ntwo\rthree\n\n\r\n  four \t\n",
    "markers": "she typed <|end|> and <|unknown|>, <|pad|> and <s>: \\x41 \\\\ \\n",
}
EVERYTHING = "\n".join(SCRIPTS.values())
SPECIALS = ("end", "pad")

Train = Callable[[str | list[str]], TextTokenizer]
TRAINED: dict[str, Train] = {
    "char": lambda text: CharTokenizer.train(text, specials=SPECIALS),
    "char-unknown": lambda text: CharTokenizer.train(text, specials=SPECIALS, unknown=True),
    "word": lambda text: WordTokenizer.train(text, 10_000, specials=SPECIALS),
    "bpe-first": lambda text: BPE.train(text, num_merges=40, specials=SPECIALS),
    "bpe-id": lambda text: BPE.train(text, num_merges=40, ties="id", specials=SPECIALS, unknown=True),
    "byte-bpe": lambda text: ByteBPE.train(text, 320, specials=SPECIALS),
}
KIND = pytest.mark.parametrize("train", TRAINED.values(), ids=TRAINED.keys())


def streamed(tokenizer: TextTokenizer, ids: Sequence[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.push(id) for id in ids), stream.finish()]


@KIND
@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_every_script_round_trips(train: Train, text: str) -> None:
    for tokenizer in (train(text), train(list(SCRIPTS.values()))):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int32
        assert tokenizer.decode(ids) == text
        assert "".join(streamed(tokenizer, ids.tolist())) == text
        assert tokenizer.byte_lengths()[ids].sum() == len(text.encode())
        assert tokenizer.unseen(text) == []


@KIND
def test_user_text_is_never_control(train: Train) -> None:
    text = "".join(f"<|{name}|> <|{name.upper()}|>" for name in ("end", "pad", "unknown", "endoftext")) * 9
    tokenizer = train(text)
    assert not set(tokenizer.encode(text).tolist()) & set(tokenizer.specials.values())
    assert tokenizer.decode(tokenizer.encode(text), specials=True) == text


@KIND
def test_special_tokens(train: Train) -> None:
    tokenizer = train("some text, some more")
    end, pad = tokenizer.specials["end"], tokenizer.specials["pad"]
    assert list(tokenizer.specials.values()) == list(
        range(tokenizer.vocab_size - len(tokenizer.specials), tokenizer.vocab_size)
    )
    ids = [*tokenizer.encode("some").tolist(), end, *tokenizer.encode(" more").tolist(), pad]
    assert tokenizer.decode(ids) == "some more"
    assert tokenizer.decode(ids, specials=True) == "some<|end|> more<|pad|>"
    assert "".join(streamed(tokenizer, ids)) == "some more"
    assert tokenizer.byte_lengths().shape == (tokenizer.vocab_size,)
    assert tokenizer.byte_lengths()[[end, pad]].tolist() == [0, 0]
    assert tokenizer.token_text(end) == "<|end|>"


@KIND
def test_empty_text(train: Train) -> None:
    tokenizer = train("ab")
    ids = tokenizer.encode("")
    assert ids.shape == (0,)
    assert ids.dtype == np.int32
    assert tokenizer.decode(ids) == tokenizer.decode([]) == ""
    assert streamed(tokenizer, []) == [""]
    empty: list[str | list[str]] = ["", [], ["", ""]]
    for nothing in empty:
        with pytest.raises(UserError, match="no text to build a tokenizer from"):
            train(nothing)


@KIND
def test_lone_surrogates_are_refused(train: Train) -> None:
    tokenizer = train("ab")
    for text, place in (("ab\ud83d", "character 3 of the text is U\\+D83D"), ("\udc00é", "character 1 .* U\\+DC00")):
        with pytest.raises(UserError, match=place):
            tokenizer.encode(text)
        with pytest.raises(UserError, match=place):
            train(text)


@KIND
def test_ids_out_of_range_are_an_error(train: Train) -> None:
    tokenizer = train("ab")
    for ids in ([-1], [0, tokenizer.vocab_size]):
        with pytest.raises(ValueError, match="outside 0 …"):
            tokenizer.decode(ids)
    for wrong in ([[0]], [0.5]):
        with pytest.raises(ValueError, match="in one dimension"):
            tokenizer.decode(wrong)
    for id in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=f"id {id} is not in"):
            tokenizer.stream().push(id)
        with pytest.raises(ValueError, match=f"id {id} is not in"):
            tokenizer.token_text(id)


@KIND
def test_encode_batch(train: Train) -> None:
    texts = ["one two", "", "two\n"]
    tokenizer = train("".join(texts))
    for ids, text in zip(tokenizer.encode_batch(texts), texts, strict=True):
        np.testing.assert_array_equal(ids, tokenizer.encode(text))


@KIND
def test_saved_and_loaded(train: Train, tmp_path: Path) -> None:
    tokenizer = train(EVERYTHING)
    path = tmp_path / "tokenizer.json"
    path.write_text("an older file")
    tokenizer.save(path)
    loaded = load_tokenizer(path)
    assert type(loaded) is type(tokenizer)
    assert (loaded.kind, loaded.vocab_size, loaded.specials) == (
        tokenizer.kind,
        tokenizer.vocab_size,
        tokenizer.specials,
    )
    np.testing.assert_array_equal(loaded.encode(EVERYTHING), tokenizer.encode(EVERYTHING))
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert TextTokenizer.from_json(json.loads(json.dumps(tokenizer.to_json()))).to_json() == tokenizer.to_json()
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]
    assert json.loads(path.read_text(encoding="utf-8"))["format"] == 1
    canonical = json.dumps(tokenizer.to_json(), sort_keys=True, separators=(",", ":"))
    assert tokenizer.fingerprint() == hashlib.sha256(canonical.encode()).hexdigest()
    assert tokenizer.fingerprint() != train("Ж" * 9).fingerprint()


@KIND
def test_a_cut_file_is_refused(train: Train, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    train("ein Text, ein Maß").save(path)
    whole = path.read_bytes()
    for length in [*range(0, len(whole) - 2, 41), len(whole) - 2]:
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"tokenizer\.json is (truncated or )?not a tokenizer file"):
            load_tokenizer(path)


@KIND
def test_any_altered_letter_is_refused(train: Train, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    train("say what you want to say").save(path)
    whole = path.read_text(encoding="utf-8")
    generator = random.Random(0)
    letters = [i for i, char in enumerate(whole) if char.isalnum()]
    for i in generator.sample(letters, 60):
        path.write_text(whole[:i] + ("q" if whole[i] != "q" else "z") + whole[i + 1 :], encoding="utf-8")
        with pytest.raises(UserError, match=r"tokenizer\.json"):
            load_tokenizer(path)


BPE_JSON: dict[str, Any] = BPE.train("abab abab", num_merges=2, specials=("end",)).to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format is 2, and this version reads only format 1"),
        ({"format": True}, "format is True"),
        ({"format": None}, "the entry 'format' is missing|format is None"),
        ({"kind": "bytes"}, "kind is 'bytes', not one of bpe, byte-bpe, char, word"),
        ({"kind": ["bpe"]}, "kind is"),
        ({"kind": "char"}, "the entry 'merges' does not belong"),
        ({"merges": None}, "the entry 'merges' is missing"),
        ({"extra": 1}, "the entry 'extra' does not belong in a tokenizer of kind 'bpe'"),
        ({"specials": ["end", "end"]}, "special token 2, 'end', is not a name or is given twice"),
        ({"specials": ["<|end|>"]}, "special token 1"),
        ({"specials": "end"}, "'specials' is not a list of strings"),
        ({"characters": "ba "}, "not distinct and sorted"),
        ({"characters": ""}, "at least one character"),
        ({"characters": " ab\ud800"}, "U\\+D800"),
        ({"merges": {"a": "b"}}, "'merges' is not a list"),
        ({"merges": [["a", "b"], ["ab"]]}, "merge 2 is not a pair"),
        ({"merges": [["a", "c"]]}, "merge 1 joins 'a' and 'c', one of which is not a token yet"),
        ({"merges": [["a", "b"], ["a", "b"]]}, "merge 2 of 'a' and 'b' makes a token that exists already"),
        ({"merges": [["a", "\udfff"]]}, "U\\+DFFF"),
        ({"merges": [["a", "b"]], "fingerprint": "0"}, "altered or damaged"),
    ],
)
def test_the_first_fault_is_named(change: dict[str, Any], message: str) -> None:
    data = {key: value for key, value in {**BPE_JSON, **change}.items() if value is not None}
    with pytest.raises(UserError, match=message):
        TextTokenizer.from_json(data)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match="cannot be read: No such file"):
        load_tokenizer(path)
    cases = {"[]": "not a JSON object", json.dumps(BPE_JSON): "'fingerprint' is missing", "[" * 200_000: "invalid JSON"}
    for text, message in cases.items():
        path.write_text(text)
        with pytest.raises(UserError, match=f"tokenizer.json .*{message}"):
            load_tokenizer(path)
    path.write_bytes(b'{"format": "\xff"}')
    with pytest.raises(UserError, match="byte 12 is not UTF-8"):
        load_tokenizer(path)
    with pytest.raises(UserError, match="kind is 'bpe' where 'char' is needed"):
        CharTokenizer.from_json(BPE_JSON)
    words = WordTokenizer.train("a b", 2).to_json()
    for change, message in (
        ({"words": ["a", "a"]}, "word 2, 'a'"),
        ({"words": ["a b"]}, "word 1, 'a b', is not a single word"),
        ({"specials": []}, "'unknown' is missing"),
    ):
        with pytest.raises(UserError, match=message):
            TextTokenizer.from_json({**words, **change})


def test_saving_where_it_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be written \(No such file"):
        CharTokenizer.train("ab").save(tmp_path / "missing" / "tokenizer.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        CharTokenizer.train("ab").save(tmp_path / "folder")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_characters(tinyshakespeare: str) -> None:
    tokenizer = CharTokenizer.train(tinyshakespeare)
    assert (tokenizer.vocab_size, tokenizer.specials) == (65, {})
    ids = tokenizer.encode(tinyshakespeare)
    assert [tokenizer.decode([id]) for id in range(65)] == sorted(set(tinyshakespeare))
    assert tokenizer.decode(ids) == tinyshakespeare
    plain = {char: id for id, char in enumerate(sorted(set(tinyshakespeare)))}
    assert ids[:5000].tolist() == [plain[char] for char in tinyshakespeare[:5000]]


def test_unseen_characters_are_named() -> None:
    tokenizer = CharTokenizer.train("ab\n")
    assert tokenizer.unseen("b\x00c😀cé\x00") == ["\x00", "c", "😀", "é"]
    with pytest.raises(UserError) as caught:
        tokenizer.encode("ab\x00\x00z😀\u2028\U0010ffffcé")
    assert "7 characters: '\\x00' (U+0000), 'z' (U+007A), '😀' (U+1F600), '\\u2028' (U+2028), " in str(caught.value)
    assert " and 2 more;" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unseen_characters_become_unknown_when_asked() -> None:
    tokenizer = CharTokenizer.train(["ab", "b😀"], specials=("end",), unknown=True)
    assert tokenizer.specials == {"end": 3, "unknown": 4}
    assert tokenizer.encode("axb\U0010ffff😀").tolist() == [0, 4, 1, 4, 2]
    assert tokenizer.unseen("axb") == ["x"]
    assert tokenizer.decode([0, 4, 2, 3]) == "a😀"
    assert tokenizer.decode([0, 4, 2, 3], specials=True) == "a<|unknown|>😀<|end|>"
    assert CharTokenizer.train("ab", specials=("unknown",)).encode("axb").tolist() == [0, 2, 1]


def test_names_of_special_tokens() -> None:
    for wrong in (("end", "end"), ("<|end|>",), ("",), ("End",)):
        with pytest.raises(ValueError, match="name of a special token"):
            CharTokenizer.train("ab", specials=wrong)


def test_words_are_kept_by_frequency_then_first_appearance() -> None:
    tokenizer = WordTokenizer.train("c a a b c, d", 4)
    # " " stands 5 times, c and a twice, then b, "," and d once each, in this order.
    assert tokenizer.to_json()["words"] == [" ", "c", "a", "b"]
    assert (tokenizer.vocab_size, tokenizer.specials) == (5, {"unknown": 4})
    ids = tokenizer.encode("d a\nb")
    assert ids.tolist() == [4, 0, 2, 4, 3]
    assert tokenizer.decode(ids) == " ab"
    assert tokenizer.decode(ids, specials=True) == "<|unknown|> a<|unknown|>b"
    assert tokenizer.unseen("d a\nb d") == ["d", "\n"]
    assert tokenizer.byte_lengths().tolist() == [1, 1, 1, 1, 0]
    assert WordTokenizer.train("a b", 9).notes == ["The text has only 3 distinct words, not 9."]
    with pytest.raises(UserError, match="a vocabulary of 0 has no word"):
        WordTokenizer.train("a b", 0)
    with pytest.raises(ValueError, match='needs the special token "unknown"'):
        WordTokenizer(["a"], ())


def test_a_vocabulary_above_16_bits(tmp_path: Path) -> None:
    text = " ".join(f"w{number}" for number in range(70_000))
    tokenizer = WordTokenizer.train(text, 100_000, specials=("end",))
    assert tokenizer.vocab_size == 70_003
    ids = tokenizer.encode(text)
    assert ids.max() == 70_000
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("w69999 never").tolist() == [70_000, 0, tokenizer.specials["unknown"]]
    tokenizer.save(tmp_path / "words.json")
    np.testing.assert_array_equal(load_tokenizer(tmp_path / "words.json").encode(text), ids)


def test_merges_above_16_bits() -> None:
    """A byte-pair vocabulary made by hand: each pair of bytes, then some of three bytes, a?a."""
    merges = [(first, second) for first in range(256) for second in range(256)]
    merges += [(256 + 97 * 256 + second, 97) for second in range(128)]
    tokenizer = ByteBPE(merges)
    assert tokenizer.vocab_size == 256 + 65_536 + 128
    ids = tokenizer.encode("aba")
    assert ids.tolist() == [256 + 65_536 + ord("b")]
    assert tokenizer.decode(ids) == "aba"


def test_streams_never_emit_half_a_character() -> None:
    text = EVERYTHING * 2
    tokenizer = ByteBPE.train("nothing like it", 256)
    ids = tokenizer.encode(text).tolist()
    pushed = streamed(tokenizer, ids)
    assert "".join(pushed) == text
    assert "\ufffd" not in "".join(pushed)
    assert pushed[: 2 * len("Κα")] == ["", "Κ", "", "α"]
    assert streamed(tokenizer, list("橋".encode())) == ["", "", "橋", ""]
    assert streamed(tokenizer, list("橋".encode()[:2])) == ["", "", "\ufffd"]


def test_streams_equal_decoding_for_any_ids() -> None:
    tokenizer = ByteBPE.train(EVERYTHING, 400, specials=("end",))
    generator = random.Random(0)
    biased = [id for id in range(tokenizer.vocab_size) for _ in range(1 if id < 128 else 3)]
    for _ in range(500):
        ids = generator.choices(biased, k=12)
        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)
        assert tokenizer.decode(ids) == b"".join(map(tokenizer._pieces(False).__getitem__, ids)).decode(
            errors="replace"
        )
    stream = tokenizer.stream()
    assert (stream.push(0xE3), stream.finish(), stream.push(0x41), stream.finish()) == ("", "\ufffd", "A", "")


def test_token_text() -> None:
    tokenizer = ByteBPE.train("あ", 256)
    assert [tokenizer.token_text(id) for id in (0x41, 0x20, 0x0A, 0x0D, 0x00, 0xE3, 0x5C)] == [
        "A",
        "␣",
        "⏎",
        "\\r",
        "\\x00",
        "\\xe3",
        "\\",
    ]
    characters = CharTokenizer.train("é\u2028\U000e0020")
    assert [characters.token_text(id) for id in range(3)] == ["é", "\\u2028", "\\U000e0020"]


def test_byte_bpe_takes_every_character() -> None:
    text = "".join(chr(code) for code in range(0, sys.maxunicode + 1, 7) if not 0xD800 <= code <= 0xDFFF)
    tokenizer = ByteBPE.train("nothing like it", 260)
    assert tokenizer.unseen(text) == []
    assert tokenizer.decode(tokenizer.encode(text)) == text


MANY = "".join(map(chr, range(0x4E00, 0x4E00 + 513)))


@pytest.mark.parametrize(
    ("text", "options", "kind", "why"),
    [
        (MANY[:512], {}, "char", "at most 512 distinct characters"),
        (MANY, {}, "byte-bpe", "more than 512 distinct characters"),
        ("few letters", {"vocab_size": 300}, "byte-bpe", "a size is given"),
        ("few letters", {"kind": "char"}, "char", "as asked"),
        ("few letters", {"kind": "word"}, "word", "as asked"),
        ("few letters", {"kind": "bpe"}, "bpe", "as asked"),
        (["few", "letters"], {"kind": "byte-bpe", "specials": ("end",)}, "byte-bpe", "as asked"),
    ],
)
def test_choosing(text: str | list[str], options: dict[str, Any], kind: str, why: str) -> None:
    tokenizer = choose_tokenizer(text, **options)
    assert tokenizer.kind == kind
    assert tokenizer.reason.startswith(f"{tokenizer.vocab_size:,} ids for {len(''.join(text).encode()):,} bytes with ")
    assert tokenizer.reason.endswith(f" distinct characters ({why})")
    assert list(tokenizer.specials) == [*options.get("specials", ()), *(["unknown"] if kind == "word" else [])]


def test_choosing_takes_the_size() -> None:
    text = "the cat sat on the mat, the cat sat. " * 9
    assert choose_tokenizer(text, "byte-bpe", 260).vocab_size == 260
    assert choose_tokenizer(text, "bpe", 20, ("end",)).vocab_size == 21
    assert choose_tokenizer(text, "word", 3).vocab_size == 4
    for kind in ("word", "bpe", "byte-bpe"):
        with pytest.raises(UserError, match="a vocabulary of 0 "):
            choose_tokenizer(text, kind, 0)
    with pytest.raises(UserError, match=r"size \(300\) has no effect with 'char'"):
        choose_tokenizer(text, "char", 300)


def test_choosing_with_an_alphabet() -> None:
    for kind in ("auto", "char", "bpe"):
        tokenizer = choose_tokenizer("abab", kind, alphabet=["held out", "é"])
        assert tokenizer.decode(tokenizer.encode("hold é")) == "hold é"
    assert choose_tokenizer("abab", "bpe", 4, alphabet="xy").vocab_size == 4
    assert choose_tokenizer("abab", alphabet=[MANY[:510]]).kind == "char"
    assert choose_tokenizer("abab", alphabet=[MANY[:511]]).kind == "byte-bpe"
    merges = choose_tokenizer("abab", "byte-bpe", alphabet=["cdcd"]).to_json()["merges"]
    assert merges == choose_tokenizer("abab", "byte-bpe").to_json()["merges"]
    with pytest.raises(UserError, match="half of a surrogate pair"):
        choose_tokenizer("abab", alphabet=["\ud800"])


@pytest.mark.parametrize(("given", "near"), [("byte_bpe", "byte-bpe"), ("chars", "char"), ("words", "word")])
def test_an_unknown_kind_names_the_nearest(given: str, near: str) -> None:
    with pytest.raises(UserError, match=f"unknown tokenizer '{given}'; did you mean '{near}'"):
        choose_tokenizer("ab", given)


def test_the_suggested_size_grows_with_the_text() -> None:
    assert suggested_vocab_size(1000) == 512
    assert suggested_vocab_size(1_000_000) == 1984  # 2 · 1,000, rounded down to a multiple of 64
    assert suggested_vocab_size(100_000_000) == 16_384
    text = "é" * 500_000  # a million bytes
    assert choose_tokenizer(text, "byte-bpe").notes[0].startswith("Merging ended after 6 of 1,728 merges")
