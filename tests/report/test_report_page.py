"""The page of a report: one file that stands alone, in a browser at two widths, light and dark."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TINY
from helpers.browser import CHROMIUM, Browser, browser
from helpers.hessians import analyse

import landscape
from landscape import HessianConfig, write_report
from landscape import geometry as measure_geometry
from landscape.report.figures import FIGURES
from landscape.report.style import INK

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def page(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of `tiny_run`, its Hessians and its geometry."""
    folder = tmp_path_factory.mktemp("page")
    for name in ("tiny.h5", "tiny.hessian.h5"):
        shutil.copy(tiny_run.with_name(name), folder)
    measure_geometry(folder / "tiny.h5", quiet=True)
    return write_report([folder / "tiny.h5"], folder / "r", quiet=True, formats="png")


@pytest.fixture(scope="module")
def shown(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The page in a browser. Whatever a test does, nothing is complained of, and nothing is loaded."""
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.open(page, 1300)
        yield opened
        assert opened.complaints == []


def test_it_stands_alone(page: Path) -> None:
    """Links lead to its own parts and to files beside it; ids are unique; every figure has its files."""
    text = page.read_text()
    assert not re.search(r'(src|href)="(https?:)?//', text)
    for target in re.findall(r'<a href="([^#"]+)"', text):
        assert (page.parent / target).stat().st_size > 0
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(ids)
    drawn = {path.stem for path in (page.parent / "figures").glob("*.svg")}
    assert 'href="tables/summary.csv"' in text
    assert drawn == {path.stem for path in (page.parent / "figures").glob("*.csv")}
    assert drawn == {path.stem for path in (page.parent / "figures").glob("*.png")}
    assert {draw.__name__ for draw in FIGURES} - drawn <= {"recorded_metrics", "ratios", "embedding_norms"}


def test_its_table_is_the_files(page: Path, tiny_run: Path) -> None:
    """Every step and block, with its eigenvalues and count."""
    rows = re.findall(r"<tr>((?:<td>[^<]*</td>)+)</tr>", page.read_text())
    cells = [re.findall(r"<td>([^<]*)</td>", row) for row in rows]
    with landscape.open(tiny_run.with_name("tiny.hessian.h5")) as file:
        data = file.to_xarray()
        for row in cells:
            at = data.sel(step=int(row[0]), block=row[1])
            ends = [f"{float(at['eigenvalues'].sel(end=end, rank=0)):.4g}" for end in ("lowest", "highest")]
            assert [cell.replace("−", "-").rstrip("*") for cell in (row[2], row[5])] == ends
            lowest = float(at["eigenvalues"].sel(end="lowest", rank=0))
            depths = [f"{lowest / float(unit):.3g}" for unit in (at["operator_norm"], TINY.weight_decay)]
            assert [cell.replace("−", "-") for cell in row[3:5]] == depths
            assert row[6].replace(",", "") == f"{int(at['inertia_lower'])}"
        assert len(cells) == data.sizes["step"] * data.sizes["block"]


def test_an_analysis_of_one_step_has_no_curves_over_steps(tiny_run: Path, tmp_path: Path) -> None:
    """Its eigenvalues are in a table that is not folded, and no sentence speaks of more steps."""
    run = shutil.copy(tiny_run, tmp_path / "one.h5")
    config = HessianConfig(blocks=("E", "W", "E,W"), steps="20", k=1, probes=2, density=True, device="cpu")
    analyse(run, config, quiet=True)
    folder = write_report([run], tmp_path / "r", quiet=True).parent
    drawn = {path.stem for path in (folder / "figures").glob("*.svg")}
    of_curvature = {draw.__name__ for draw in FIGURES if draw.__module__.endswith(("curvature", "overview"))}
    assert drawn & of_curvature == {"spectra", "densities"}
    text = (folder / "report.html").read_text()
    assert "<details open>" in text
    assert "This is a point on a training path" in text
    assert "last analysed step" not in text


def test_no_figure_has_ink_that_vanishes_in_the_dark(page: Path) -> None:
    """Text and axes are drawn in the colour of the page, or of the reader's scheme where a figure stands alone."""
    for path in (page.parent / "figures").glob("*.svg"):
        text = path.read_text()
        assert "prefers-color-scheme: dark" in text
        assert text.count(INK) == 1
        assert not re.search(r"(fill|stroke): ?(#000000|black)", text), path
        for words in re.findall(r"<text [^>]*>", text):
            assert "currentColor" in words or path.stem == "densities", (path, words)


@needs_browser
def test_figures_are_legible_on_a_phone(page: Path, tmp_path: Path) -> None:
    """Panels and legend entries are shown one by one there, a point as a pixel at least."""
    with browser(tmp_path) as opened:
        opened.open(page, 400)
        scale = "e => e.getBoundingClientRect().width / e.viewBox.baseVal.width"
        scales = opened.evaluate(f"[...document.querySelectorAll('.narrow svg')].map({scale})")
        assert min(scales) >= 0.99
        shown = "[...document.querySelectorAll('svg.whole')].filter(e => e.getBoundingClientRect().width > 0).length"
        assert opened.evaluate(shown) == 0
        opened.open(page, 1300)
        assert opened.evaluate(shown) == opened.evaluate("document.querySelectorAll('svg.whole').length") > 5


@needs_browser
@pytest.mark.long
def test_it_fits(page: Path, shown: Browser) -> None:
    """Nothing overflows on a phone, dark differs from light in figures too, and the contents lead to their parts."""
    inks = set()
    for width, dark in ((420, False), (420, True), (1300, True), (1300, False)):
        shown.open(page, width, dark=dark)
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('main *')].filter(e => !e.closest('.wide, svg') && "
        assert shown.evaluate(f"{wide} e.getBoundingClientRect().right > {width + 1}).length") == 0
        inks.add((dark, shown.evaluate("getComputedStyle(document.querySelector('svg text')).fill")))
    assert len(inks) == 2
    assert len({ink for _, ink in inks}) == 2
    missing = "[...document.querySelectorAll('nav a')].filter(a => !document.querySelector(a.getAttribute('href')))"
    assert shown.evaluate(f"{missing}.length") == 0


@needs_browser
def test_it_can_be_read_aloud(shown: Browser) -> None:
    """Figures have a text, tables heads, headings one h1, and the page a language."""
    assert shown.evaluate("document.documentElement.lang") == "en"
    assert shown.evaluate("document.querySelectorAll('h1').length") == 1
    assert shown.evaluate("[...document.querySelectorAll('svg')].every(e => e.ariaLabel && e.role === 'img')")
    assert shown.evaluate("[...document.querySelectorAll('th')].every(e => e.scope)")


@needs_browser
def test_no_label_of_a_figure_is_cut(shown: Browser) -> None:
    """All texts lie within their figure, in the fonts of the reader."""
    cut = (
        "[...document.querySelectorAll('svg')].flatMap(svg => { const box = svg.getBoundingClientRect(); "
        "return [...svg.querySelectorAll('text')].map(e => [e.textContent.trim(), e.getBoundingClientRect()])"
        ".filter(([, r]) => Math.min(r.left - box.left, box.right - r.right, r.top - box.top) < -1)"
        ".map(([text]) => text); })"
    )
    shown.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert shown.evaluate(cut) == []


@needs_browser
def test_tables_sort(shown: Browser) -> None:
    """By number, both ways."""
    shown.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    column = (
        "[...document.querySelector('table.sortable').tBodies[0].rows].map(row => parseFloat(row.cells[5].textContent))"
    )
    head = "document.querySelectorAll('table.sortable th')[5].querySelector('button').click()"
    shown.evaluate(head)
    ascending = shown.evaluate(column)
    assert ascending == sorted(ascending)
    shown.evaluate(head)
    assert shown.evaluate(column) == ascending[::-1]


def test_a_report_needs_no_torch() -> None:
    """It reads files, and starts without the seconds that torch takes."""
    code = "import sys, landscape.report.page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
