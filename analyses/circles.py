"""The geometry of embeddings: at the last step of every run, and over the steps of one run for the film."""

from __future__ import annotations

import numpy as np
import pandas as pd
from runs import Run

from landscape.choices.tasks import TASKS
from landscape.measure.embeddings import STATISTICS, cyclic_order, fourier_shares
from landscape.report.figures.embedding import keys_of, planes

GEOMETRY = "geometry"
"""Study of the geometry by task."""
LAST = ("num_frequencies", "scaling_index", *(name for of in STATISTICS for name in (of.name, f"{of.name}_p")))
"""Quantities in geometry.csv, with the p-values of those that have a permutation null."""
LOSSES = ("loss", "restricted_loss", "excluded_loss")
SHOWN = 24
"""Steps at which the film shows the circle, spread over the logarithm of the step."""


def last_geometry(run: Run) -> pd.DataFrame:
    """One row: the geometry of a run at its last step; losses are of the test pairs.

    other_order_share: the largest Fourier share where the numbers stand in the order of the other group, of addition
    for a run of multiplication and the other way round.
    """
    last, config = run.geometry().isel(step=-1), run.planned.config
    step = int(last["step"])
    other = cyclic_order(config.p, not TASKS[config.task].multiplies)
    E = run.data["E"].sel(step=step).values[other].astype(float)
    losses = {f"test_{name}": float(last[name].sel(split="test")) for name in LOSSES}
    row = {**run.identity, "task": config.task, "step": step, **{name: float(last[name]) for name in LAST}}
    return pd.DataFrame([{**row, **losses, "other_order_share": float(fourier_shares(E).max())}])


def frequencies(run: Run) -> pd.DataFrame:
    """One row a stored step and frequency in use at the last: its share in the variance, and that of chance."""
    data = run.geometry()
    share = data["fourier_share"].sel(frequency=keys_of(data)).to_series().round(5).rename("share").reset_index()
    chance = data["top_frequency_share_null"].to_series().round(5).rename("chance")
    table = share.merge(chance, left_on="step", right_index=True)
    return pd.concat([pd.DataFrame([run.identity] * len(table)), table.reset_index(drop=True)], axis=1)


def circles(run: Run) -> pd.DataFrame:
    """One row a number and step of the film: its place in the plane of the largest frequency there."""
    data, config = run.geometry(), run.planned.config
    numbers = cyclic_order(config.p, TASKS[config.task].multiplies)
    steps = data["step"].values
    wanted = np.geomspace(1, steps[-1], SHOWN)
    at = steps[np.unique(np.abs(np.log(steps[1:, None] / wanted)).argmin(axis=0)) + 1]
    # And where its blocks were analysed.
    for analysis in run.planned.hessian:
        at = np.union1d(at, run.hessian(analysis)["step"].values)
    parts = []
    for step in at:
        k, z, share, r2 = planes(data.sel(step=step))[0]
        of_step = {**run.identity, "step": int(step), "frequency": k, "share": round(share, 5), "r2": round(r2, 5)}
        places = {"number": numbers, "x": z[:, 0].round(5), "y": z[:, 1].round(5)}
        parts.append(pd.DataFrame([of_step] * len(numbers)).assign(**places))
    return pd.concat(parts, ignore_index=True)
