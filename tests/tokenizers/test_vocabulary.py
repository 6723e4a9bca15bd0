"""Words as word vectors want them: found by a rule that a person can tell, in any script, and counted."""

import json
from pathlib import Path

import numpy as np
import pytest

from tokenloom.errors import UserError
from tokenloom.tokenizers.vocabulary import BOUNDARY, Vocabulary, words_of


def test_words_of_a_text_are_runs_of_letters_and_digits_with_apostrophes_inside() -> None:
    assert words_of("Don’t stop -- 'tis 1984, l'eau!", "text") == ["don't", "stop", "tis", "1984", "l'eau"]
    assert words_of("snake_case and e-mail", "text") == ["snake", "case", "and", "e", "mail"]


def test_words_are_found_in_any_script_and_composed() -> None:
    assert words_of("Größe ПРИВЕТ नमस्ते 東京", "text") == ["größe", "привет", "नमस्ते", "東京"]
    assert words_of("cafe\u0301", "text") == ["caf\u00e9"]


def test_names_in_code_are_cut_at_underscores_and_humps() -> None:
    assert words_of("getHTTPReply_2(self.maxN)", "code") == ["get", "http", "reply", "self", "max", "n"]
    assert words_of("MAX_SIZE = 0x1F; sha256(b'abc')", "code") == ["max", "size", "sha256", "b", "abc"]
    assert words_of("имяФайла", "code") == ["имя", "файла"]


def test_rare_words_are_left_out_and_ties_are_in_order() -> None:
    documents = [["b", "a", "c"], ["b", "a", "d", "b"]]
    found = Vocabulary.build(documents, 2, "text")
    assert (found.words, found.counts) == (("b", "a"), (3, 2))
    assert (found.total, found.known) == (7, 5)
    assert found.encode(documents).tolist() == [0, 1, BOUNDARY, 0, 1, 0, BOUNDARY]
    assert found.encode([]).dtype == np.int32


def test_a_vocabulary_is_saved_and_damage_is_named(tmp_path: Path) -> None:
    found = Vocabulary.build([["naïve", "a", "a"]], 1, "code")
    path = tmp_path / "words.json"
    found.save(path)
    loaded = Vocabulary.load(path)
    assert loaded == found
    assert loaded.fingerprint() == found.fingerprint() != Vocabulary.build([["a"]], 1, "code").fingerprint()
    data = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**data, "format": 7}), "utf-8")
    with pytest.raises(UserError, match=r"words\.json: damaged.*format 7"):
        Vocabulary.load(path)
    with pytest.raises(UserError, match="cannot be read"):
        Vocabulary.load(tmp_path / "none.json")
