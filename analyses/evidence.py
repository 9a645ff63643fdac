"""What the claims' scripts share: a study's files as an outsider reads them, intervals, verdicts, and what is written.

A claim is a function that takes the folder of the study's files and returns a Finding; `run` is its command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import xarray
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from landscape import open_hessian, open_run
from landscape.errors import LandscapeError
from landscape.plan import DEFINITION, SweepRun, load_sweep, sweep_runs
from landscape.plotting import save_figure, style
from landscape.provenance import provenance

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL, RESAMPLES = 0.95, 2000
MEMORISED, GROKKED = 0.99, 0.95
Floats = NDArray[np.float64]
Judgement = Literal["supported", "not supported", "undecided"]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One line of the table that opens the report. number: what decided, with its interval, in words."""

    claim: str
    statement: str
    judgement: Judgement
    number: str
    seeds: int


@dataclasses.dataclass(frozen=True)
class Panel:
    """One figure with exactly the data that it shows."""

    name: str
    figure: Figure
    data: pd.DataFrame
    caption: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a claim's script found. text: paragraphs of Markdown, every number in them from the data."""

    title: str
    verdicts: list[Verdict]
    panels: list[Panel]
    tables: dict[str, pd.DataFrame]
    text: list[str]
    files: list[Path]
    """The run and Hessian files behind it."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study: its labels (case, grid values, seed) and its files."""

    planned: SweepRun

    @property
    def labels(self) -> dict[str, Any]:
        return self.planned.labels

    @functools.cached_property
    def data(self) -> xarray.Dataset:
        """The run file, lazily: E, W, ... by step, metrics by metric_step, tokens."""
        return open_run(self.planned.path)

    def hessian(self, name: str = "") -> xarray.Dataset:
        """A Hessian file, lazily."""
        return open_hessian(self.planned.hessian[name])

    def first(self, metric: str, threshold: float) -> float:
        """First step at which a metric reached a threshold; NaN if it never did."""
        steps = self.data["metric_step"].values[self.data[metric].values >= threshold]
        return float(steps[0]) if len(steps) else np.nan

    @functools.cached_property
    def times(self) -> dict[str, float]:
        """memorised and grokked (NaN: never), their delay, and the last step that was watched."""
        memorised, grokked = self.first("train_accuracy", MEMORISED), self.first("test_accuracy", GROKKED)
        last = float(self.data["metric_step"].values[-1])
        return {"memorised": memorised, "grokked": grokked, "delay": grokked - memorised, "last": last}


def study(name: str, out: Path) -> list[Run]:
    """The finished runs of the study in OUT/NAME, which `landscape sweep` made."""
    definition = out / name / DEFINITION
    if not definition.exists():
        raise LandscapeError(f"{definition} is missing: no study {name} in {out}", "make studies")
    planned = sweep_runs(load_sweep(definition), out)
    missing = [run.path for run in planned if not run.path.exists()]
    if missing:
        raise LandscapeError(f"{len(missing)} runs of study {name} are missing, {missing[0]} the first", "make studies")
    return [Run(run) for run in planned]


def table_of(runs: Sequence[Run]) -> pd.DataFrame:
    """One row a run: its labels and times."""
    return pd.DataFrame([{**run.labels, **run.times} for run in runs])


# --- statistics -----------------------------------------------------------------------------------------------


def interval(sample: ArrayLike, of: Callable[..., Any] = np.median) -> tuple[float, float, float]:
    """A statistic of a sample with its 95 % bootstrap interval (percentile); NaN where there is no sample."""
    values = np.asarray(sample, dtype=float)
    if len(values) < 2:
        return (float(of(values)) if len(values) else np.nan), np.nan, np.nan
    found = stats.bootstrap(
        (values,), of, n_resamples=RESAMPLES, confidence_level=LEVEL, method="percentile", rng=0
    ).confidence_interval
    return float(of(values)), float(found.low), float(found.high)


def survival(times: ArrayLike, last: ArrayLike) -> stats._survival.EmpiricalDistributionFunction:
    """Kaplan-Meier estimate of the share not there yet; NaN times are censored at `last`."""
    at, censored_at = np.asarray(times, dtype=float), np.asarray(last, dtype=float)
    never = np.isnan(at)
    return stats.ecdf(stats.CensoredData(uncensored=at[~never], right=censored_at[never])).sf


def median_time(times: ArrayLike, last: ArrayLike) -> tuple[float, float, float]:
    """Kaplan-Meier median with its 95 % bootstrap interval over runs; infinite where half of them never got there."""
    at, censored_at = np.asarray(times, dtype=float), np.asarray(last, dtype=float)

    def median(index: NDArray[np.int64]) -> float:
        curve = survival(at[index], censored_at[index])
        below = curve.quantiles[curve.probabilities <= 0.5]
        return float(below[0]) if len(below) else np.inf

    rng = np.random.default_rng(0)
    n = len(at)
    found = np.sort([median(rng.integers(0, n, n)) for _ in range(RESAMPLES)])
    low, high = (found[int(q * (RESAMPLES - 1))] for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return median(np.arange(n)), float(low), float(high)


def sooner(a: pd.DataFrame, b: pd.DataFrame, column: str = "grokked") -> float:
    """p of the log-rank test that two groups of runs get there at the same pace; one sample censored at `last`."""
    groups = [
        stats.CensoredData(uncensored=t[column].dropna().to_numpy(), right=t.loc[t[column].isna(), "last"].to_numpy())
        for t in (a, b)
    ]
    return float(stats.logrank(*groups).pvalue)


def spearman(x: ArrayLike, y: ArrayLike) -> tuple[float, float, float]:
    """Rank correlation with its 95 % bootstrap interval over pairs."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)

    def rho(i: Any) -> float:
        return float(stats.spearmanr(a[i], b[i]).statistic) if np.ptp(a[i]) and np.ptp(b[i]) else np.nan

    rng = np.random.default_rng(0)
    found = [rho(rng.integers(0, len(a), len(a))) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return rho(np.arange(len(a))), float(low), float(high)


def words(value: float, low: float, high: float, digits: int = 3) -> str:
    """A number with its interval."""
    return f"{_number(value, digits)} (95 % interval {_number(low, digits)} to {_number(high, digits)})"


def _number(value: float, digits: int) -> str:
    if not np.isfinite(value):
        return "not reached" if value > 0 else "unknown"
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


# --- what is written ------------------------------------------------------------------------------------------


def write(name: str, finding: Finding, out: Path) -> list[Path]:
    """Figures with their CSV, and all tables as CSV and as one HDF5 file with provenance, under OUT/NAME."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for panel in finding.panels:
        with style():
            written += save_figure(panel.figure, panel.data, folder, panel.name)
    origin = {**provenance("cpu"), "files": "\n".join(path.name for path in finding.files)}
    origin = {key: value for key, value in origin.items() if key not in ("hostname", "argv")}
    tree = xarray.DataTree(dataset=xarray.Dataset(attrs=origin))
    for title, table in finding.tables.items():
        path = folder / f"{title}.csv"
        table.to_csv(path, index=False)
        written.append(path)
        plain = table.reset_index(drop=True).convert_dtypes(convert_string=False, convert_integer=False)
        tree[title] = xarray.DataTree(xarray.Dataset.from_dataframe(plain.rename_axis("row")))
    tree.to_netcdf(folder / "numbers.h5", engine="h5netcdf")
    return [*written, folder / "numbers.h5"]


def run(name: str, claim: Callable[[Path], Finding]) -> None:
    """Command line of one claim: read the studies' files, write figures and numbers, print the verdicts."""
    parser = argparse.ArgumentParser(description=sys.modules[claim.__module__].__doc__)
    parser.add_argument("--runs", type=Path, default=Path("checkpoints/studies"), help="folder of the studies' files")
    parser.add_argument("--out", type=Path, default=Path("reports/trial"), help="folder to write to")
    args = parser.parse_args()
    try:
        with style():
            finding = claim(args.runs)
            paths = write(name, finding, args.out)
    except LandscapeError as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    for verdict in finding.verdicts:
        print(f"{verdict.claim}: {verdict.judgement}. {verdict.statement}: {verdict.number} ({verdict.seeds} seeds)")
    for path in paths:
        print(path)
