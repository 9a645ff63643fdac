"""Measurements of C5 and C6: top eigenvalues of E and W over the steps of a run, and numbers per seed."""

from __future__ import annotations

import numpy as np
import pandas as pd
from evidence import CERTIFIED, PHASES, Run
from intervals import interval

CASES = {"c1": "Adam", "c10": "Adam-LR, c = 10"}
FIRST = 10
"""First step at which a peak counts."""


def curves(one: Run) -> pd.DataFrame:
    """One row per step and block of a run: phase, top eigenvalue, gradient norm, curvature ratio."""
    with one.hessian("top") as data:
        found = data.load()
    steps = found["step"].values
    frames = [
        pd.DataFrame(
            {
                "case": one.labels["case"],
                "seed": one.labels["seed"],
                "step": steps,
                "phase": one.phases(steps),
                "block": block,
                "lambda_max": found["eigenvalues"].sel(block=block, end="highest", rank=0).values,
                "residual_norm": found["residual_norm"].sel(block=block, end="highest", rank=0).values,
                "index": found["inertia"].sel(block=block, sign="negative").values,
                "certified": (found["inertia_level"].sel(block=block).values == CERTIFIED).astype(int),
                "tolerance": found["inertia_tolerance"].sel(block=block).values,
                "grad_norm": found["grad_norm"].sel(block=block).values,
                "curvature_ratio": found["curvature_ratio"].values,
                "predicted": found["curvature_ratio_predicted"].values,
            }
        )
        for block in ("E", "W")
    ]
    return pd.concat(frames, ignore_index=True)


def gap(table: pd.DataFrame, phase: str) -> pd.DataFrame:
    """One row per case and seed: mean of log10 of the curvature ratio over a phase, and of its size."""
    part = table[(table["phase"] == phase) & (table["block"] == "W")]
    logs = part.assign(log=np.log10(part["curvature_ratio"]), size=np.log10(part["curvature_ratio"]).abs())
    return logs.groupby(["case", "seed"])[["log", "size"]].mean()


def of(values: pd.Series, case: str) -> pd.Series:
    """The values of one case by seed; none if no run of it has one."""
    return values[values.index.get_level_values("case") == case].droplevel("case")


def paired(values: pd.Series) -> pd.Series:
    """Adam less Adam-LR, seed by seed."""
    return (of(values, "c1") - of(values, "c10")).dropna()


def same_steps(table: pd.DataFrame) -> pd.Series:
    """Mean gap of Adam less that of Adam-LR, seed by seed, over the steps that both have."""
    part = table[(table["block"] == "W") & (table["step"] > 0)]
    gaps = part.set_index(["case", "seed", "step"])["curvature_ratio"].map(np.log10).abs()
    return paired(gaps).groupby("seed").mean()


def peaks(table: pd.DataFrame) -> pd.Series:
    """Largest top eigenvalue from step FIRST on, by block, case and seed."""
    return table[table["step"] >= FIRST].groupby(["block", "case", "seed"])["lambda_max"].max()


def groups(table: pd.DataFrame) -> pd.DataFrame:
    """Medians over seeds of the phases' geometric means, by case and phase."""
    rows = []
    for phase in PHASES:
        for case, logs in gap(table, phase)["log"].groupby("case"):
            ratio, low, high = (10.0**x for x in interval(logs))
            rows.append(
                {"case": case, "phase": phase, "curvature_ratio": ratio, "low": low, "high": high, "seeds": len(logs)}
            )
    return pd.DataFrame(rows)
