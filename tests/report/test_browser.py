"""The page of a report in a browser: alone, at two widths, light and dark, with all that moves."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.browser import CHROMIUM, Browser, browser
from helpers.hessians import HessianReader

from landscape import HessianConfig, analyse, measure_geometry, open_geometry
from landscape.report.page import write_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
EVENT = "(e => { e.value = %s; e.dispatchEvent(new Event('%s')); })(document.getElementById('%s'))"


@pytest.fixture(scope="module")
def page(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of `tiny_run`, its Hessians and its geometry."""
    folder = tmp_path_factory.mktemp("page")
    for name in ("tiny.h5", "tiny.hessian.h5"):
        shutil.copy(tiny_run.with_name(name), folder)
    measure_geometry(folder / "tiny.h5", quiet=True)
    return write_report([folder / "tiny.h5"], folder / "r", quiet=True)


@pytest.fixture(scope="module")
def shown(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The page, wide and light. Whatever a test does, nothing is complained of."""
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.open(page, 1300)
        yield opened
        assert opened.complaints == []


def cells(shown: Browser, table: str, column: int) -> list[str]:
    """The texts of a column."""
    rows = f"[...document.querySelector('{table}').tBodies[0].rows]"
    return list(shown.evaluate(f"{rows}.map(row => row.cells[{column}].textContent)"))


def film(shown: Browser) -> dict[str, Any]:
    """What the page holds of its run, as JSON."""
    (found,) = json.loads(shown.evaluate("document.getElementById('films').textContent")).values()
    return dict(found)


@pytest.mark.long
def test_it_fits(page: Path, shown: Browser) -> None:
    """Nothing overflows on a phone, dark differs from light, and the contents lead to what they name."""
    backgrounds = set()
    for width, dark in ((420, False), (420, True), (1300, True), (1300, False)):
        shown.open(page, width, dark=dark)
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('main *')].filter(e => !e.closest('.wide, svg') && "
        assert shown.evaluate(f"{wide} e.getBoundingClientRect().right > {width + 1}).length") == 0
        backgrounds.add((dark, shown.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert len(backgrounds) == 2
    missing = "[...document.querySelectorAll('nav a')].filter(a => !document.querySelector(a.getAttribute('href')))"
    assert shown.evaluate(f"{missing}.length") == 0
    order = "['h1', '#film', '#coupling_ratios', '#measurements', '#notes', '#facts']"
    tops = shown.evaluate(f"{order}.map(name => document.querySelector(name).getBoundingClientRect().top)")
    assert tops == sorted(tops)


def test_step_0_is_apart_from_step_1(shown: Browser) -> None:
    """As far as the labels are, on every axis of steps."""
    places = "[0, 1, 10].map(step => place(films[chosen.value], step))"
    texts = "[...document.querySelectorAll('#accuracy text')].slice(3, 6)"
    found, named = shown.evaluate(f"[{places}, {texts}.map(one => [one.textContent, +one.getAttribute('x')])]")
    assert named == [[text, x] for text, x in zip(("0", "1", "10"), found, strict=True)]
    assert found[1] - found[0] > 20


def test_events_are_named_above_the_curves(shown: Browser) -> None:
    """Whatever the run: the names come last, over a border in the colour of the card."""
    last = "[...document.getElementById('accuracy').children].slice(-2)"
    named = f"{last}.map(node => [node.textContent, getComputedStyle(node).stroke])"
    card = "getComputedStyle(document.querySelector('figure')).backgroundColor"
    shown.evaluate(
        "kept = {...films[chosen.value]}; Object.assign(films[chosen.value], {memorised: 2, grokked: 5}); show()"
    )
    found, behind = shown.evaluate(f"[{named}, {card}]")
    shown.evaluate("Object.assign(films[chosen.value], kept); show()")
    assert found == [["memorised", behind], ["grokked", behind]]


def test_the_slider_moves_through_the_steps(shown: Browser, tiny_hessian: HessianReader) -> None:
    """Table and spectra are those of the Hessian file at its step."""
    for at, step in enumerate(tiny_hessian.steps):
        shown.evaluate(EVENT % (at, "input", "step"))
        assert shown.evaluate("document.getElementById('now').textContent") == f"step {step}"
        row = tiny_hessian.row(step)
        lowest = dict(zip(cells(shown, "table", 0), cells(shown, "table", 1), strict=True))
        assert lowest.keys() == set(tiny_hessian.blocks)
        for i, block in enumerate(tiny_hessian.blocks):
            assert float(lowest[block].replace("−", "-")) == pytest.approx(row["eigenvalues"][i, 0, 0], rel=6e-3)
            held = film(shown)["steps"][at]["blocks"][block]
            assert held["index"] == row["inertia"][i, 0]
            spectrum = tiny_hessian.spectra(step)[block]
            np.testing.assert_allclose([held["spectrum"][0], held["spectrum"][-1]], spectrum[[0, -1]], rtol=1e-3)


def axis(shown: Browser, across: bool) -> np.ndarray:
    """Places and numbers of the labels of an axis of the density, as a reader sees them."""
    texts = "[...document.querySelectorAll('#density text:not(.event)')]"
    told = shown.evaluate(f"{texts}.map(one => [one.textContent, ...['x', 'y'].map(name => +one.getAttribute(name))])")
    foot = max(y for _, _, y in told)
    numbers = [(x if across else y - 4, float(text.replace("−", "-"))) for text, x, y in told if (y == foot) == across]
    assert len(numbers) > 2
    return np.array(numbers).T


def read_off(shown: Browser, path: str) -> np.ndarray:
    """Eigenvalues and densities along a path of the chart, by the labels of its axes."""
    paths = "[...document.querySelectorAll('#density path')]"
    points = re.split("[MLZ]", shown.evaluate(f"{paths}.{path}.getAttribute('d')"))
    x, y = np.array([[float(part) for part in point.split()] for point in points if point]).T
    (along, eigenvalues), (up, powers) = axis(shown, True), axis(shown, False)
    return np.array(
        [np.polyval(np.polyfit(along, eigenvalues, 1), x), 10 ** np.polyval(np.polyfit(up, np.log10(powers), 1), y)]
    )


def told_of(shown: Browser, truth: Mapping[str, np.ndarray]) -> dict[str, str]:
    """What the chart tells of each block in its middle, at an eigenvalue of the file, and so are the densities."""
    told = shown.evaluate("charts.density.tell(films[chosen.value], 210)")
    first, *lines = [line.replace("−", "-") for line in told]
    eigenvalue = float(first.removeprefix("eigenvalue "))
    at = np.abs(truth["eigenvalue"] - eigenvalue).argmin()
    assert eigenvalue == pytest.approx(truth["eigenvalue"][at], rel=6e-3)
    told = dict(line.split(": ") for line in lines)
    for block, text in told.items():
        y, _, error = text.partition(" ± ")
        assert y == "–" or float(y) == pytest.approx(truth[block][at], rel=6e-3)
        assert not error or float(error) == pytest.approx(truth[f"{block}_error"][at], rel=6e-3)
    return told


def check(curve: np.ndarray, grid: np.ndarray, truth: np.ndarray, is_seen: np.ndarray) -> None:
    """A curve of the chart is the true one, in places between its points, too, where both sides of them are seen."""
    x, y = curve
    wanted = np.interp(x, grid, np.log10(np.maximum(truth, 1e-300)))
    at = np.interp(x, grid, is_seen) == 1
    np.testing.assert_allclose(np.log10(y[at]), wanted[at], atol=0.15)
    assert np.ptp(x[at]) > 0.8 * np.ptp(grid[is_seen])


def test_the_density_is_that_of_the_file(shown: Browser, tiny_hessian: HessianReader) -> None:
    """As far as it goes down from the highest peak, with the width of its smoothing."""
    for at, step in enumerate(tiny_hessian.steps):
        shown.evaluate(EVENT % (at, "input", "step"))
        truth = tiny_hessian.densities(step)
        least = 2e-6 * max(truth[block].max() for block in tiny_hessian.blocks)
        for block in tiny_hessian.blocks:
            curve = read_off(shown, f"find(path => path.textContent === 'density of {block}')")
            check(curve, truth["eigenvalue"], truth[block], truth[block] > least)
        told = told_of(shown, truth)
        assert told.keys() == set(tiny_hessian.blocks)
        assert not any("±" in text for text in told.values()), "all of them are exact"
        width = shown.evaluate("document.querySelector('#density .event').textContent").rpartition(" ")[2]
        assert float(width) == pytest.approx(truth["width"], rel=6e-3)


def test_the_band_about_a_density_is_its_error(page: Path, shown: Browser, tmp_path: Path) -> None:
    """Where it was estimated by products. What has no density, or none that is seen, has no curve."""
    run = tmp_path / "tiny.h5"
    shutil.copy(page.parent.parent / "tiny.h5", run)
    wanted = HessianConfig(
        steps="0,60",
        blocks=("E", "W", "E,W"),
        k=1,
        method="lanczos",
        probes=2,
        probe_steps=12,
        max_hvps=60,
        device="cpu",
    )
    analyse(run, wanted, quiet=True)
    shown.open(write_report([run], tmp_path / "r", quiet=True), 1300)
    result = HessianReader(tmp_path / "tiny.hessian.h5")
    for at, step in enumerate(result.steps):
        shown.evaluate(EVENT % (at, "input", "step"))
        truth = result.densities(step)
        assert "±" in told_of(shown, truth)["E,W"]
        colour = film(shown)["colours"]["E,W"]
        band = read_off(shown, f"find(path => path.getAttribute('fill') === '{colour}')")
        for sign, side in zip((1, -1), np.split(band, 2, axis=1), strict=True):
            y, error = truth["E,W"], truth["E,W_error"]
            # Where an error is as large as its density, the lower edge falls without end.
            is_seen = (error < 0.8 * y) & (y > 1e-3 * y.max())
            check(side[:, ::sign], truth["eigenvalue"], y + sign * error, is_seen)
    blocks = "films[chosen.value].steps[1].blocks"
    shown.evaluate(f"{blocks}['W'].density = null; show()")
    tell, text = "charts.density.tell(films[chosen.value], 210)", "document.querySelector('#density').textContent"
    assert [line.partition(":")[0] for line in shown.evaluate(tell)[1:]] == ["E", "E,W"]
    path = "[...document.querySelectorAll('#density path')].find(path => path.textContent === 'density of E,W')"
    drawn = shown.evaluate(f"{path}.getAttribute('d')")
    assert drawn.count("M") > 1, "between Ritz values nothing is seen"
    assert not re.search(r" 184\.0L[^ ]* 184\.0", drawn), "a line along the foot"
    shown.evaluate(f"{blocks}['E'].density.width = 1e9; show()")
    assert [line.partition(":")[0] for line in shown.evaluate(tell)[1:]] == ["E,W"]
    assert shown.evaluate(text).endswith("do not read an index from itwithin σ of 0: E")
    shown.evaluate("document.querySelectorAll('#toggles input').forEach(one => one.click())")
    assert shown.evaluate(text) == "no block shown has a density at this step"
    assert shown.evaluate(tell) == ["no density"]
    shown.evaluate("document.querySelector('#toggles input[value=\"E\"]').click()")
    assert shown.evaluate(text) == "within σ = 1.00e+9 of 0: E"
    shown.open(page, 1300)


def test_the_circle_is_that_of_the_file(page: Path, shown: Browser, tiny_hessian: HessianReader) -> None:
    """Each number lies at the slider's step where the geometry file has it, to a scale and the screen's downward y."""
    points = "[...document.querySelectorAll('#circle circle')]"
    with open_geometry(page.parent.parent / "tiny.geometry.h5") as data:
        for at, step in enumerate(tiny_hessian.steps):
            shown.evaluate(EVENT % (at, "input", "step"))
            here = data.sel(step=step)
            told = shown.evaluate("document.querySelector('#circle text').textContent")
            assert told.startswith(f"frequency {int(here['plane_frequency'][0])}, ")
            names = shown.evaluate(f"{points}.map(point => point.textContent)")
            assert [int(name) for name in names] == data["number"].values.tolist()
            place = shown.evaluate(
                f"{points}.map(point => [+point.getAttribute('cx') - 210, 97 - +point.getAttribute('cy')])"
            )
            z = here["plane_position"].values[0]
            np.testing.assert_allclose(np.array(place) / np.abs(place).max(), z / np.abs(z).max(), atol=2e-3)
        curves = len(film(shown)["frequencies"]["curves"])
        assert curves == (data["frequency_in_use"].values[-1] == 1).sum()
    assert shown.evaluate("document.querySelectorAll('#frequencies path').length") == curves + 1


def test_no_label_of_a_chart_is_cut_or_covered(shown: Browser) -> None:
    """Where the last power of ten of the steps lies beside the edge, and where the circle is."""
    steps = "films[chosen.value].accuracy.step"
    last = shown.evaluate(f"{steps}.at(-1)")
    shown.evaluate(f"{steps}[{steps}.length - 1] = 105")
    shown.evaluate(EVENT % (0, "input", "step"))
    labels = "[...document.querySelectorAll('.figures svg text')].filter(label => label.textContent"
    assert shown.evaluate(f"{labels} === '100').length") > 1
    right = "label.getBoundingClientRect().right > label.ownerSVGElement.getBoundingClientRect().right"
    assert shown.evaluate(f"{labels} && {right}).length") == 0
    title, points = "document.querySelector('#circle text')", "[...document.querySelectorAll('#circle circle')]"
    below = f"{points}.filter(p => p.getBoundingClientRect().bottom > {title}.getBoundingClientRect().top)"
    assert shown.evaluate(f"{below}.length") == 0
    shown.evaluate(f"{steps}[{steps}.length - 1] = {last}")
    shown.evaluate(EVENT % (0, "input", "step"))


def test_a_step_without_a_number_breaks_the_line(page: Path, shown: Browser, tmp_path: Path) -> None:
    """An index of 0 and rounding noise have no place on a log axis; what has not converged is marked."""
    text, data = page.read_text(), film(shown)
    change = data["steps"][1]["blocks"]["E,W"]
    change |= {"index": 0, "lowest": -1e-17, "is_sure": False, "is_kappa_bound": True}
    begin = text.index('id="films">') + len('id="films">')
    other = tmp_path / "other.html"
    end = text.index("</script>", begin)
    other.write_text(text[:begin] + json.dumps({data["run"]: data}).replace("<", r"\u003c") + text[end:])
    shown.open(other, 1300)
    for chart, label in (("index", "index of"), ("ends", "depth of")):
        paths = f"[...document.querySelectorAll('#{chart} path')]"
        for block, parts in (("E,W", 2), ("W,V", 1)):
            found = f"{paths}.find(path => path.textContent === '{label} {block}').getAttribute('d')"
            assert shown.evaluate(found).count("M") == parts
    shown.evaluate(EVENT % (1, "input", "step"))
    blocks = cells(shown, "table", 0)
    row = {name: cells(shown, "table", i)[blocks.index("E,W")] for i, name in ((1, "lowest"), (4, "kappa"))}
    assert row["lowest"].endswith("*")
    assert row["kappa"].startswith("≥ ")
    assert not cells(shown, "table", 1)[blocks.index("W,V")].endswith("*")
    shown.open(page, 1300)


def test_a_block_can_be_hidden(shown: Browser) -> None:
    count = "document.querySelectorAll('#ends path').length"
    before, boxes = shown.evaluate(count), "document.querySelectorAll('#toggles input')"
    names = cells(shown, "table", 0)
    shown.evaluate(f"{boxes}[0].click()")
    assert cells(shown, "table", 0) == names[1:]
    assert shown.evaluate(count) == before - 2
    shown.evaluate(f"{boxes}[0].click()")
    assert cells(shown, "table", 0) == names


def test_a_chart_tells_its_numbers_and_takes_clicks(shown: Browser) -> None:
    """The numbers of the nearest step stand beside the pointer; a click moves the slider there."""
    shown.evaluate(EVENT % (0, "input", "step"))
    right = "{clientX: box.right - 4, clientY: box.top + 40, bubbles: true}"
    send = (
        "(() => { const box = %s.getBoundingClientRect(); %s.dispatchEvent(new PointerEvent('%s', " + right + ")); })()"
    )
    tip = "document.getElementById('tip')"
    lines = {"accuracy": 3, "frequencies": len(film(shown)["frequencies"]["curves"]) + 2, "circle": 2}
    for chart in ("accuracy", "spectrum", "density", "ends", "index", "kappa", *list(lines)[1:]):
        there = f"document.getElementById('{chart}')"
        shown.evaluate(send % (there, there, "pointermove"))
        assert not shown.evaluate(f"{tip}.hidden")
        told = shown.evaluate(f"{tip}.textContent").splitlines()
        first = {"circle": "step 0", "spectrum": "share to the left", "density": "eigenvalue "}.get(chart, "step 60")
        assert told[0].startswith(first)
        assert len(told) == lines.get(chart, len(film(shown)["colours"]) + 1)
        shown.evaluate(send % (there, there, "pointerleave"))
        assert shown.evaluate(f"{tip}.hidden")
    shown.evaluate("document.getElementById('index').dispatchEvent(new MouseEvent('click', {clientX: 9999}))")
    assert shown.evaluate("document.getElementById('now').textContent") == "step 60"


def test_a_rounded_share_is_not_exact(shown: Browser) -> None:
    """0 % and 100 % are those alone."""
    told = shown.evaluate("[0, 0.0004, 0.0005, 0.4, 0.9994, 0.9996, 1].map(share)")
    assert told == ["0.0 %", "< 0.1 %", "0.1 %", "40.0 %", "99.9 %", "> 99.9 %", "100.0 %"]


def test_tables_sort(shown: Browser) -> None:
    """By number, both ways, with what is not known at the end; words by letter."""
    table = "details table.sortable"
    for column in (0, 2, 6):
        head = f"document.querySelectorAll('{table} th')[{column}]"
        for sign, state in ((1, "ascending"), (-1, "descending")):
            shown.evaluate(f"{head}.firstChild.click()")
            assert shown.evaluate(f"{head}.ariaSort") == state
            found = cells(shown, table, column)
            known = [
                float(text.split()[0].lstrip("<>=")) for text in found if text[0] not in "-" or text[1:2].isdigit()
            ]
            assert known == sorted(known, reverse=sign < 0)
            assert len(set(found[len(known) :])) <= 1
    shown.evaluate(f"document.querySelectorAll('{table} th')[1].firstChild.click()")
    words = cells(shown, table, 1)
    assert words == sorted(words, key=lambda word: (word.lower(), word))
