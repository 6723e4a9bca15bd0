"""The report: one HTML file with everything side by side, which needs nothing from outside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from tokenloom.drawing.plain import picture_from, svg
from tokenloom.lab.registry import SECTIONS

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --ink: #1f2328; --faint: #5d6570; --line: #d8dce2; --good: #00684c;
  --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --back: #14171c; --ink: #e6e9ee; --faint: #9aa3af; --line: #3a414b;
  --good: #2fc79c; --bad: #ff8a80; } }
body { background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .6rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
th { color: var(--faint); font-weight: 600; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.faint, figcaption { color: var(--faint); }
article { border-top: 2px solid var(--line); margin-top: 2rem; padding-top: .4rem; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; }
pre { white-space: pre-wrap; border-left: 3px solid var(--line); padding-left: .8rem; }
.dark { display: none; }
@media (prefers-color-scheme: dark) { .light { display: none; } .dark { display: block; } }
"""


def html(rows: Sequence[dict[str, Any]]) -> str:
    """The page of these rows, grouped as in the chapter."""
    good = sum(row["good"] for row in rows)
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<link rel="icon" href="data:,"><title>The lab</title><style>{STYLE}</style></head><body>',
        "<h1>The lab</h1>",
        f"<p>{good} of {len(rows)} rows are within their tolerance. Each holds what was published beside what this "
        "machine measured.</p>",
        _summary(rows),
    ]
    for section, name in SECTIONS.items():
        inside = [row for row in rows if (row["section"] if row["section"] in SECTIONS else "own") == section]
        if inside:
            number = "" if section == "own" else f"{section} "
            parts.append(f"<section><h2>{number}{name}</h2>{''.join(map(_row, inside))}</section>")
    return "\n".join([*parts, "</body></html>\n"])


def _summary(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f'<tr><td><a href="#row-{escape(row["id"])}">{escape(row["id"])}</a></td><td>{escape(row["title"])}</td>'
        f"<td>{_verdict(row['good'])}{' (quick)' if row['quick'] else ''}</td>"
        f"<td>{row['processor_seconds']:.1f}</td></tr>"
        for row in rows
    ]
    head = "<tr><th>row</th><th>experiment</th><th>verdict</th><th>processor seconds</th></tr>"
    return f"<table>{head}{''.join(lines)}</table>"


def _verdict(good: bool | None) -> str:
    if good is None:
        return '<span class="faint">shown</span>'
    return '<span class="good">✓ within</span>' if good else '<span class="bad">✗ out of tolerance</span>'


def _row(row: dict[str, Any]) -> str:
    seed = f"seed {row['seed']}" + ("" if row["own_seed"] else ", not the row's own: the second tolerance holds")
    quick = " · quick form, held against a coarse bound of its own" if row["quick"] else ""
    cells = "".join(
        f"<tr><td>{escape(m['name'])}</td><td>{escape(m['published'])}</td><td>{escape(m['measured'])}</td>"
        f"<td>{escape(m['tolerance'])}</td><td>{_verdict(m['good'])}</td></tr>"
        for m in row["measures"]
    )
    head = "<tr><th>figure</th><th>published</th><th>measured</th><th>tolerance</th><th>verdict</th></tr>"
    notes = "".join(f'<p class="faint">{escape(note)}</p>' for note in row["notes"])
    return (
        f'<article id="row-{escape(row["id"])}"><h3>{escape(row["id"])} {escape(row["title"])}</h3>'
        f"<p><b>Asked:</b> {escape(row['asked'])}</p><p><b>Protocol:</b> {escape(row['protocol'])}</p>"
        f"<table>{head}{cells}</table><p>{escape(row['explanation'])}</p>{notes}"
        f"{''.join(map(_figure, row['pictures']))}"
        f'<p class="faint">{seed}{quick} · {row["processor_seconds"]:.1f} processor seconds</p></article>'
    )


def _figure(data: dict[str, Any]) -> str:
    picture = picture_from(data)
    if picture.text:
        inside = f"<pre>{escape(picture.text)}</pre>"
    else:
        inside = "".join(
            f'<div class="{look}" role="img" aria-label="{escape(picture.caption)}">'
            f"{svg(picture, dark=look == 'dark')}</div>"
            for look in ("light", "dark")
        )
    return f"<figure><b>{escape(picture.title)}</b>{inside}<figcaption>{escape(picture.caption)}</figcaption></figure>"
