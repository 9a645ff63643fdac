"""Measurements of C4: rows per block of a checkpoint or critical point, and numbers per seed made from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray
from evidence import CERTIFIED, PHASES, Run
from intervals import Judgement, interval, median_time, sooner, words
from numpy.typing import NDArray

ENDS = (("min", "lowest"), ("max", "highest"))
CONSTANT = 1e-8
"""Singular values of E below this share of the largest count as removed by weight decay."""


def phase_at(one: Run) -> dict[int, str]:
    """The phase of every stored step: of the few steps of a Hessian file, none may be near an event."""
    stored = one.data["step"].values
    return dict(zip(stored.tolist(), one.phases(stored), strict=True))


def count(value: Any) -> float:
    """A whole number, or NaN if unknown."""
    return int(value) if np.isfinite(value) else np.nan


def spectrum(at: xarray.Dataset) -> dict[str, Any]:
    """The inertia of one block at one point with its level, and both ends of the spectrum."""
    inertia = dict(zip(("index", "zeros", "positive"), map(count, at["inertia"].values), strict=True))
    ends = {f"lambda_{end}": float(at["eigenvalues"].sel(end=name, rank=0)) for end, name in ENDS}
    return (
        {"block": str(at["block"].item()), **inertia, "gauge_free": count(at["saddle_index_gauge_free"])}
        | {"lower": int(at["inertia_lower"]), "upper": int(at["inertia_upper"]), **ends}
        | {"certified": int(at["inertia_level"] == CERTIFIED), "tolerance": float(at["inertia_tolerance"])}
    )


def checkpoints(one: Run, name: str) -> pd.DataFrame:
    """One row per step and block of a Hessian file."""
    with one.hessian(name) as data:
        found = data.load()
    rows, phases = [], phase_at(one)
    for step in found["step"].values.tolist():
        for block in found["block"].values:
            at = found.sel(step=step, block=block)
            pair = found.sel(step=step, pair=block) if block in found["pair"].values else None
            rows.append(
                {**one.labels, "step": step, "phase": phases[step], **spectrum(at), "grad_norm": float(at["grad_norm"])}
                | {f"mass_{m}": float(at["bottom_mass"].sel(part=m)) for m in ("E", "W", "V", "bias")}
                | {"kappa_1": float(pair["coupling_ratios"][0]) if pair is not None else np.nan}
                | {"coupling_index": count(pair["coupling_index"]) if pair is not None else np.nan}
                | {"saddle_bound": float(at["saddle_bound"]), "rank_bound": count(at["saddle_rank_bound"])}
            )
    return pd.DataFrame(rows)


def refined(one: Run, name: str) -> pd.DataFrame:
    """One row per block of the point that a search for a critical point ended at."""
    with one.hessian(name) as data:
        found = data.load().isel(step=0)
    with xarray.open_dataset(one.planned.hessian[name], group="critical_point", engine="h5netcdf") as group:
        point = group.load().isel(step=0)
    step = int(found["step"])
    search = {
        "from_step": step,
        "phase": phase_at(one)[step],
        "status": point["status"].attrs["flag_meanings"].split()[int(point["status"])],
        "grad_norm_before": float(point["start_grad_norm"]),
        "grad_norm_after": float(point["grad_norm"]),
        "distance": float(point["distance"]),
        "flatness": float(point["flatness"]),
        "num_products": int(point["num_products"]),
        "rotations": rotations(point["E"].values),
    }
    rows = [{**one.labels, **search, **spectrum(found.sel(block=block))} for block in found["block"].values]
    return pd.DataFrame(rows)


def rotations(E: NDArray[np.float64]) -> int:
    """Dimension of the orbit of E under rotations of its columns, along which a loss with weight decay is constant."""
    d = E.shape[1]
    values = np.linalg.svd(E, compute_uv=False)
    empty = d - int((values > CONSTANT * values[0]).sum())
    return d * (d - 1) // 2 - empty * (empty - 1) // 2


def negative(points: pd.DataFrame, block: str) -> pd.Series:
    """1 where a block has certified index above 0 at a critical point, 0 where it is 0, NaN where that is not known."""
    found = points[(points["block"] == block) & (points["status"] == "critical")].set_index(["seed", "phase"])
    return (found["lower"] > 0).astype(float).where(found["certified"] == 1)


def wide(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """One row per checkpoint, one column per block."""
    return table.pivot(index=["case", "seed", "step", "phase"], columns="block", values=column)


def by_seed(values: pd.Series, phases: tuple[str, ...] = PHASES) -> tuple[float, float, float]:
    """Mean over the checkpoints of a seed in some phases, then the median over seeds with its interval."""
    kept = values[values.index.get_level_values("phase").isin(phases)].dropna().astype(float)
    return interval(kept.groupby("seed").mean())


def coupled(table: pd.DataFrame) -> pd.Series:
    """1 where E and W alone have certified index 0 and E,W has one above 0, else 0."""
    table = table[table["block"].isin(("E", "W", "E,W"))]
    low, high, sure = wide(table, "lower"), wide(table, "upper"), wide(table, "certified")
    holds = (high[["E", "W"]] == 0).all(axis=1) & (low["E,W"] > 0) & (sure[["E", "W", "E,W"]] == 1).all(axis=1)
    return holds.astype(float)


def gauge_free(table: pd.DataFrame) -> pd.Series:
    """1 where E,W has negative curvature off the gauge tangents, 0 where it has none, NaN where that is not known."""
    index = wide(table, "gauge_free")["E,W"]
    return (index > 0).astype(float).where(index.notna())


def depth(table: pd.DataFrame) -> pd.Series:
    """lambda_min of E,W over that of the control W,V: above 1 where E,W goes deeper."""
    lowest = wide(table, "lambda_min")
    return lowest["E,W"] / lowest["W,V"]


def deepest(table: pd.DataFrame) -> str:
    """Which pair has the lowest eigenvalue, phase by phase, in words."""
    pair = wide(table, "lambda_min")[["E,W", "W,V", "E,V"]].dropna().idxmin(axis=1)
    counts = {phase: pair[pair.index.get_level_values("phase") == phase].value_counts() for phase in PHASES}
    return "; ".join(
        f"{phase} " + ", ".join(f"{name} at {n} of {found.sum()} checkpoints" for name, n in found.items())
        for phase, found in counts.items()
        if len(found)
    )


def shorter(frozen: pd.DataFrame, base: pd.DataFrame) -> tuple[Judgement, str]:
    """Whether runs that memorised have a shorter delay when frozen: log-rank at 5 %, and its direction."""
    groups = []
    for runs in (frozen, base):
        runs = runs[runs["memorised"].notna()]
        groups.append(runs.assign(last=runs["last"] - runs["memorised"]))
    medians = [median_time(group["delay"], group["last"]) if len(group) else (np.nan,) * 3 for group in groups]
    told = (
        f"{words(*medians[0])}, base {words(*medians[1])}, in steps; {len(groups[0])} of {len(frozen)} runs memorised"
    )
    if not all(len(group) for group in groups) or not any(group["delay"].notna().any() for group in groups):
        return "undecided", told
    p = sooner(*groups, column="delay")
    found: Judgement = "supported" if medians[0][0] < medians[1][0] else "not supported"
    return (found if p < 0.05 else "undecided"), f"{told}; log-rank p = {p:.2g}"


def told(values: pd.Series, *phases: str) -> str:
    """A quantity phase by phase: median over seeds and, in brackets, its 95 % interval."""
    found = {phase: by_seed(values, (phase,)) for phase in phases or PHASES}
    parts = []
    for phase, numbers in found.items():
        at, low, high = (f"{x:.3g}" if abs(x) < 1000 else f"{x:,.0f}" for x in numbers)
        # One seed has no interval; a phase that no run reached has no number.
        parts += [f"{phase} {at}" + (f" [{low} to {high}]" if low != "nan" else "")] if at != "nan" else []
    return ", ".join(parts) or "no checkpoint"


def span(values: pd.Series) -> str:
    """Least and largest value, in words."""
    return f"{values.min():.2g} to {values.max():.2g}" if len(values) else "unknown, for want of a checkpoint,"


def spread(counts: pd.Series) -> str:
    """Least and largest of some counts, in words; once where they are the same."""
    known = counts.dropna().astype(int)
    return " to ".join(str(n) for n in sorted({known.min(), known.max()})) if len(known) else "unknown"


def groups(table: pd.DataFrame) -> pd.DataFrame:
    """Medians over seeds of the index, as is and gauge-free, and of the lowest eigenvalue, by case, phase and block."""
    rows = []
    for (case, phase, block), part in table.groupby(["case", "phase", "block"], sort=False):
        for name in ("index", "gauge_free", "lambda_min", "kappa_1", "grad_norm"):
            means = part.groupby("seed")[name].mean().dropna()
            numbers = dict(zip(("median", "low", "high"), interval(means), strict=True))
            seeds = part["seed"].nunique()
            rows.append({"case": case, "phase": phase, "block": block, "quantity": name, **numbers, "seeds": seeds})
    return pd.DataFrame(rows).dropna(subset="median")


def delay(times: pd.DataFrame) -> str:
    """Kaplan-Meier median delay of the runs that memorised, in words."""
    kept = times[times["memorised"].notna()]
    if not len(kept):
        return "unknown"
    return words(*median_time(kept["delay"], kept["last"] - kept["memorised"]))
