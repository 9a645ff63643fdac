"""What a reader sees of an HTML page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

NUMBER = re.compile(r"\d[\d,.]*|∞")


def unlinked(text: str) -> str:
    """A page without its links, whose texts stay."""
    return re.sub(r"</?a\b[^>]*>", "", text)


class Loose(HTMLParser):
    """What of a page is no part of a link: texts of the cells of tables, and all numbers outside of figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.numbers: list[str] = []
        self.linked: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # A cell of words has numbers in its sentences alone.
        if tag == "td":
            tag = "sentence" if dict(attrs).get("class") == "said" else tag
            self.cells.append("")
        if tag in ("a", "td", "sentence", "style", "script", "title", "svg"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "td" and "sentence" in self.open:
            tag = "sentence"
        if tag in self.open:
            del self.open[self.open.index(tag) :]

    def handle_data(self, data: str) -> None:
        if {"style", "script", "title", "svg"} & {*self.open}:
            return
        if "a" in self.open:
            self.linked += NUMBER.findall(data)
            return
        self.numbers += NUMBER.findall(data)
        if "td" in self.open:
            self.cells[-1] += data


class Reader(HTMLParser):
    """Words and numbers outside of what is folded, summaries among them, ids, links, elements with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.folded = self.silent = self.summary = 0
        self.feed(text)
        self.ids = [attributes["id"] for _, attributes in self.found if "id" in attributes]
        self.links = [attributes for tag, attributes in self.found if tag == "a"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.folded += tag == "details"
        self.summary += tag == "summary"
        self.silent += tag in ("style", "script", "title")

    def handle_endtag(self, tag: str) -> None:
        self.folded -= tag == "details"
        self.summary -= tag == "summary"
        self.silent -= tag in ("style", "script", "title")

    def handle_data(self, data: str) -> None:
        if self.folded - self.summary <= 0 and not self.silent:
            self.words += filter(re.compile(r"\w").search, data.split())
