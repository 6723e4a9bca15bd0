"""The report: one self-contained HTML page with all rows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from tokenloom.lab.registry import SECTIONS
from tokenloom.plotting.svg import plot_from, svg

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --ink: #1f2328; --faint: #5d6570; --line: #d8dce2; --tint: #f4f6f8;
  --good: #00684c; --bad: #b3261e; --bad-tint: #fdecea; --link: #0b57a4; }
@media (prefers-color-scheme: dark) { :root { --back: #14171c; --ink: #e6e9ee; --faint: #9aa3af; --line: #3a414b;
  --tint: #1c2027; --good: #2fc79c; --bad: #ff8a80; --bad-tint: #3a2022; --link: #7cc0ff; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { background: var(--back); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", "DejaVu Sans", sans-serif;
  max-width: 58rem; margin: 0 auto; padding: 2rem 1.25rem 5rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.5rem; margin: 3.5rem 0 0; }
h3 { font-size: 1.2rem; margin: 0; display: flex; flex-wrap: wrap; gap: .3rem .7rem; align-items: baseline; }
h3 .id { color: var(--faint); font-variant-numeric: tabular-nums; }
h3 .mark { margin-left: auto; font-size: .9rem; font-weight: 600; }
p { margin: .5rem 0; max-width: 46rem; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
.passed { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.faint, figcaption { color: var(--faint); }
.quick { border: 1px solid var(--faint); border-radius: .7rem; color: var(--faint); font-size: .8rem; font-weight: 400;
  padding: 0 .5rem; white-space: nowrap; }
.notice { background: var(--tint); border-left: 4px solid var(--faint); padding: .5rem .9rem; max-width: none; }
.notice.bad { background: var(--bad-tint); border-color: var(--bad); font-weight: 400; }
nav h4 { margin: 1.2rem 0 .2rem; font-size: 1rem; }
nav ul { list-style: none; margin: 0; padding: 0; columns: 2; column-gap: 2.5rem; font-size: .93rem; }
nav li { break-inside: avoid; display: flex; gap: .5rem; padding: .06rem 0; }
nav li .id { color: var(--faint); min-width: 2.7rem; font-variant-numeric: tabular-nums; }
nav li .quick { font-size: .72rem; margin-left: auto; align-self: center; }
article { border: 1px solid var(--line); border-radius: .6rem; margin: 1.4rem 0; padding: 1.1rem 1.3rem .7rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem .9rem; margin: .7rem 0; max-width: 52rem; }
dt { color: var(--faint); } dd { margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .8rem 0; font-size: .93rem; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; } td:last-child, th:last-child { white-space: nowrap; }
td:first-child { overflow-wrap: break-word; min-width: 6rem; }
th { color: var(--faint); font-weight: 600; border-bottom-width: 2px; }
td.short { white-space: nowrap; }
td.number { font-variant-numeric: tabular-nums; } td.measured { font-weight: 600; background: var(--tint); }
tr.bad { font-weight: 400; } tr.bad td { background: var(--bad-tint); color: var(--ink); }
figure { margin: 1.3rem 0; } figure b { display: block; margin-bottom: .3rem; }
figure svg { max-width: 100%; height: auto; display: block; } figcaption { font-size: .93rem; max-width: 46rem; }
pre { max-height: 26rem; overflow: auto; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--tint); border-left: 3px solid var(--line);
  margin: .3rem 0; padding: .6rem .9rem; font: .9rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
.foot { border-top: 1px solid var(--line); padding-top: .4rem; margin-top: 1rem; font-size: .85rem; max-width: none; }
.dark { display: none; }
@media (prefers-color-scheme: dark) { .light { display: none; } .dark { display: block; } }
@media (max-width: 44rem) { nav ul { columns: 1; } dl { grid-template-columns: 1fr; } article { padding: .8rem; } }
@media print { article { break-inside: avoid-page; border: 0; padding: 0; } }
"""
# Values up to this many characters are not wrapped.
SHORT = 22


def html(rows: Sequence[dict[str, Any]]) -> str:
    """Return the HTML page of some rows, grouped by section."""
    grouped = [
        (section, name, [row for row in rows if (row["section"] if row["section"] in SECTIONS else "own") == section])
        for section, name in SECTIONS.items()
    ]
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<link rel="icon" href="data:,"><title>The lab</title><style>{STYLE}</style></head><body>',
        f"<header><h1>The lab</h1>{_head(rows)}</header>",
        f'<nav aria-label="contents">{"".join(_contents(*group) for group in grouped if group[2])}</nav><main>',
    ]
    for section, name, members in grouped:
        if members:
            title = f'<h2 id="section-{section}">{_heading(section, name)}</h2>'
            parts.append(f"<section>{title}{''.join(map(_row, members))}</section>")
    return "\n".join([*parts, "</main></body></html>\n"])


def _heading(section: str, name: str) -> str:
    return name if section == "own" else f"{section} {name}"


def _head(rows: Sequence[dict[str, Any]]) -> str:
    bad = [row for row in rows if not row["passed"]]
    quick = sum(row["quick"] for row in rows)
    seconds = sum(row["cpu_seconds"] for row in rows)
    text = (
        f"<p>{len(rows) - len(bad)} of {len(rows)} rows are within their tolerance. Each row compares published with "
        f"measured values; all took {seconds / 60:.1f} CPU minutes.</p>"
    )
    if bad:
        links = ", ".join(f'<a href="#row-{escape(row["id"])}">{escape(row["id"])}</a>' for row in bad)
        text += f'<p class="notice bad">Out of tolerance: {links}</p>'
    if quick:
        text += (
            f'<p class="notice">{quick} of {len(rows)} rows were run in quick form: with smaller budgets and coarse '
            "bounds, which are not the published values.</p>"
        )
    return text


def _contents(section: str, name: str, rows: Sequence[dict[str, Any]]) -> str:
    marks = {True: '<span class="passed">✓</span>', False: '<span class="bad">✗</span>'}
    lines = "".join(
        f'<li>{marks[row["passed"]]}<span class="id">{escape(row["id"])}</span>'
        f'<a href="#row-{escape(row["id"])}">{escape(row["title"])}</a>{_quick(row)}</li>'
        for row in rows
    )
    return f'<h4><a href="#section-{section}">{_heading(section, name)}</a></h4><ul>{lines}</ul>'


def _quick(row: dict[str, Any]) -> str:
    return '<span class="quick">quick form</span>' if row["quick"] else ""


def _result(passed: bool | None) -> str:
    if passed is None:
        return '<span class="faint">shown</span>'
    return '<span class="passed">✓ within</span>' if passed else '<span class="bad">✗ out of tolerance</span>'


def _row(row: dict[str, Any]) -> str:
    seed = f"seed {row['seed']}" + ("" if row["default_seed"] else ", not the default: the wider tolerance applies")
    quick = " · quick form with coarse bounds" if row["quick"] else ""
    notes = "".join(f'<p class="faint">{escape(note)}</p>' for note in row["notes"])
    id = escape(row["id"])
    return (
        f'<article id="row-{id}"><h3><span class="id">{id}</span>{escape(row["title"])}{_quick(row)}'
        f'<span class="mark">{_result(row["passed"])}</span></h3>'
        f"<dl><dt>Question</dt><dd>{escape(row['question'])}</dd><dt>Protocol</dt><dd>{escape(row['protocol'])}</dd></dl>"
        f"{_table(row['measurements'])}<p>{escape(row['explanation'])}</p>{notes}"
        f"{''.join(map(_figure, row['plots']))}"
        f'<p class="faint foot">{seed}{quick} · {row["cpu_seconds"]:.1f} CPU seconds · tokenloom '
        f"{escape(row['version'])}</p></article>"
    )


def _kind(text: str) -> str:
    return "number short" if len(text) <= SHORT else "number"


def _table(measurements: Sequence[dict[str, Any]]) -> str:
    bad = '<tr class="bad">'
    cells = "".join(
        f"{bad if m['passed'] is False else '<tr>'}<td>{escape(m['name'])}</td>"
        f'<td class="{_kind(m["published"])}">{escape(m["published"])}</td>'
        f'<td class="{_kind(m["measured"])} measured">{escape(m["measured"])}</td>'
        f'<td class="number">{escape(m["tolerance"])}</td><td>{_result(m["passed"])}</td></tr>'
        for m in measurements
    )
    head = "<tr><th>value</th><th>published</th><th>measured</th><th>tolerance</th><th>result</th></tr>"
    return f'<div class="wide"><table>{head}{cells}</table></div>'


def _figure(data: dict[str, Any]) -> str:
    plot = plot_from(data)
    if plot.text:
        content = f"<pre>{escape(plot.text)}</pre>"
    else:
        content = "".join(
            f'<div class="{name}" role="img" aria-label="{escape(plot.caption)}">{svg(plot, dark=name == "dark")}</div>'
            for name in ("light", "dark")
        )
    return f"<figure><b>{escape(plot.title)}</b>{content}<figcaption>{escape(plot.caption)}</figcaption></figure>"
