"""Figures of the trial's page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import pandas as pd
import pytest
from page_figures import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, curves, shares, training

NEVER = math.nan


def runs(memorised: list[float], grokked: list[float], watched: int = 10_000) -> pd.DataFrame:
    return pd.DataFrame({"memorised": memorised, "grokked": grokked, "watched": watched})


CASES = {
    "a": (runs([100, 200, 400], [1000, NEVER, 3000]), "#d55e00"),
    "b": (runs([100, NEVER, NEVER], [NEVER, NEVER, NEVER]), "#0173b2"),
    "c": (runs([200, 400, NEVER], [NEVER, 800, 900]), "#029e73"),
    "d": (runs([300], [20_000]), "#949494"),
}
AT = {("a", "memorised"): 200, ("a", "grokked"): 3000, ("c", "memorised"): 400, ("c", "grokked"): 900}
AT["d", "memorised"] = 300
"""Medians in which never is latest; at b half of the runs never come that far, and d groks beyond the axis."""


def upright(figure: str) -> Mapping[tuple[str, str], tuple[float, str, str]]:
    """Where each line of an event stands between the ends of the axis, its colour and dashes, by case and event."""
    line = rf'<path d="M([\d.]+) {HEIGHT - BOTTOM}v-\d+" stroke="(#\w+)" stroke-dasharray="([\d ]+)" stroke-width="2">'
    found = re.findall(line + r"<title>(\w+): (\w+) at step [\d,]+ in the median</title>", figure)
    width = WIDTH - LEFT - RIGHT
    return {(case, event): ((float(x) - LEFT) / width, hue, dashes) for x, hue, dashes, case, event in found}


def test_events_stand_at_the_foot_of_figures_of_several_cases() -> None:
    """In the colour of the case, dotted and dashed; the axis is logarithmic from step 50 to the last."""
    values = {label: pd.Series([1.0, 2.0], index=[100, 10_000]) for label in CASES}
    figures = (
        shares(CASES, "shares"),
        curves({label: (values[label], *case) for label, case in CASES.items()}, "curves"),
    )
    for figure in figures:
        lines = upright(str(figure))
        assert lines.keys() == AT.keys()
        for (case, event), (place, hue, dashes) in lines.items():
            expected = math.log(AT[case, event] / 50) / math.log(10_000 / 50)
            assert place == pytest.approx(expected, abs=2e-3)
            assert hue == CASES[case][1]
            assert (dashes == "2 2") == (event == "memorised")


def test_depths_over_training_begin_at_step_0() -> None:
    """Every analysed step has a point and a bound, on an axis of the logarithm of step + 1."""
    depth = {0: -1.0, 1: -10.0, 9: -3.0, 99: -2.0}
    rows = [
        {"step": step, "block": "E,W", "lowest": low, "saddle_bound_constants": -low} for step, low in depth.items()
    ]
    figure = str(training(pd.DataFrame(rows), {"memorised": 9, "grokked": None}, "depths"))
    expected = [LEFT + (WIDTH - LEFT - RIGHT) * part for part in (0, math.log10(2) / 2, 0.5, 1)]
    assert [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', figure)] == pytest.approx(expected, abs=0.06)
    bounds = re.findall(r'<path d="M([\d.]+) [\d.]+h12" class="bound"/>', figure)
    assert [float(x) + 6 for x in bounds] == pytest.approx(expected, abs=0.06)
