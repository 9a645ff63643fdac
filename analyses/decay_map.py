"""When networks grok and embeddings come to rest, by weight decay and skew of tokens, in the runs of study `map`."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from runs import Run

MAP = "map"
"""Study of weight decay against skew."""
NEAR = 0.1
"""Relative distance from the last norm within which an embedding rests."""
LATE = 0.8
"""Share of the steps watched: what comes so near to its last norm only later is still moving at the end."""
FIFTHS = 5
"""The rarest and the most frequent of so many equal parts of the tokens are compared."""


def map_row(run: Run) -> pd.DataFrame:
    """One row a run: its decay and skew, when it grokked, and when rare and frequent tokens came to rest, in steps."""
    config, data = run.planned.config, run.data
    held = data["count"].values[-1, : config.p] / float(data["step"].values[-1])
    rest = rests(data["step"].values, data["embedding_norm"].values[:, : config.p])
    order, size = np.argsort(held, kind="stable"), config.p // FIFTHS
    row = {**run.identity, "weight_decay": config.weight_decay, "skew": config.skew, "watched": config.steps}
    row["grokked"] = run.times["grokked"]
    for name, group in {"rare": order[:size], "frequent": order[-size:]}.items():
        row |= {f"rest_{name}": float(np.median(rest[group])), f"absent_{name}": float(1 - held[group].mean())}
    return pd.DataFrame([row])


def rests(steps: NDArray[np.int64], norms: NDArray[np.float64]) -> NDArray[np.float64]:
    """By token, the first step from which its norm (step, token) stays near the last one."""
    away = np.abs(norms - norms[-1]) > NEAR * norms[-1]
    # The step after the last one away; the last norm is near itself.
    last = np.where(away.any(axis=0), len(steps) - np.argmax(away[::-1], axis=0), 0)
    found: NDArray[np.float64] = steps[last].astype(float)
    return found
