"""How much later than the main frequency of the embedding everything else happens, seed by seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import pandas as pd
from exact import later, median_interval
from tables import Scale, number

EVENTS = {
    "memorised": "99 % training accuracy",
    "loss_peak": "test loss is highest",
    "index_peak": "the saddle index of the pair is highest",
    "kappa_peak": "κ₁ of the pair is highest",
    "circle": "circle R² is half way from chance to its last value",
    "dimension": "the participation ratio has fallen to twice its last value",
    "line": "PLS Q² appears",
    "index_half": "the saddle index has fallen to half of its peak",
    "excluded": "excluded training loss has risen half way from its least to its last value",
    "restricted": "restricted test loss has fallen to half of its peak",
    "loss_half": "test loss has fallen to half of its peak",
    "half": "50 % test accuracy",
    "grokked": "95 % test accuracy",
}
ON_GRID = ("index_peak", "index_half", "kappa_peak")
"""Events known at the analysed steps alone."""


@dataclasses.dataclass(frozen=True)
class Lag:
    """By seed, ln of an event's step over that of the main frequency: as seen, at least and at most.

    Bounds differ from what is seen where only some steps were analysed: an event lies between two of them.
    """

    seen: Sequence[float]
    least: Sequence[float]
    most: Sequence[float]

    @property
    def shown(self) -> str:
        """The median as seen, the lower end of the interval of the least, and the upper one of the most."""
        ends = median_interval(self.seen)[0], median_interval(self.least)[1], median_interval(self.most)[2]
        middle, low, high = (number(math.inf if value == math.inf else math.exp(value)) for value in ends)
        return f"× {middle} [{low}, {high}]"

    @property
    def later(self) -> str:
        """In how many seeds the event came later, whichever of the steps beside it that were analysed it was at."""
        return f"{sum(value > 0 for value in self.least)} of {len(self.least)}"


def lags(scale: Scale) -> Mapping[str, Lag]:
    """The lag of each event that a scale has; step 0 counts as 1."""
    curvature, by_event = scale.tables["curvature"], {}
    for event in EVENTS:
        # Runs that were analysed at more steps, where there are.
        study = "peaks" if event in ON_GRID and "peaks" in scale.tables else "lags"
        steps = scale.tables[study].pivot(index="seed", columns="event", values="step").clip(lower=1)
        if event not in steps:
            continue
        grid = curvature[curvature["study"] == study].groupby("seed")["step"].unique()
        reference, columns = steps["frequency"], []
        for end in (None, 0, 1):
            at = {
                seed: step
                if end is None or event not in ON_GRID or seed not in grid
                else around(event, step, grid[seed])[end]
                for seed, step in steps[event].items()
            }
            columns.append([after(max(step, 1.0), reference[seed]) for seed, step in at.items()])
        by_event[event] = Lag(*columns)
    return by_event


def after(at: float, reference: float) -> float:
    """As `later`, where an event may lie beyond the last step that was analysed."""
    return math.inf if math.isinf(at) else later(at, reference)


def around(event: str, at: float, steps: Sequence[int]) -> tuple[float, float]:
    """The analysed steps between which an event lies that was seen at one of them; infinite: beyond the last.

    A peak lies between the neighbours of its step, a fall between the step before and its own.
    """
    if math.isnan(at):
        return at, at
    before = max((step for step in steps if step < at), default=at)
    return before, at if event == "index_half" else min((step for step in steps if step > at), default=math.inf)


def all_lags(scale: Scale) -> pd.DataFrame:
    """By event and seed, ln of its step over that of the main frequency."""
    return pd.DataFrame({EVENTS[event]: lag.seen for event, lag in lags(scale).items()})
