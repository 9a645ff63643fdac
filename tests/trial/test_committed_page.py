"""The committed page in headless Chromium: what a reader's browser makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.browser import CHROMIUM, Browser, browser

PAGE = Path(__file__).parents[2] / "reports/reference/index.html"
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1300, 420])
def test_it_fits_with_everything_unfolded(width: int, dark: bool, opened: Browser) -> None:
    """Nothing is wider than the screen but what scrolls by itself, nothing is complained of."""
    opened.open(PAGE, width, dark=dark)
    opened.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.complaints == []


def test_links_lead_somewhere_and_the_film_moves(opened: Browser) -> None:
    """Each entry of the contents to an element, each link to a file that is there; the slider to each step."""
    opened.open(PAGE, 1300)
    links = opened.evaluate("[...document.querySelectorAll('a')].map(one => one.getAttribute('href'))")
    for link in set(links):
        path, _, part = link.partition("#")
        if not path:
            assert opened.evaluate(f"document.getElementById('{part}') !== null"), link
        elif not path.startswith("https:"):
            assert (PAGE.parent / path).exists(), link
    told = "document.getElementById('now').textContent"
    move = "slider.value = {}; slider.dispatchEvent(new Event('input')); " + told
    steps = [opened.evaluate(move.format(at)) for at in range(int(opened.evaluate("slider.max")) + 1)]
    assert len(set(steps)) == len(steps) > 5
    assert opened.complaints == []
