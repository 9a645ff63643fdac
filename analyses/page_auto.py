"""What the trial's page says of the learning rate of E that follows its edge of stability."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from beyond import AUTO, BEST, ELSEWHERE, SETTINGS
from markupsafe import Markup
from page_beside import ratio
from page_claims import headline, number
from page_links import Link, Linked
from page_transformers import how_soon, judged, step
from scale import Scale

PILOTS = ("ratios-{}", "ratios-{}-wider")
"""The studies of the pilots of a scale: the sweep, and further c where its best was the last one."""


def edges(scale: Linked, link: Link) -> dict[str, Any] | None:
    """The verdicts on A1 and A2, and steps of grokking by c; None where that was not studied."""
    runs = of_study(scale, AUTO)
    if runs.empty:
        return None
    steps = {c: scale.runs(AUTO, lr_ratio=c)["grokked"].fillna(math.inf) for c in (AUTO, BEST[scale.name])}
    medians = [float(of.median()) for of in steps.values()]
    over = f" = {number(medians[0] / medians[1])}" if math.isfinite(min(medians)) else ""
    there = functools.partial(link, "runs", study=AUTO)
    return {
        "claims": list(judged(scale, link, "beyond", ("A1", "A2"))),
        "rates": [
            {"c": named(str(c)), **how_soon(of_c, link, study=AUTO, lr_ratio=c)}
            for c, of_c in sorted(runs.groupby("lr_ratio"), key=lambda of: order(of[0]))
        ],
        "best": there(named(BEST[scale.name]), lr_ratio=BEST[scale.name]),
        "medians": there(f"{step(medians[0])}/{step(medians[1])}{over}", lr_ratio=AUTO),
        "set": set_by_auto(scale, link),
        "elsewhere": elsewhere(scale),
    }


def what_became(edges: Mapping[str, Mapping[str, Any]]) -> Markup | str:
    """The sentence of A1, of what `edges` says of each scale, smallest first; empty of none."""
    claims = {name: next(one for one in found["claims"] if one["name"] == "A1") for name, found in edges.items()}
    return headline("A1", claims) if claims else ""


def set_by_auto(scale: Scale, link: Link) -> Mapping[str, Markup] | None:
    """The largest c that auto set, from which step, and the last one; None: not recorded.

    The median over seeds with the least and the largest.
    """
    if "rates" not in scale.tables or (rows := scale.rows("rates", study=AUTO)).empty:
        return None
    most = rows.sort_values(["c", "step"], ascending=[False, True]).groupby("seed").first()
    of = {"most": most["c"], "step": most["step"], "last": rows.sort_values("step").groupby("seed")["c"].last()}
    return {name: link("rates", ranged(at, step if name == "step" else number), study=AUTO) for name, at in of.items()}


def ranged(values: pd.Series, written: Callable[[float], str]) -> str:
    """The median, and the least and the largest where they differ."""
    middle, least, most = (written(float(value)) for value in (values.median(), values.min(), values.max()))
    return middle if least == most else f"{middle} ({least} to {most})"


def elsewhere(scale: Linked) -> dict[str, Any] | None:
    """The verdicts on A3 and A4, and what became of each of their settings; None where those were not studied."""
    if of_study(scale, ELSEWHERE).empty:
        return None
    rows = []
    for setting, words in SETTINGS.items():
        cases = {rate: f"{setting}-{rate}" for rate in ("even", "swept", "auto")}
        runs = {rate: scale.runs(ELSEWHERE, case=case) for rate, case in cases.items()}
        best = runs["swept"]["lr_ratio"].iloc[0]
        soon = {rate: how_soon(runs[rate], scale.link, study=ELSEWHERE, case=case) for rate, case in cases.items()}
        rows.append(
            {
                "setting": words,
                "c": scale.link("runs", named(str(best)), study=ELSEWHERE, case=cases["swept"]),
                **{rate: Markup("{} ({})").format(of["step"], of["grokked"]) for rate, of in soon.items()},
                **{
                    over: scale.link("runs", ratio(*(runs[rate] for rate in pair)), study=ELSEWHERE, case=cases["auto"])
                    for over, pair in (("sooner", ("even", "auto")), ("slower", ("auto", "swept")))
                },
            }
        )
    return {"claims": list(judged(scale, scale.link, "beyond", ("A3", "A4"))), "rows": rows}


def of_study(scale: Scale, study: str) -> pd.DataFrame:
    """The runs of a study; none of a scale without any."""
    runs = scale.tables.get("runs", pd.DataFrame(columns=["study", "case"]))
    return runs[runs["study"] == study]


def swept(scales: Sequence[Linked]) -> dict[str, Any] | None:
    """The pilots of all scales: in how many settings the best c is the first or the last of its sweep."""
    ends = [end for one in scales for end in at_an_end(one)]
    if not ends:
        return None
    last = [one for one in scales if not of_study(one, PILOTS[0].format(one.name)).empty][-1]
    text = f"{sum(ends)} of {len(ends)}"
    return {"bracketed": not any(ends), "open": last.link("runs", text, study=PILOTS[0].format(last.name))}


def at_an_end(scale: Scale) -> Iterator[bool]:
    """Of each setting of the pilots, whether the best c is the first or the last of its sweep."""
    runs = pd.concat([of_study(scale, study.format(scale.name)) for study in PILOTS])
    for _, rows in runs.groupby("case", sort=False):
        by_c = rows["grokked"].fillna(math.inf).groupby(rows["lr_ratio"].astype(float))
        # Of ties the one with the smaller mean, as the protocol says.
        best = by_c.agg(["median", "mean"]).sort_values(["median", "mean"]).index[0]
        yield best in (min(by_c.groups), max(by_c.groups))


def named(c: str) -> str:
    """A ratio as it is written on the page."""
    return c if c == AUTO else f"{float(c):g}"


def order(c: object) -> float:
    return math.inf if c == AUTO else float(str(c))
