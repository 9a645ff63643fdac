"""What the trial's page says of the learning rate of E that follows its edge of stability."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from beyond import AUTO, BEST
from markupsafe import Markup
from page_claims import number
from page_links import Link, Linked
from page_transformers import how_soon, judged, step
from scale import Scale

PILOTS = ("ratios-{}", "ratios-{}-wider")
"""The studies of the pilots of a scale: the sweep, and further c where its best was the last one."""
SHARE = 0.5
"""Of its edge, at which auto sets the rate of E."""
MARGIN = 1.1
"""How much longer auto may take in A2."""
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


def edges(scale: Linked, link: Link) -> dict[str, Any] | None:
    """The verdicts on A1 and A2, and steps of grokking by c; None where that was not studied."""
    runs = of_study(scale, AUTO)
    if runs.empty:
        return None
    steps = {c: scale.runs(AUTO, lr_ratio=c)["grokked"].fillna(math.inf) for c in (AUTO, BEST[scale.name])}
    medians = [float(of.median()) for of in steps.values()]
    there = functools.partial(link, "runs", study=AUTO)
    return {
        "claims": list(judged(scale, link, "beyond", ("A1", "A2"))),
        "rates": [
            {"c": named(str(c)), **how_soon(of_c, link, study=AUTO, lr_ratio=c)}
            for c, of_c in sorted(runs.groupby("lr_ratio"), key=lambda of: order(of[0]))
        ],
        "best": there(named(BEST[scale.name]), lr_ratio=BEST[scale.name]),
        "medians": there(f"{step(medians[0])}/{step(medians[1])} = {number(medians[0] / medians[1])}", lr_ratio=AUTO),
        "set": set_by_auto(scale, link),
        "lost": lost(runs, link),
    }


def set_by_auto(scale: Scale, link: Link) -> dict[str, Any] | None:
    """c that auto set first and last, the median with the least and the largest over seeds; None: not recorded.

    With the share of the edge as first measured at which the best c lies.
    """
    if "rates" not in scale.tables or (rows := scale.rows("rates", study=AUTO)).empty:
        return None
    c = rows[rows["step"] > 0].sort_values("step").groupby("seed")["c"]
    of = {"first": c.first(), "last": c.last()}
    texts = {name: f"{number(at.median())} ({number(at.min())} to {number(at.max())})" for name, at in of.items()}
    share = SHARE * float(BEST[scale.name]) / float(of["first"].median())
    return {"size": share} | {
        name: link("rates", text, study=AUTO) for name, text in {**texts, "share": number(share)}.items()
    }


def apart(edges: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the best c of one scale lies at more than twice the share of the edge of another."""
    sizes = [found["set"]["size"] for found in edges.values() if found["set"]]
    return len(sizes) > 1 and max(sizes) > 2 * min(sizes)


def lost(runs: pd.DataFrame, link: Link) -> Markup | None:
    """How many runs under auto never memorised; None where all did."""
    of_auto = runs[runs["lr_ratio"].astype(str) == AUTO]
    count = int(of_auto["memorised"].isna().sum())
    return link("runs", f"{count} of {len(of_auto)}", study=AUTO, lr_ratio=AUTO) if count else None


def of_study(scale: Scale, study: str) -> pd.DataFrame:
    """The runs of a study; none of a scale without any."""
    runs = scale.tables.get("runs", pd.DataFrame(columns=["study", "case"]))
    return runs[runs["study"] == study]


def pilots(scale: Scale, link: Link) -> Iterator[dict[str, Any]]:
    """Each case of the pilots: median steps at c = 1, at the best c of its sweep, and under auto."""
    runs = pd.concat([of_study(scale, study.format(scale.name)) for study in PILOTS])
    for case, rows in runs.groupby("case", sort=False):
        by_c = rows["grokked"].fillna(math.inf).groupby(rows["lr_ratio"].astype(str))
        steps = by_c.median()
        # Of ties the one with the smaller mean, as the protocol says.
        best = str(by_c.agg(["median", "mean"]).drop(AUTO).sort_values(["median", "mean"]).index[0])
        studies = rows.groupby(rows["lr_ratio"].astype(str))["study"].first()
        at = {c: functools.partial(link, "runs", study=studies[c], case=case, lr_ratio=c) for c in ("1.0", best, AUTO)}
        shown = {c: there(step(float(steps[c]))) for c, there in at.items()}
        slower = float(steps[AUTO] / steps[best])
        swept = sorted(map(float, steps.index.drop(AUTO)))
        # The best may lie beyond the last c, or between 1 and the second.
        sign = "≥ " if float(best) == swept[-1] else "≤ " if float(best) == swept[1] else ""
        yield {
            "case": f"{scale.name}{CASES[case]}",
            "plain": shown["1.0"],
            "best": shown[best],
            "c": at[best](f"{sign}{named(best)}"),
            "auto": shown[AUTO],
            "ratio": at[AUTO](number(slower)),
            "slower": slower > MARGIN,
            "bracketed": not sign,
        }


def swept(scales: Sequence[Linked]) -> dict[str, Any] | None:
    """The pilots of all scales; in how many auto is later than A2 allows, and the best c is the last of its sweep."""
    rows = [(one, row) for one in scales for row in pilots(one, one.link)]
    if not rows:
        return None
    last = rows[-1][0]
    counts = {"slower": sum(row["slower"] for _, row in rows), "open": sum(not row["bracketed"] for _, row in rows)}
    there = functools.partial(last.link, "runs", study=PILOTS[0].format(last.name))
    linked = {name: there(f"{count} of {len(rows)}") for name, count in counts.items()}
    return {"rows": [row for _, row in rows], "bracketed": not counts["open"], **linked}


def named(c: str) -> str:
    """A ratio as it is written on the page."""
    return c if c == AUTO else f"{float(c):g}"


def order(c: object) -> float:
    return math.inf if c == AUTO else float(str(c))
