"""What the trial's page says of when the geometry of the embedding appears."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from exact import later, median_interval
from lags import CLAIM, EVENTS, FALL, LAGS, ON_GRID, PEAKS, REFERENCE
from markupsafe import Markup
from page_claims import headline, number
from page_figures import effects
from page_links import Linked
from page_transformers import judged
from scale import Scale

NAME = "G1"
ASKED = {
    "half": "50 % test accuracy",
    "loss_half": "the fall of test loss",
    "index_half": "the fall of the saddle index",
    "kappa_peak": "the peak of κ₁",
}
"""What the geometry may come before or after, by event."""
FIRST = "circle"
"""Event that comes before the reference in every run, so that circles are there sooner than their share is large."""
NEAR = 0.9
"""Share of a peak that rivals it."""


@dataclasses.dataclass(frozen=True)
class Lag:
    """By seed, ln of an event's step over that of the reference: as seen, at least and at most.

    Bounds differ from what is seen where only some steps were analysed: an event lies between two of them.
    """

    seen: Sequence[float]
    least: Sequence[float]
    most: Sequence[float]

    @functools.cached_property
    def interval(self) -> tuple[float, float, float]:
        """The median as seen, the lower end of the interval of the least, and the upper one of the most."""
        return median_interval(self.seen)[0], median_interval(self.least)[1], median_interval(self.most)[2]

    @property
    def shown(self) -> str:
        middle, low, high = (number(math.exp(value)) for value in self.interval)
        return f"× {middle} [{low}, {high}]"

    @property
    def where(self) -> str:
        """Where the reference stands: before or after the event, or neither; unresolved: more steps might tell."""
        _, low, high = self.interval
        might_tell = median_interval(self.most)[1] > 0 or median_interval(self.least)[2] < 0
        return "before" if low > 0 else "after" if high < 0 else "unresolved" if might_tell else "with"

    @property
    def count(self) -> str:
        """In how many seeds the event came later, whichever of the steps beside it that were analysed it was at."""
        return f"{sum(value > 0 for value in self.least)} of {len(self.least)}"


def timing(scales: Sequence[Linked]) -> dict[str, Any] | None:
    """The verdict on G1 at each scale, what else the geometry comes before, and every event; None: not studied.

    scales: smallest first.
    """
    studied = {one.name: one for one in scales if "lags" in one.tables}
    if not studied:
        return None
    x = {name: lags_of(one) for name, one in studied.items()}
    claims = {name: next(judged(one, one.link, "beyond", [NAME])) for name, one in studied.items()}
    verdicts = {name: claim["verdict"] for name, claim in claims.items()}
    rows = []
    for event, words in EVENTS.items():
        cells, named, shown = dict.fromkeys(x, {"ratio": "–", "after": "–"}), {}, {}
        for name, of in x.items():
            if event in of:
                link = functools.partial(studied[name].link, table_of(event, studied[name]), event=event)
                cells[name] = {"ratio": link(of[event].shown), "after": link(of[event].count)}
                shown[name] = of[event].shown
                named[name] = dict(zip(("median", "low", "high"), of[event].interval, strict=True))
                named[name]["verdict"] = verdicts[name] if event == CLAIM else "exploratory"
        rows.append({"words": words, "cells": cells, "bars": effects(named, shown)})
    first = [value < 0 for of in x.values() for value in of[FIRST].most]
    last = list(studied.values())[-1]
    return {
        "sentence": headline(NAME, claims),
        "claims": claims,
        "asked": ASKED,
        "answers": {name: answers(studied[name], of) for name, of in x.items()},
        "first": last.link("lags", f"{sum(first)} of {len(first)}", event=FIRST),
        "bounds": {name: found for name, one in studied.items() if (found := bounds(one)) is not None},
        "grid": grid(studied),
        "peaks": {name: found for name, one in studied.items() if (found := peaks(one)) is not None},
        "rows": rows,
    }


def on_grid(scale: Scale) -> pd.DataFrame:
    """The rows of what is known at the analysed steps alone, by seed, in the order of their steps."""
    study = table_of(ON_GRID[0], scale)
    return scale.rows("curvature", study=study).sort_values("step").drop_duplicates(["file", "step"])


def grid(studied: Mapping[str, Linked]) -> Markup | None:
    """At how many steps of a run that is known, the fewest and the most; None: nowhere."""
    counts = pd.concat([on_grid(one).groupby(level="seed")["step"].nunique() for one in studied.values()])
    if counts.empty:
        return None
    last = next(one for one in reversed(studied.values()) if len(on_grid(one)))
    study = table_of(ON_GRID[0], last)
    return last.link("curvature", f"{counts.min()} to {counts.max()}", study=study)


def peaks(scale: Linked) -> dict[str, Markup] | None:
    """How far κ₁ stands out at its peak: the largest factor to a step beside it, and rivals further away.

    A rival, seen in so many runs, is a step that is not beside the peak and comes within 10 % of it. None: not known.
    """
    factors, rivals = [], []
    for _, rows in on_grid(scale).groupby(level="seed"):
        kappa = rows.dropna(subset="kappa_1").groupby("step")["kappa_1"].max().to_numpy()
        at = int(kappa.argmax()) if len(kappa) else 0
        factors += [kappa[at] / kappa[beside] for beside in (at - 1, at + 1) if 0 <= beside < len(kappa)]
        rivals.append(bool((np.delete(kappa, slice(max(at - 1, 0), at + 2)) >= NEAR * kappa.max(initial=0)).any()))
    if not factors:
        return None
    link = functools.partial(scale.link, "curvature", study=table_of(ON_GRID[0], scale))
    return {"drop": link(number(max(factors))), "rivals": link(f"{sum(rivals)} of {len(rivals)}")}


def bounds(scale: Linked) -> Markup | None:
    """The bounds of an index that is not certified, the least and the largest of any run; None where all are."""
    rows = scale.tables["curvature"]
    rows = rows[(rows["study"] == LAGS) & (rows["index_level"] != "certified")]
    if rows.empty:
        return None
    text = f"{rows['index_lower'].min():,.0f} to {rows['index_upper'].max():,.0f}"
    return scale.link("curvature", text, study=LAGS)


def answers(scale: Linked, x: Mapping[str, Lag]) -> list[Markup | str]:
    """Whether the frequencies come before each event that was asked about, or why that is not known."""
    found: list[Markup | str] = []
    for event in ASKED:
        if event not in x:
            found.append("not known")
            continue
        where = scale.link(table_of(event, scale), f"{x[event].where}, {x[event].shown}", event=event)
        found.append(Markup("<b>{}</b>").format(where) if event == CLAIM else where)
    return found


def table_of(event: str, scale: Scale) -> str:
    """Study and table of an event: of runs analysed at more steps, where there are, if it is known at those alone."""
    return PEAKS if event in ON_GRID and PEAKS in scale.tables else LAGS


def lags_of(scale: Linked) -> Mapping[str, Lag]:
    """How much later than the reference each event came that a scale has; step 0 counts as 1."""
    curvature, found = scale.tables["curvature"], {}
    for event in EVENTS:
        study = table_of(event, scale)
        steps = scale.tables[study].pivot(index="seed", columns="event", values="step").clip(lower=1)
        if event not in steps:
            continue
        grid = curvature[curvature["study"] == study].groupby("seed")["step"].unique()
        seen = steps[event]
        around = pd.DataFrame(
            [(at, at) if event not in ON_GRID or seed not in grid else bracket(event, at, grid[seed])
             for seed, at in seen.items()],
            index=seen.index,
        )  # fmt: skip
        columns = (seen, around[0].clip(lower=1), around[1].clip(lower=1))
        found[event] = Lag(*([*map(after, column, steps[REFERENCE])] for column in columns))
    return found


def after(at: float, reference: float) -> float:
    """As `later`, where an event may lie beyond the last step that was analysed."""
    return math.inf if math.isinf(at) else later(at, reference)


def bracket(event: str, at: float, steps: Sequence[int]) -> tuple[float, float]:
    """The analysed steps between which an event lies that was seen at one of them; infinite: beyond the last.

    A peak lies between the neighbours of its step, a fall between the step before and its own.
    """
    if math.isnan(at):
        return at, at
    before = max((step for step in steps if step < at), default=at)
    return before, at if event in FALL else min((step for step in steps if step > at), default=math.inf)
