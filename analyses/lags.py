"""When the geometry of an embedding appears, and when all else happens, in the runs of studies `lags` and `peaks`."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray
from runs import Run

from landscape.measure.embeddings import appears

LAGS = "lags"
"""Study of when things happen, and the table of it."""
PEAKS = "peaks"
"""The same of other runs, which were analysed at more steps; a scale need not have it."""
HALF = 0.5
"""Test accuracy, and share of a peak, that counts as half way."""
REFERENCE, CLAIM = "frequency", "half"
"""Event that all others are compared with, and that of the primary test."""
GEOMETRY = {
    REFERENCE: "top_frequency_share",
    "circle": "top_circle_r2",
    "dimension": "participation_ratio",
    "line": "pls_q2",
}
"""Quantity of the geometry file by the name of its event."""
OVER_CHANCE = ("circle",)
"""Half of what is left of these above their null counts: any plane of noise has a circle R² of 0.6."""
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
"""What happens, in words, by the name of its event in lags.csv."""
FALL, ON_GRID = ("index_half",), ("index_peak", "index_half", "kappa_peak")
"""Events known at the analysed steps alone, and which of them is no peak."""


def lags(run: Run) -> pd.DataFrame:
    """One row an event of a run: its first step, NaN where it never came; none of what is never known.

    An index counts where it is certified: the interval of an estimate from few products is as wide as the block.
    Raises LandscapeError for a geometry file that is not complete.
    """
    loss = run.data["test_loss"].to_series()
    found = {name: run.times[name] for name in ("memorised", "grokked")}
    found |= {"half": run.first("test_accuracy", HALF), "loss_peak": float(loss.idxmax()), "loss_half": fall(loss)}
    # Of one block, E with the first layer that reads it.
    parts = [run.hessian(analysis).squeeze("block") for analysis in run.planned.hessian]
    pair = xarray.concat([part[["inertia", "coupling_ratios"]] for part in parts], "step").sortby("step")
    index = pair["inertia"].sel(sign="negative")
    kappa = pair["coupling_ratios"].sel(pair=pair["block"].item()).isel(rank=0)
    index, kappa = (values.to_series().dropna() for values in (index, kappa))
    found |= {"index_peak": highest(index), "index_half": fall(index)} if len(index) else {}
    found |= {"kappa_peak": highest(kappa)} if len(kappa) else {}
    geometry = run.geometry()
    steps = geometry["step"].values
    for event, name in GEOMETRY.items():
        values = geometry[name].values - (geometry[f"{name}_null"].values if event in OVER_CHANCE else 0)
        at = appears(steps, values, geometry[f"{name}_p"].values, falls=event == "dimension")
        found[event] = np.nan if at is None else float(at)
    if "restricted_loss" in geometry:
        found["restricted"] = fall(geometry["restricted_loss"].sel(split="test").to_series().dropna())
        found["excluded"] = rise(geometry["excluded_loss"].sel(split="train").to_series().dropna())
    known = {**run.identity, "model": run.planned.config.model}
    return pd.DataFrame([{**known, "event": event, "step": step} for event, step in found.items()])


def highest(values: pd.Series) -> float:
    """The step of the largest of values by step; NaN of none."""
    return float(values.idxmax()) if len(values) else np.nan


def fall(values: pd.Series) -> float:
    """The first step after the largest of values by step at which half of it is left; NaN: never."""
    after = values[values.index > highest(values)]
    low = after[after <= HALF * values.max()]
    return float(low.index[0]) if len(low) else np.nan


def rise(values: pd.Series) -> float:
    """The first step by which values by step have come half way from their least to their last; NaN: never."""
    after = values[values.index >= values.idxmin()] if len(values) else values
    high = after[(after > after.min()) & (after >= HALF * (after.min() + after[-1:].max()))]
    return float(high.index[0]) if len(high) else np.nan
