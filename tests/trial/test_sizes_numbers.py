"""The figure of what changes with size, read back from its pixels, against the committed tables."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

REFERENCE = Path(__file__).parents[2] / "reports/reference"
TAG = "{http://www.w3.org/2000/svg}"
COLUMNS = {"d": "embed_dim", "h": "hidden", "p": "p", "tokens": "tokens"}
BASE = {"d": 16, "h": 64, "p": 59, "tokens": 4}
Panel = Mapping[float, list[float]]
"""A number a seed, by the value of what was varied."""


def rows(name: str) -> list[dict[str, str]]:
    with (REFERENCE / "quick" / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def by_hand() -> dict[tuple[str, str], Panel]:
    """The numbers of each series and column, from the tables alone."""
    at = {(row["study"], row["case"], row["seed"]): row for row in rows("runs.csv")}
    blocks: dict[tuple[str, str, str], dict[str, dict[str, str]]] = defaultdict(dict)
    for row in rows("curvature.csv"):
        if row["analysis"] == "plateau":
            blocks[row["study"], row["case"], row["seed"]][row["block"]] = row
    found: dict[tuple[str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run, row in at.items():
        study, case, _ = run
        setting = {name: int(row[column]) for name, column in COLUMNS.items()}
        is_base, is_two = (study, case) == ("constants", "four"), (study, case) == ("curvature", "c1")
        if not (is_base or is_two or study in ("sizes", "gauge")):
            continue
        columns = [name for name in COLUMNS if is_base or setting[name] != BASE[name]]
        assert is_base or len(columns) == 1, run
        there = blocks[run]
        depth = {block: float(one["lowest"]) for block, one in there.items()}
        numbers = {}
        if study != "gauge":
            numbers["constant"] = float(row["prop41_constant"])
            numbers["E,W"] = depth["E,W"] / depth["W,V"]
            numbers["E[operands],W"] = depth["E,W" if is_two else "E[operands],W"] / depth["W,V"]
        if study != "sizes" and there:
            pair = there["E,W"]
            assert pair["index_level"] == "certified"
            numbers["gauge"] = 1 - float(pair["index_gauge_free"]) / float(pair["index"])
        for name, y in numbers.items():
            for column in columns:
                found[name, column][setting[column]].append(y)
    return dict(found)


def floats(element: ElementTree.Element, *names: str) -> list[float]:
    return [float(element.attrib[name]) for name in names]


@pytest.fixture(scope="module")
def drawn() -> dict[tuple[str, str], tuple[Panel, Panel]]:
    """Dots and line of each series and column, by the labels of the axes."""
    root = ElementTree.parse(REFERENCE / "figures/quick-sizes.svg").getroot()
    below = [text for text in root if text.tag == f"{TAG}text"]
    names = [text for text in below if not (text.text or "").replace(".", "").isdigit()]
    assert [(text.text or "").partition(",")[0].split()[0] for text in names] == list(COLUMNS)
    centres = [float(text.attrib["x"]) for text in names]
    half = (centres[1] - centres[0]) / 2
    ticks: dict[str, list[tuple[float, float]]] = defaultdict(list)
    column = lambda x: next(name for name, at in zip(COLUMNS, centres, strict=True) if abs(x - at) < half)  # noqa: E731
    for text in below:
        if text not in names:
            x = float(text.attrib["x"])
            ticks[column(x)].append((x, math.log(float(text.text or ""))))
    found = {}
    for row, of in zip(root.findall(f"{TAG}g"), (("E,W", "E[operands],W"), ("gauge",), ("constant",)), strict=True):
        labels = [text.text or "" for text in row.findall(f"{TAG}text")[1:]]
        lines = [float(line.attrib["y1"]) for line in row.findall(f"{TAG}line")[: len(labels)]]
        is_share = labels[0].endswith("%")
        values = [float(label.rstrip("%")) / 100 if is_share else math.log(float(label)) for label in labels]
        slope, start = np.polyfit(lines, values, 1)
        for i, series in enumerate(row.findall(f"{TAG}g")):
            dots = [floats(dot, "cx", "cy") for dot in series.findall(f"{TAG}circle")]
            path = series.findall(f"{TAG}path")[0].attrib["d"].removeprefix("M").split("L")
            line = [[float(number) for number in point.split()] for point in path]
            where = column(dots[0][0])
            across = np.polyfit(*zip(*ticks[where], strict=True), 1)
            both: list[dict[float, list[float]]] = [defaultdict(list), defaultdict(list)]
            for points, by in zip((dots, line), both, strict=True):
                for x, y in points:
                    level = slope * y + start
                    value = round(math.exp(np.polyval(across, x)))
                    by[value].append(level if is_share else math.exp(level))
            found[of[i % len(of)], where] = both[0], both[1]
    return found


def test_each_dot_is_a_seed_and_each_line_joins_medians(
    by_hand: dict[tuple[str, str], Panel], drawn: dict[tuple[str, str], tuple[Panel, Panel]]
) -> None:
    assert drawn.keys() == by_hand.keys()
    for panel, values in by_hand.items():
        dots, line = drawn[panel]
        assert dots.keys() == line.keys() == values.keys(), panel
        for value, ys in values.items():
            np.testing.assert_allclose(sorted(dots[value]), sorted(ys), rtol=5e-3, atol=5e-3, err_msg=str(panel))
            np.testing.assert_allclose(line[value], [statistics.median(ys)], rtol=5e-3, atol=5e-3, err_msg=str(panel))


def test_the_title_names_what_moves_each_quantity_most(by_hand: dict[tuple[str, str], Panel]) -> None:
    report = (REFERENCE / "report.md").read_text(encoding="utf-8")
    title = next(line for line in report.splitlines() if line.startswith("## ") and "most with" in line)
    assert title.startswith("## At quick, ")
    words = {"d": "embedding's width d", "h": "hidden width h", "p": "modulus p", "tokens": "input form"}
    for name, what in {"E,W": "the depth of E,W", "gauge": "gauge's share", "constant": "constant of C7"}.items():
        changes = {}
        for column in COLUMNS:
            middles = [statistics.median(ys) for ys in by_hand[name, column].values()]
            change = max(middles) - min(middles) if name == "gauge" else max(middles) / min(middles)
            changes[column] = change
        most = words[max(changes, key=lambda column: changes[column])]
        assert any(what in part and part.endswith(most) for part in title.split("; ")), (name, changes)
