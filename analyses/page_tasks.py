"""Four of the claims by task, and where another task leaves one open."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from markupsafe import Markup
from page_beside import crosses, differences, ratio, spread
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


def left_open_by(scales: Sequence[Linked], claim: str) -> Markup:
    """At which tasks and sizes the interval of the effect of C1 or C4 includes 1."""
    found = []
    for one in scales:
        open_ = [task for task in TASKS if (x := effects(one, claim, task)) and crosses(x)]
        names = [one.link(table, TASKS[task], **known) for task in open_ for table, known in [place(claim, task)]]
        if names:
            found.append(Markup("{} at {}").format(Markup(" and ").join(names), one.name))
    return Markup("Open with {}. ").format(Markup(", ").join(found)) if found else Markup("")


def effects(scale: Linked, claim: str, task: str) -> list[float]:
    """ln of the effect of C1 or C4 in each seed of a task other than addition, which the claim itself is of."""
    if task == "add":
        return []
    runs = scale.tables["runs"]
    if claim == "C1":
        return differences(*(chosen(runs, **delayed(task, case)) for case in ("embedding", "onehot")), "delay")
    depths = chosen(ratios(runs, scale.tables["curvature"]), **plain(task))[DEPTH].dropna()
    return [math.log(depth) for depth in depths]
