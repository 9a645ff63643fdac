"""Figures of the trial's page behind C5 to C8: what the ratio of both rates changes, and when λ_max is highest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from markupsafe import Markup
from matplotlib.colors import to_hex
from page_beside import PLAIN, pace
from page_dots import Row, Series, dots
from page_figures import tops
from page_links import Linked
from scale import Setting, chosen

from landscape.report.style import colour

FIXED: Mapping[float, Setting] = {
    1: PLAIN,
    10: {"study": "curvature", "case": "c10"},
    **{c: pace(f"c{c}") for c in (2, 4, 8, 16, 32, 64, 128)},
}
"""Settings by c."""
EQUAL = pace("equal-c10")
GREY = "#7a828c"
Columns = dict[str, dict[float, list[float]]]
"""A number a seed by scale and c."""


def by_rate(scales: Sequence[Linked]) -> Markup | None:
    """Step of grokking, λ_max(W)/λ_max(E) and Proposition 4.1's constant over c; None where c was not varied."""

    def columns(of: Callable[[pd.DataFrame], pd.Series], settings: Mapping[float, Setting] = FIXED) -> Columns:
        found: Columns = {}
        for one in scales:
            for c, setting in settings.items():
                if values := of(chosen(one.tables["runs"], **setting)).dropna().tolist():
                    found.setdefault(one.name, {})[c] = values
        return found

    def gaps(one: Linked) -> dict[float, list[float]]:
        rows = one.tables["curvature"]
        rows = rows[(rows["analysis"] == "top-plateau") & (rows["block"] == "E")]
        return {c: x for c in (1, 10) if (x := [*chosen(rows, **FIXED[c]).get("curvature_ratio", [])])}

    grokked = columns(counted)
    if all(len(by_c) < 2 for by_c in grokked.values()):
        return None
    kept = Series("W keeps its rate", to_hex(colour("E,W")), grokked)
    equal = Series("same product of both", GREY, columns(counted, {10: EQUAL}))
    curved = Series("", to_hex(colour("W")), {one.name: gaps(one) for one in scales})
    constant = Series("", GREY, columns(lambda rows: rows["prop41_constant"]))
    rows = [
        Row("C8: step of grokking", [kept, equal]),
        Row("C5: λ_max(W) over λ_max(E)", [curved]),
        Row("C7: constant of Proposition 4.1", [constant]),
    ]
    shown = [row for row in rows if any(by_c for one in row.series for by_c in one.columns.values())]
    axes = {one.name: f"c at {one.name}" for one in scales}
    return dots(shown, axes, "By c: step of grokking, ratio of the curvatures, constant of Proposition 4.1")


def counted(runs: pd.DataFrame) -> pd.Series:
    """Steps of grokking; of a run that never did, the steps that it was watched."""
    found: pd.Series = runs["grokked"].fillna(runs["watched"])
    return found


def when_highest(scale: Linked) -> Markup | None:
    """λ_max of E and of W over training, a line a seed, with the median steps of C6's events."""
    top = chosen(scale.tables["curvature"], **PLAIN, analysis="top").reset_index()
    if top.empty:
        return None
    runs = scale.runs("curvature", case="c1")
    events = {"memorised": runs["memorised"].median(), "50 % test accuracy": runs["half"].median()}
    alt = f"λ_max of E and of W over training at {scale.name}, ten seeds"
    return tops(top[top["step"] > 0], {name: at for name, at in events.items() if math.isfinite(at)}, alt)
