"""What a reader sees of an HTML page."""

from __future__ import annotations

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Text outside of what is folded, ids, links, and elements with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.folded = self.silent = 0
        self.feed(text)
        self.ids = [attributes["id"] for _, attributes in self.found if "id" in attributes]
        self.links = [attributes for tag, attributes in self.found if tag == "a"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.folded += tag == "details"
        self.silent += tag in ("style", "script", "title")

    def handle_endtag(self, tag: str) -> None:
        self.folded -= tag == "details"
        self.silent -= tag in ("style", "script", "title")

    def handle_data(self, data: str) -> None:
        if not self.folded and not self.silent:
            self.words += data.split()
