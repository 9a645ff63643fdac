"""Measurements of C6: when a top eigenvalue starts to fall, when accuracy gets there, and how far apart the two are."""

from __future__ import annotations

import numpy as np
import pandas as pd
from evidence import Run
from intervals import median_time, spearman
from numpy.typing import ArrayLike, NDArray
from scipy import signal, stats

BEGUN, RISEN = 0.1, 0.5
"""Test accuracy that counts as beginning to rise, and as risen."""
PROMINENCE = np.log10(1.5)
"""Decades by which a peak stands out."""


def smooth(values: ArrayLike) -> NDArray[np.float64]:
    """Running median of three; the ends stay."""
    y = np.asarray(values, dtype=float)
    if len(y) < 3:
        return y
    middle = np.median(np.lib.stride_tricks.sliding_window_view(y, 3), axis=1)
    return np.concatenate([y[:1], middle, y[-1:]])


def highest(values: ArrayLike, first: int, last: int) -> int:
    """The last place of the largest value among those from first to last."""
    part = np.asarray(values, dtype=float)[first : last + 1]
    return first + int(np.flatnonzero(part == part.max())[-1])


def fall(steps: ArrayLike, values: ArrayLike) -> float:
    """The step of the maximum, looked for where the smoothed values are at theirs."""
    y = smooth(values)
    # A median of three repeats the height of a peak beside it.
    top = np.flatnonzero(y == y.max())
    return float(np.asarray(steps)[highest(values, top[0], top[-1])])


def last_fall(steps: ArrayLike, values: ArrayLike) -> float:
    """The step of the last peak of the smoothed values that stands out by PROMINENCE decades; NaN without one."""
    peaks, found = signal.find_peaks(np.log10(smooth(values)), prominence=PROMINENCE, plateau_size=1)
    if not len(peaks):
        return np.nan
    return float(np.asarray(steps)[highest(values, found["left_edges"][-1], found["right_edges"][-1])])


def steepest(steps: ArrayLike, values: ArrayLike) -> float:
    """The geometric middle of the two checkpoints between which values fall fastest, both on a log scale."""
    x, y = np.log(np.maximum(np.asarray(steps, dtype=float), 1.0)), np.log(np.asarray(values, dtype=float))
    moved = np.diff(x) > 0
    slopes = np.diff(y)[moved] / np.diff(x)[moved]
    at = slopes.argmin()
    return float(np.exp(0.5 * (x[:-1] + x[1:])[moved][at]))


def events(one: Run, table: pd.DataFrame) -> dict[str, float | int | str]:
    """The events of a run, and how test accuracy goes with each top eigenvalue from memorisation on."""
    mine = table[(table["case"] == one.labels["case"]) & (table["seed"] == one.labels["seed"])]
    found = {**one.labels, "train": one.times["memorised"], "last": one.times["last"]}
    found |= {"first_test": one.first("test_accuracy", BEGUN), "test": one.first("test_accuracy", RISEN)}
    for block in ("W", "E"):
        part = mine[mine["block"] == block]
        steps, values = part["step"].to_numpy(), part["lambda_max"].to_numpy()
        # There is no ratio to step 0; 1 is the first checkpoint after it.
        found[f"fall_{block}"] = max(fall(steps, values), 1.0)
        found[f"last_fall_{block}"] = last_fall(steps, values)
        found[f"steepest_{block}"] = steepest(steps, values)
        later = steps >= found["train"]
        accuracy = np.interp(steps[later], one.data["metric_step"], one.data["test_accuracy"])
        varied = later.sum() > 2 and np.ptp(accuracy) > 0
        found[f"rho_{block}"] = float(stats.spearmanr(values[later], accuracy).statistic) if varied else np.nan
    return found


def over(table: pd.DataFrame, event: str, since: str) -> tuple[float, float, float]:
    """Median over runs, with its interval, of the step of one event over that of another; censored at the last step."""
    kept = table[table[since].notna()]
    return median_time(kept[event] / kept[since], kept["last"] / kept[since]) if len(kept) else (np.nan,) * 3


def nearer(table: pd.DataFrame, event: str, block: str, other: str) -> pd.Series:
    """By how many powers of two an event is nearer to the fall of a block than to that of the other, by run.

    An event that did not occur counts at the last step: after both falls its step makes no difference.
    """
    at = np.log2(table[event].fillna(table["last"]))
    return (at - np.log2(table[f"fall_{other}"])).abs() - (at - np.log2(table[f"fall_{block}"])).abs()


def order(row: pd.Series) -> str:
    """The events of a run in their order."""
    names = {"fall_W": "W falls", "train": "training done", "fall_E": "E falls", "test": "test risen"}
    came = row[list(names)].dropna().astype(float).sort_values(kind="stable")
    signs = ["", *(" = " if same else " < " for same in np.diff(came) == 0)]
    return "".join(sign + names[event] for sign, event in zip(signs, came.index, strict=True))


def spearman_of(found: pd.DataFrame, a: str, b: str) -> tuple[float, float, float]:
    """Rank correlation of two events over the runs that had both."""
    both = found[[a, b]].dropna()
    return spearman(both[a], both[b]) if len(both) > 2 else (np.nan, np.nan, np.nan)
