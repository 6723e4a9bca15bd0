"""Dates in English, with the same date in another language or in ISO 8601."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenloom.data.pairs import Pair, PairData
from tokenloom.data.registry import Recipe
from tokenloom.errors import UserError

_COUNT = 6_000
_FIRST, _LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
# The ways in which a date is written, by the names that CLDR has for them: with the day of the week, and without.
_FORMATS = ("full", "long")
_ENGLISH = ("en_US", "en_GB")


def dates(locale: str | None) -> PairData:
    """Return 6,000 distinct dates of the years 1900 to 2099, one pair each.

    Each is written in English (American or British, with the day of the week or without), and in the same way in the
    language `locale`; None stands for ISO 8601, 2021-03-03. Which dates, and how each is written, never changes; the
    words are those of CLDR, as Babel has them. Raises UserError without Babel.
    """
    try:
        import babel
        from babel.dates import format_date
    except ImportError:
        raise UserError("dates are written by Babel, which is not installed: pip install 'tokenloom[dates]'") from None
    draw = random.Random(0)
    days = draw.sample(range((_LAST - _FIRST).days + 1), _COUNT)
    pairs = []
    for day in (_FIRST + datetime.timedelta(days=n) for n in days):
        form, english = draw.choice(_FORMATS), draw.choice(_ENGLISH)
        source = format_date(day, form, locale=english)
        target = day.isoformat() if locale is None else format_date(day, form, locale=locale)
        pairs.append(Pair(day.isoformat(), source, target))
    return PairData(pairs, notes=[f"written by Babel {babel.__version__}; another version may write another way"])


def _loader(locale: str | None) -> Callable[[Sequence[Path]], PairData]:
    return lambda _: dates(locale)


def _recipe(name: str, locale: str | None, target: str) -> Recipe:
    return Recipe(
        name=name,
        description=f"6,000 dates in English and {target}, such as {_EXAMPLES[name]}",
        license="Unicode-3.0 (CLDR, by Babel, BSD-3-Clause)",
        loader=_loader(locale),
        data_class=PairData,
    )


_EXAMPLES = {
    "dates-de": "3 March 2021 – 3. März 2021",
    "dates-fr": "March 3, 2021 – 3 mars 2021",
    "dates-iso": "Wednesday, March 3, 2021 – 2021-03-03",
}
RECIPES = (
    _recipe("dates-de", "de_DE", "German"),
    _recipe("dates-fr", "fr_FR", "French"),
    _recipe("dates-iso", None, "ISO 8601"),
)
