"""Four of the claims by task, and where another task turns one over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import pandas as pd
from markupsafe import Markup
from page_beside import differences, ratio, spread
from page_links import Link, Linked
from page_sizes import ratios
from scale import Setting, chosen

TASKS = {"add": "a + b", "sub": "a − b", "mul": "a · b", "div": "a / b", "squares": "a² + b²"}
"""How the page writes them."""
DEPTH = "E,W over W,V"


def plain(task: str) -> Setting:
    """The runs of a task at equal rates; those of addition are of the study that its primary tests read."""
    return {"task": task, "study": "curvature" if task == "add" else "tasks", "case": "c1"}


def delayed(task: str, case: str) -> Setting:
    """Those of C1, with an embedding or with one-hot input."""
    return {"task": task, "study": "delay" if task == "add" else "tasks", "case": case}


def place(claim: str, task: str) -> tuple[str, Setting]:
    """The table of a claim's numbers in a task, and its rows."""
    if claim == "C4":
        return "curvature", {**plain(task), "analysis": "plateau", "block": "E,W"}
    return "runs", delayed(task, "embedding") if claim == "C1" else plain(task)


def by_task(runs: pd.DataFrame, curvature: pd.DataFrame, link: Link) -> dict[str, dict[str, Markup | str]]:
    """C1, C4, C7 and C8 of each task; those of addition are of the studies that its primary tests read."""
    found: dict[str, dict[str, Markup | str]] = {}
    depths = ratios(runs, curvature)
    for task, written in TASKS.items():
        known = plain(task)
        if (base := chosen(runs, **known)).empty:
            continue
        texts = {
            "C1": ratio(*(chosen(runs, **delayed(task, case)) for case in ("embedding", "onehot")), "delay"),
            "C4": spread(chosen(depths, **known)[DEPTH].dropna().tolist()),
            "C7": spread(base["prop41_constant"].dropna().tolist()),
            "C8": ratio(base, chosen(runs, **{**known, "case": "c10"})),
        }
        places = {claim: place(claim, task) for claim in texts}
        found[written] = {
            claim: link(places[claim][0], text, **places[claim][1]) if text else "–" for claim, text in texts.items()
        }
    return found


def turned_by(scales: Sequence[Linked], claim: str) -> Markup:
    """At which tasks and sizes the effect of C1 or C4 is not on that side of 1 where that of addition is."""
    found = []
    for one in scales:
        effects = {task: effect(one, claim, task) for task in TASKS}
        for task, x in effects.items():
            if not math.isnan(x) and side(x) != side(effects["add"]):
                table, known = place(claim, task)
                found.append(Markup("{} at {}").format(one.link(table, TASKS[task], **known), one.name))
    return Markup(" Not with {}.").format(Markup(", ").join(found)) if found else Markup("")


def side(x: float) -> int:
    """On which side of 1 the factor is whose logarithm this is; 0 where it is within half a percent of 1."""
    return (x > 5e-3) - (x < -5e-3)


def effect(scale: Linked, claim: str, task: str) -> float:
    """ln of the median effect of C1 or C4 in a task; NaN where it was not run."""
    runs = scale.tables["runs"]
    if claim == "C1":
        x = differences(*(chosen(runs, **delayed(task, case)) for case in ("embedding", "onehot")), "delay")
    else:
        depths = chosen(ratios(runs, scale.tables["curvature"]), **plain(task))
        x = [math.log(depth) for depth in depths[DEPTH].dropna()]
    return median(x) if x else math.nan
