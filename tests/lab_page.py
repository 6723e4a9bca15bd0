"""Checks of every report of the lab: self-contained, balanced tags, limited size."""

import re
from html.parser import HTMLParser
from typing import Any

from tokenloom.lab.registry import experiments

LIMIT = 15_000_000
# XML namespaces, which are not fetched.
NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
REFERENCES = ("src", "srcset", "href", "xlink:href", "data", "action", "poster")


class Page(HTMLParser):
    """A parser that checks that tags are balanced, and collects ids and external references."""

    VOID = frozenset({"meta", "link", "br", "img", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in REFERENCES and not str(value).startswith(("#", "data:")):
                self.fetched.append(value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_page(text: str, rows: int) -> Page:
    """Check the report of some rows, with their part of the size limit; return the parsed page."""
    page = Page()
    page.feed(text)
    assert not page.open
    assert not page.fetched
    assert "script" not in page.tags
    assert set(re.findall(r"\w+://[^\s\"'<>)]*", text)) <= NAMESPACES
    assert not re.search(r"@import|url\((?!#)", text)
    assert len(text.encode()) < rows * LIMIT / len(experiments())
    return page
