"""The geometry of embeddings in the runs of the trial: when it appears, where it ends, and circles on the way."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from runs import HALF, Run

STATISTICS = (
    *("participation_ratio", "top_component_share", "top_frequency_share", "top_circle_r2", "line_spearman"),
    *("scaling_r2", "pls_q2", "distance_r2_linear", "distance_r2_circular", "distance_r2"),
)
"""Quantities of a geometry file that have a permutation null."""
LAST = ("num_frequencies", "scaling_index", *(name for of in STATISTICS for name in (of, f"{of}_p")))
EVENTS = {
    "frequency": "top_frequency_share",
    "circle": "top_circle_r2",
    "dimension": "participation_ratio",
    "line": "pls_q2",
}
"""Quantity of the geometry file by the name of its event."""
LEVEL, SHOWN = 0.01, 24
"""At which a quantity beats its null, and steps in circles.csv, spread over the logarithm of the step."""


def lags(run: Run) -> pd.DataFrame:
    """One row an event of a run: its first step, NaN where it never came; none of what is never known.

    An index counts where it is certified: the interval of an estimate from few products is as wide as the block.
    """
    loss = run.metrics["test_loss"]
    steps = {name: run.times[name] for name in ("memorised", "grokked")}
    steps |= {"half": run.first(*HALF), "loss_peak": float(loss.idxmax()), "loss_half": fall(loss)}
    # Of one block, E with the first layer that reads it.
    frames = [run.analysis(name) for name in run.analyses]
    index = pd.concat(
        [of["by_step_block_sign"].query("sign == 'negative'") for of in frames if "by_step_block_sign" in of] or [NONE]
    )
    kappa = pd.concat(
        [of["by_step_pair_rank"].query("rank == 0") for of in frames if "by_step_pair_rank" in of] or [NONE]
    )
    index = index.set_index("step").sort_index()["inertia"].astype(float).dropna()
    kappa = kappa.set_index("step").sort_index()["coupling_ratios"].dropna()
    steps |= {"index_peak": highest(index), "index_half": fall(index)} if len(index) else {}
    steps |= {"kappa_peak": highest(kappa)} if len(kappa) else {}
    geometry = run.geometry
    for event, name in EVENTS.items():
        # Half of what is left of a circle's R² above its null counts: any plane of noise has one of 0.6.
        values = geometry[name].values - (geometry[f"{name}_null"].values if event == "circle" else 0)
        steps[event] = appears(geometry["step"].values, values, geometry[f"{name}_p"].values, event == "dimension")
    if "restricted_loss" in geometry:
        steps["restricted"] = fall(geometry["restricted_loss"].sel(split="test").to_series().dropna())
        steps["excluded"] = rise(geometry["excluded_loss"].sel(split="train").to_series().dropna())
    table = pd.DataFrame([{"model": run.config["model"], "event": event, "step": at} for event, at in steps.items()])
    return run.labelled(table)


NONE = pd.DataFrame(columns=["step", "inertia", "coupling_ratios"])


def appears(steps: NDArray[np.int64], values: NDArray[np.float64], p: NDArray[np.float64], falls: bool) -> float:
    """The first step at which a quantity beats its null and has half of its last value, or twice one that falls."""
    there = (p <= LEVEL) & (values <= 2 * values[-1] if falls else values >= values[-1] / 2)
    return float(steps[there.argmax()]) if there.any() else np.nan


def highest(values: pd.Series) -> float:
    """The step of the largest of values by step; NaN of none."""
    return float(values.idxmax()) if len(values) else np.nan


def fall(values: pd.Series) -> float:
    """The first step after the largest of values by step at which half of it is left; NaN: never."""
    after = values[values.index > highest(values)]
    low = after[after <= values.max() / 2]
    return float(low.index[0]) if len(low) else np.nan


def rise(values: pd.Series) -> float:
    """The first step by which values by step have come half way from their least to their last; NaN: never."""
    after = values[values.index >= values.idxmin()] if len(values) else values
    high = after[(after > after.min()) & (after >= (after.min() + after[-1:].max()) / 2)]
    return float(high.index[0]) if len(high) else np.nan


def cyclic_order(p: int, multiplies: bool) -> NDArray[np.int64]:
    """The numbers as their group's circle runs: 0 … p − 1, or the powers of the least primitive root of a prime."""
    if not multiplies:
        return np.arange(p)
    every = ([pow(root, j, p) for j in range(p - 1)] for root in range(2, p))
    return np.array(next(powers for powers in every if len(set(powers)) == p - 1))


def largest_share(E: NDArray[np.float64]) -> float:
    """The largest share of a frequency in the variance of the rows of E."""
    power = (np.abs(np.fft.rfft(E - E.mean(axis=0), axis=0)) ** 2).sum(axis=1)
    # All but the alternating frequency of an even number of rows stand for themselves and their conjugate.
    power[1 : (len(E) + 1) // 2] *= 2
    return float(power[1:].max() / power[1:].sum())


def last_geometry(run: Run) -> pd.DataFrame:
    """One row: the geometry of a run at its last step; losses are of the test pairs.

    other_order_share: the largest Fourier share where the numbers stand in the order of the other group, of addition
    for a run of multiplication and the other way round.
    """
    last, p, task = run.geometry.isel(step=-1), run.config["p"], run.config["task"]
    E = run.file.checkpoints["E"].isel(step=-1).values[cyclic_order(p, task not in ("mul", "div"))].astype(float)
    row = {"task": task, "step": int(last["step"]), **{name: float(last[name]) for name in LAST}}
    losses = {
        f"test_{name}": float(last[name].sel(split="test")) for name in ("loss", "restricted_loss", "excluded_loss")
    }
    return run.labelled(pd.DataFrame([{**row, **losses, "other_order_share": largest_share(E)}]))


def frequencies(run: Run) -> pd.DataFrame:
    """One row a stored step and frequency in use at the last: its share in the variance, and that of chance."""
    data = run.geometry
    in_use = np.flatnonzero(data["frequency_in_use"].values[-1] == 1)
    share = data["fourier_share"].sel(frequency=in_use).to_series().round(5).rename("share").reset_index()
    chance = data["top_frequency_share_null"].to_series().round(5).rename("chance")
    return run.labelled(share.merge(chance, left_on="step", right_index=True))


def circles(run: Run) -> pd.DataFrame:
    """One row a number and step: its place in the plane of the largest frequency there."""
    data, numbers = run.geometry, cyclic_order(run.config["p"], run.config["task"] in ("mul", "div"))
    steps = data["step"].values
    at = steps[np.unique(np.abs(np.log(steps[1:, None] / np.geomspace(1, steps[-1], SHOWN))).argmin(axis=0)) + 1]
    # And where its blocks were analysed.
    for name in run.analyses:
        at = np.union1d(at, run.analysis(name)["by_step"]["step"])
    parts = []
    for of in (data.sel(step=step) for step in at):
        k = max(int(np.nan_to_num(of["plane_frequency"].values[0], nan=0)), 0)
        share, r2 = (round(float(of[name].values[k]), 5) for name in ("fourier_share", "circle_r2"))
        x, y = of["plane_position"].values[0].round(5).T
        known = {"step": int(of["step"]), "frequency": k, "share": share, "r2": r2}
        parts.append(pd.DataFrame({"number": numbers, "x": x, "y": y}).assign(**known)[[*known, "number", "x", "y"]])
    return run.labelled(pd.concat(parts))
