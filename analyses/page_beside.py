"""What the trial's page says beside the primary tests: paired comparisons of settings, and four claims by task."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import pandas as pd
from exact import later, median_interval
from markupsafe import Markup
from page_claims import number
from page_sizes import ratios
from scale import chosen

Link = Callable[..., Markup]
"""A text that leads to the first row of a table with these values, as of `Results.link`."""
Setting = Mapping[str, str]
"""Columns of runs.csv and the values that name a setting."""
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
    Comparison("E stays as it was when the training set was memorised", {"study": "tables", "case": "frozen"}, PLAIN),
    *[Comparison(f"c = {c} over c = 1", pace(f"c{c}"), PLAIN) for c in (2, 4, 8)],
    Comparison("c = 10 over c = 1", {"study": "curvature", "case": "c10"}, PLAIN),
    *[Comparison(f"c = {c} over c = 1", pace(f"c{c}"), PLAIN) for c in (16, 32, 64, 128)],
    Comparison("c = 10 at the same product of both rates over c = 1", pace("equal-c10"), PLAIN),
    Comparison("c by Proposition 4.1 over c = 1", pace("prop41"), PLAIN),
    Comparison("SGD: c = 10 over c = 1", {"study": "sgd", "case": "c10"}, {"study": "sgd", "case": "c1"}),
)
TASKS = {"add": "a + b", "sub": "a − b", "mul": "a · b", "div": "a / b", "squares": "a² + b²"}


def ratio(of: pd.Series, over: pd.Series) -> str:
    """Median over shared seeds of the ratio of two steps, with its interval; empty where no seed has both.

    A step that never came (NaN) is later than every other.
    """
    seeds = of.index.intersection(over.index)
    x = [later(float(of[seed]), float(over[seed])) for seed in seeds]
    return spread([math.exp(value) for value in x])


def spread(values: list[float]) -> str:
    """The median with its interval, where there are seeds enough for one; empty of no values."""
    if not values:
        return ""
    middle, low, high = median_interval(values)
    ends = "" if math.isnan(low) else f" [{number(low)}, {number(high)}]"
    return f"× {number(middle)}{ends}"


def compared(runs: pd.DataFrame, link: Link) -> dict[str, Markup]:
    """Each comparison in words, with its ratio; those whose runs are there."""
    found = {}
    for one in COMPARISONS:
        of, over = (chosen(runs, **setting)["grokked"] for setting in (one.of, one.over))
        if text := ratio(of, over):
            found[one.words] = link("runs", text, **one.of)
    return found


def by_task(runs: pd.DataFrame, curvature: pd.DataFrame, link: Link) -> dict[str, dict[str, Markup | str]]:
    """C1, C4, C7 and C8 of each task; those of addition are of the studies that its primary tests read."""
    found: dict[str, dict[str, Markup | str]] = {}
    depths = ratios(runs, curvature)
    for task, written in TASKS.items():
        known: Setting = {"task": task}
        plain: Setting = known | {"study": "curvature" if task == "add" else "tasks", "case": "c1"}
        delay: Setting = known | {"study": "delay" if task == "add" else "tasks"}
        if (base := chosen(runs, **plain)).empty:
            continue
        embedding, onehot = (chosen(runs, **delay, case=case)["delay"] for case in ("embedding", "onehot"))
        cells = {
            "C1": (ratio(embedding, onehot), "runs", {**delay, "case": "embedding"}),
            "C4": (
                spread(chosen(depths, **plain)["E,W over W,V"].dropna().tolist()),
                "curvature",
                {**plain, "analysis": "plateau", "block": "E,W"},
            ),
            "C7": (spread(base["prop41_constant"].dropna().tolist()), "runs", plain),
            "C8": (ratio(base["grokked"], chosen(runs, **{**plain, "case": "c10"})["grokked"]), "runs", plain),
        }
        found[written] = {claim: link(table, text, **at) if text else "–" for claim, (text, table, at) in cells.items()}
    return found
