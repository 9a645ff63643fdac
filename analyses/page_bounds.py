"""What an infinite effect says: runs that never got there bound it by the steps that they were watched."""

from __future__ import annotations

import math

import pandas as pd
from beyond import AUTO, BEST, SENSITIVITY
from exact import median_interval
from page_claims import BEYOND, CLAIMS, Row, effect, number
from page_links import Linked
from scale import Setting, chosen

ARMS: dict[str, tuple[str, Setting, Setting]] = {
    "C1": ("delay", {"study": "delay", "case": "embedding"}, {"study": "delay", "case": "onehot"}),
    "D2": ("grokked", {"study": "tables", "case": "l2"}, {"study": "tables", "case": "nuclear"}),
    "S1": ("grokked", {"study": SENSITIVITY, "case": "random"}, {"study": SENSITIVITY, "case": "aware"}),
    "I1": ("grokked", {"study": SENSITIVITY, "case": "E-double"}, {"study": SENSITIVITY, "case": "E-half"}),
    "I2": ("grokked", {"study": SENSITIVITY, "case": "W-double"}, {"study": SENSITIVITY, "case": "W-half"}),
}
"""By claim the event of its x, and the settings whose ratio its effect is."""


def arms(scale: Linked) -> dict[str, tuple[str, Setting, Setting]]:
    """The same with the claims whose settings differ by scale."""
    plain, auto, best = ({"study": AUTO, "lr_ratio": c} for c in ("1.0", AUTO, BEST.get(scale.name)))
    return ARMS | {"A1": ("grokked", plain, auto), "A2": ("grokked", auto, best)}


def shown(scale: Linked, name: str, row: Row) -> str:
    """The effect of a claim; of one that is infinite its bound, and how many runs never got there within which step."""
    if math.isinf(row["median"]) and (known := arms(scale).get(name)):
        event, *settings = known
        of, over = (chosen(scale.tables["runs"], **setting) for setting in settings)
        if bounded := bound(of, over, event):
            return (CLAIMS | BEYOND)[name].form.format(bounded)
    return effect(name, row)


def bound(of: pd.DataFrame, over: pd.DataFrame, event: str) -> str | None:
    """That bound in words, of runs by seed; None where there is none.

    Where also the other run of a seed never got there, nothing is known of the ratio, and it counts against the bound.
    """
    seeds = of.index.intersection(over.index)
    of, over = of.loc[seeds], over.loc[seeds]
    ended = [int(runs[event].isna().sum()) for runs in (of, over)]
    late, early, sign, open_ = (of, over, "≥", -math.inf) if ended[0] > ended[1] else (over, of, "≤", math.inf)
    factors = (at_least(of, event) / at_least(over, event))[early[event].notna()]
    x = [math.log(factor) if factor else -math.inf for factor in factors] + [open_] * min(ended)
    median, *_ = median_interval(x)
    # A delay that never began has no bound.
    if math.isinf(median) or factors.isna().any():
        return None
    return f"{sign} {number(math.exp(median))} ({max(ended)} of {len(late)} never by {late['watched'].max():,.0f})"


def at_least(runs: pd.DataFrame, event: str) -> pd.Series:
    """The delay or step of grokking by seed, at least, from what was watched."""
    watched = runs["watched"] - (runs["memorised"] if event == "delay" else 0)
    return runs[event].fillna(watched)
