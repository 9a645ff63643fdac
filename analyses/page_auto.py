"""What the trial's page says of the learning rate of E that follows its edge of stability."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
from page_claims import BEYOND, effect, number, said
from page_links import Link
from page_transformers import how_soon, step
from primary import Numbers, difference, judge
from scale import Scale

STUDY, PILOTS = "auto", "ratios-{}"
"""The study of the tests, and that of the pilots of a scale."""
BEST = {"quick": "256.0", "mid": "64.0", "transformer": "10.0"}
"""The c of the pilots that grokked soonest, by scale, as studies/PROTOCOL.md names it."""

CASES = {
    "base": "",
    "mul": ", a · b",
    "squares": ", a² + b²",
    "E-small": ", E starts at half its scale",
    "E-large": ", E starts at twice its scale",
    "decay-low": ", half the weight decay",
    "decay-high": ", twice the weight decay",
}
"""What is different about each case of the pilots."""


def measured(scale: Scale) -> dict[str, Numbers]:
    """x of both tests by seed."""
    plain, best, auto = (scale.runs(STUDY, lr_ratio=c)["grokked"] for c in ("1.0", BEST[scale.name], "auto"))
    within = {seed: math.log(1.1) - later for seed, later in difference(auto, best).items()}
    return {"A1": difference(plain, auto), "A2": within}


def edges(scale: Scale, link: Link) -> dict[str, Any] | None:
    """The verdicts on A1 and A2, and steps of grokking by c; None where that was not studied."""
    runs = of_study(scale, STUDY)
    if runs.empty:
        return None
    x = measured(scale)
    rows = {row["claim"]: row for row in judge(x, dict.fromkeys(x, ("", lambda _: {}))).to_dict("records")}
    for row in rows.values():
        row["seeds_to_decide"] = math.nan if row["seeds_to_decide"] is None else row["seeds_to_decide"]
    return {
        "claims": {
            name: {
                "sentence": said(name, row, functools.partial(link, "runs", study=STUDY, lr_ratio="auto")),
                "verdict": row["verdict"],
                "measure": BEYOND[name].measure,
                "effect": link("runs", effect(name, row), study=STUDY, lr_ratio="auto"),
                "p": link("runs", number(row["holm"]), study=STUDY, lr_ratio="auto"),
            }
            for name, row in rows.items()
        },
        "rates": [
            {"c": named(str(c)), **how_soon(of_c, link, study=STUDY, lr_ratio=c)}
            for c, of_c in sorted(runs.groupby("lr_ratio"), key=lambda of: order(of[0]))
        ],
        "best": link("runs", named(BEST[scale.name]), study=STUDY, lr_ratio=BEST[scale.name]),
    }


def of_study(scale: Scale, study: str) -> pd.DataFrame:
    """The runs of a study; none of a scale without any."""
    runs = scale.tables.get("runs", pd.DataFrame(columns=["study", "case"]))
    return runs[runs["study"] == study]


def pilots(scale: Scale, link: Link) -> Iterator[dict[str, Any]]:
    """Each case of the pilots: median steps at c = 1, at the best c of its sweep, and under auto."""
    study = PILOTS.format(scale.name)
    for case, rows in of_study(scale, study).groupby("case", sort=False):
        by_c = rows["grokked"].fillna(math.inf).groupby(rows["lr_ratio"].astype(str))
        steps = by_c.median()
        # Of ties the one with the smaller mean, as the protocol says.
        best = str(by_c.agg(["median", "mean"]).drop("auto").sort_values(["median", "mean"]).index[0])
        at = {c: functools.partial(link, "runs", study=study, case=case, lr_ratio=c) for c in ("1.0", best, "auto")}
        shown = {c: there(step(float(steps[c]))) for c, there in at.items()}
        yield {
            "case": f"{scale.name}{CASES[case]}",
            "plain": shown["1.0"],
            "best": shown[best],
            "c": at[best](named(best)),
            "auto": shown["auto"],
            "ratio": at["auto"](number(float(steps["auto"] / steps[best]))),
        }


def named(c: str) -> str:
    """A ratio as it is written on the page."""
    return c if c == "auto" else f"{float(c):g}"


def order(c: object) -> float:
    return math.inf if c == "auto" else float(str(c))
