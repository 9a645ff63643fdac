"""What the trial's page says beside the primary tests: steps of grokking, setting against setting."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pandas as pd
from exact import later, median_interval
from markupsafe import Markup
from page_bounds import bound
from page_claims import number
from page_links import Link
from scale import Setting, chosen

PLAIN: Setting = {"study": "curvature", "case": "c1"}


def pace(case: str) -> Setting:
    return {"study": "pace", "case": case}


def start(case: str) -> Setting:
    return {"study": "starts", "case": case}


def batches(sampler: str) -> Setting:
    return {"study": "sampling", "sampler": sampler, "batch_size": "64"}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Steps of grokking of one setting over those of another."""

    words: str
    of: Setting
    over: Setting


AWARE: Setting = {"study": "rare", "case": "aware"}
COMPARISONS = (
    Comparison("Frequency-aware batches of 64 over random ones", AWARE, batches("random")),
    Comparison("Frequency-aware batches of 64 over skewed ones", AWARE, batches("skewed")),
    Comparison(
        "No weight decay over weight decay, skewed batches of 64",
        {"study": "rare", "case": "nodecay"},
        batches("skewed"),
    ),
    Comparison("E starts at half its scale", start("E-half"), PLAIN),
    Comparison("E starts at twice its scale", start("E-double"), PLAIN),
    Comparison("W starts at half its scale", start("W-half"), PLAIN),
    Comparison("W starts at twice its scale", start("W-double"), PLAIN),
    Comparison("E and W start balanced", {"study": "tables", "case": "balanced"}, PLAIN),
    Comparison("E frozen after memorising", {"study": "tables", "case": "frozen"}, PLAIN),
    *[Comparison(f"c = {c} over c = 1", pace(f"c{c}"), PLAIN) for c in (2, 4, 8)],
    Comparison("c = 10 over c = 1", {"study": "curvature", "case": "c10"}, PLAIN),
    *[Comparison(f"c = {c} over c = 1", pace(f"c{c}"), PLAIN) for c in (16, 32, 64, 128)],
    Comparison("c = 10 at the same product of both rates over c = 1", pace("equal-c10"), PLAIN),
    Comparison("c by Proposition 4.1 over c = 1", pace("prop41"), PLAIN),
    Comparison("SGD: c = 10 over c = 1", {"study": "sgd", "case": "c10"}, {"study": "sgd", "case": "c1"}),
)


NEVER = "never in either"
"""A comparison of settings in which no run grokked."""


def ratio(of: pd.DataFrame, over: pd.DataFrame, event: str = "grokked") -> str:
    """Median over the seeds of both runs of the ratio of two steps, with its interval; empty where there are none.

    A step that never came (NaN) is later than every other; where it makes the median infinite, its bound.
    """
    x = differences(of, over, event)
    if x and of[event].isna().all() and over[event].isna().all():
        return NEVER
    bounded = bound(of, over, event) if x and math.isinf(median_interval(x)[0]) else None
    return f"× {bounded}" if bounded else times(x)


def differences(of: pd.DataFrame, over: pd.DataFrame, event: str = "grokked") -> list[float]:
    """ln of the ratio of two steps, for the seeds of both runs."""
    seeds = of.index.intersection(over.index)
    return [later(float(of.at[seed, event]), float(over.at[seed, event])) for seed in seeds]


def spread(factors: list[float]) -> str:
    """The median of factors, in logarithms, as of `middle`; empty of none."""
    return times([math.log(factor) if factor else -math.inf for factor in factors])


def crosses(x: list[float]) -> bool:
    """Whether the interval of values includes 0; of seeds too few for one, whether they lie on both sides of it."""
    _, low, high = median_interval(x)
    return min(x) <= 0 <= max(x) if math.isnan(low) else low <= 0 <= high


def times(x: list[float]) -> str:
    """The factors whose logarithms these are, by the median and the interval of the logarithms."""
    return f"× {middle(x, math.exp)}" if x else ""


def middle(values: list[float], shown: Callable[[float], float] = float) -> str:
    """The median with its interval; of seeds too few for one, with the least, the largest and how many there are.

    shown: what becomes of these afterwards.
    """
    median, *ends = median_interval(values)
    few = math.isnan(ends[0])
    middle, low, high = (number(shown(value)) for value in (median, *((min(values), max(values)) if few else ends)))
    return f"{middle} ({low} to {high}; n = {len(values)})" if few else f"{middle} [{low}, {high}]"


def compared(runs: pd.DataFrame, link: Link) -> dict[str, Markup]:
    """Each comparison in words, with its ratio; those whose runs are there."""
    found = {}
    for one in COMPARISONS:
        of, over = (chosen(runs, **setting) for setting in (one.of, one.over))
        if text := ratio(of, over):
            found[one.words] = link("runs", text, **one.of)
    return found
