"""The site of the documentation: built without a warning, whole, and without another host."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import landscape
from landscape.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
FACT = re.compile(r"\bF\d{1,2}b?\b")
pytestmark = pytest.mark.long


class Page(HTMLParser):
    """What a page is made of: its anchors, its links, and what a browser loads to show it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if "href" in values:
            (self.links if tag == "a" else self.loaded).add(values["href"])
        self.loaded |= {values[name] for name in ("src", "srcset", "data", "poster") if name in values}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site that `make docs` makes; a warning would fail it."""
    out = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--fail-on-warning", "--keep-going", "-d", str(out / ".doctrees"), "-c", "docs"]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, ".", out], cwd=ROOT, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_no_other_host_is_asked(site: Path, pages: dict[Path, Page]) -> None:
    """Neither a page nor a style sheet loads anything from elsewhere."""
    assert len(pages) > 15
    for path, page in pages.items():
        assert not [url for url in page.loaded if urlsplit(url).netloc], path
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text()), path


def test_links_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    """Every link within the site, and every anchor of a page that it names."""
    for path, page in pages.items():
        for link in page.links | page.loaded:
            url = urlsplit(link)
            if url.scheme:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            assert target.exists(), (path, link)
            if url.fragment and target in pages:
                assert unquote(url.fragment) in pages[target].anchors, (path, link)


def test_every_fact_has_its_place(site: Path, pages: dict[Path, Page]) -> None:
    """F14 and its like, in docstrings, captions, comments or tests, are anchors of the theory."""
    files = [path for room in ("landscape", "analyses", "tests") for path in (ROOT / room).rglob("*.py")]
    named = {fact for path in files for fact in FACT.findall(path.read_text())}
    assert {"F0", "F7", "F14", "F16"} <= named
    assert {fact.lower() for fact in named} <= pages[site / "docs/theory.html"].anchors


def test_every_fact_has_a_test() -> None:
    """Of its number, and each test of a number is of a fact."""
    facts = {
        fact.lower() for fact in re.findall(r"^### (F\d+b?)$", (ROOT / "docs/theory.md").read_text(), re.MULTILINE)
    }
    tests = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    assert {fact for text in tests for fact in re.findall(r"def test_(f\d+b?)(?:_f\d+b?)*[_(]", text)} == facts


def test_notebooks_are_executed(site: Path, pages: dict[Path, Page]) -> None:
    """Each has the figures and numbers that its cells make, here and now."""
    expected = {"grokking": (3, "grok_step"), "own_model": (2, "Inertia"), "sweep": (1, "certified")}
    assert {path.stem for path in (ROOT / "docs/notebooks").glob("*.md")} == expected.keys()
    for name, (figures, word) in expected.items():
        path = site / f"docs/notebooks/{name}.html"
        assert len([image for image in pages[path].loaded if image.endswith(".png")]) == figures, name
        assert word in re.sub(r"(?s)<div class=\"cell_input.*?</div>", "", path.read_text())


def test_reference_is_complete(site: Path, pages: dict[Path, Page]) -> None:
    """Every public name has its entry, every command its help."""
    assert {f"landscape.{name}" for name in landscape.__all__ if name != "__version__"} <= pages[
        site / "docs/api.html"
    ].anchors
    assert set(COMMANDS) <= pages[site / "docs/cli.html"].anchors
