"""What an infinite effect says: runs that never got there bound it by the steps that they were watched."""

from __future__ import annotations

import math

import pandas as pd
from exact import median_interval
from page_beside import Setting
from page_claims import CLAIMS, Row, effect, number
from page_links import Linked
from scale import chosen

ARMS: dict[str, tuple[str, Setting, Setting]] = {
    "C1": ("delay", {"study": "delay", "case": "embedding"}, {"study": "delay", "case": "onehot"}),
    "D2": ("grokked", {"study": "tables", "case": "l2"}, {"study": "tables", "case": "nuclear"}),
}
"""By claim the event of its x, and the settings whose ratio its effect is."""


def shown(scale: Linked, name: str, row: Row) -> str:
    """The effect of a claim; of one that is infinite its bound, and how many runs never got there within which step."""
    return (bound(scale, name) if math.isinf(row["median"]) else None) or effect(name, row)


def bound(scale: Linked, name: str) -> str | None:
    """That bound in words; None where it is not of one setting alone."""
    if name not in ARMS:
        return None
    event, *settings = ARMS[name]
    of, over = (chosen(scale.tables["runs"], **setting) for setting in settings)
    ended = [int(runs[event].isna().sum()) for runs in (of, over)]
    if min(ended) or not max(ended):
        return None
    late, sign = (of, "≥") if ended[0] else (over, "≤")
    median, *_ = median_interval([math.log(at_least(of, event)[s] / at_least(over, event)[s]) for s in of.index])
    form = CLAIMS[name].form.format(f"{sign} {number(math.exp(median))}")
    return f"{form} ({max(ended)} of {len(late)} never by {late['watched'].max():,})"


def at_least(runs: pd.DataFrame, event: str) -> pd.Series:
    """The delay or step of grokking by seed, at least, from what was watched."""
    watched = runs["watched"] - (runs["memorised"] if event == "delay" else 0)
    return runs[event].fillna(watched)
