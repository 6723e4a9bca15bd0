import datetime

import pytest
from needs import lacking

from tokenloom.data import registry
from tokenloom.data.pairs import PairData
from tokenloom.data.sets.verses import plain
from tokenloom.data.split import split
from tokenloom.errors import UserError


def pairs_of(name: str) -> PairData:
    try:
        data = registry.load_data(name, progress=False)
    except UserError as error:
        lacking(f"{name} could not be had: {error}")
    assert isinstance(data, PairData)
    return data


@pytest.mark.parametrize("name", ["dates-de", "dates-fr", "dates-iso"])
def test_dates_are_different_days_and_always_the_same(name: str) -> None:
    data = pairs_of(name)
    assert len({pair.id for pair in data.pairs}) == len({pair.source for pair in data.pairs}) == 6_000
    assert pairs_of(name) == data
    days = [datetime.date.fromisoformat(pair.id) for pair in data.pairs]
    assert (min(days).year, max(days).year) == (1900, 2099)
    for pair, day in zip(data.pairs[:300], days, strict=False):
        # Independent of Babel: English and ISO as Python's own calendar writes them.
        assert f"{day:%B}" in pair.source
        assert (f"{day:%A}" in pair.source) == ("day" in pair.source)
        assert str(day.year) in pair.target
        assert name != "dates-iso" or pair.target == pair.id


def test_dates_by_hand() -> None:
    german = {pair.id: pair for pair in pairs_of("dates-de").pairs}
    french = {pair.id: pair for pair in pairs_of("dates-fr").pairs}
    assert (german["2050-12-05"].source, german["2050-12-05"].target) == (
        "Monday, December 5, 2050",
        "Montag, 5. Dezember 2050",
    )
    assert french["2038-04-01"].target == "1 avril 2038"
    parts = split(pairs_of("dates-de"))
    assert len(parts.validation.pairs) == 600


def test_the_interface_in_french() -> None:
    data = pairs_of("interface-fr")
    assert len(data.pairs) == 3_240
    both = {(pair.source, pair.target) for pair in data.pairs}
    assert len(both) == 3_240
    assert ("and", "et") in both
    assert ("%1 cell hidden", "%1 cellule masquée") in both
    assert not any("\x04" in pair.source for pair in data.pairs)


def test_the_verses_are_aligned() -> None:
    pytest.importorskip("pysword")
    data = pairs_of("verses-en-es")
    assert len(data.pairs) == 10_217
    by_id = {pair.id: pair for pair in data.pairs}
    first = by_id["Genesis 1:1"]
    assert first.source == "In the beginning God created the heaven and the earth."
    assert first.target == "EN el principio crió Dios los cielos y la tierra."
    assert max(len(side) for pair in data.pairs for side in (pair.source, pair.target)) == 100
    assert not any(
        mark in side for pair in data.pairs for side in (pair.source, pair.target) for mark in ("<", "¶", "  ")
    )
    assert any("left out 20,867 verses" in note and "18 verses" in note for note in data.notes)


def test_a_verse_without_its_marks() -> None:
    marked = '¶ <q who="Jesus"><w lemma="G1">Love</w>  <note n="1">or: <hi>charity</hi></note>one</q> another. <lb/>'
    assert plain(marked) == "Love one another."


def test_the_texts_in_pairs_can_be_trained_on() -> None:
    text = registry.load("dates-iso")
    assert text.documents[0].text == "1 April 2038\n2038-04-01\n"
