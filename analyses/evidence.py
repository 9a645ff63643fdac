"""What the claims' scripts share: a study's files as an outsider reads them, intervals, verdicts, and what is written.

A claim is a function that takes the folder of the study's files and returns a Finding; `run` is its command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import xarray
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from landscape import open_hessian, open_run
from landscape.config import TrainConfig
from landscape.errors import LandscapeError
from landscape.plan import DEFINITION, SweepRun, load_sweep, sweep_runs
from landscape.plotting import save_figure, style
from landscape.provenance import provenance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASES = ("start", "memorising", "plateau", "grokked")
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

    @property
    def name(self) -> str:
        """STUDY/RUN, as its file is called."""
        return f"{self.planned.path.parent.name}/{self.planned.path.stem}"

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

    def phases(self, steps: ArrayLike) -> list[str]:
        """The phase of each step: start, memorising, plateau (from the step nearest to `memorised` on), grokked."""
        return phases(steps, self.times["memorised"], self.times["grokked"])


def phases(steps: ArrayLike, memorised: float, grokked: float) -> list[str]:
    """As `Run.phases`. A phase begins at the step nearest to its event, as checkpoints for analysis are chosen."""
    at = np.asarray(steps, dtype=float)
    # An event that never came begins no phase.
    plateau, after = (np.inf if np.isnan(t) else at[np.abs(at - t).argmin()] for t in (memorised, grokked))
    choices = [at == 0, at >= after, at >= plateau]
    return [str(name) for name in np.select(choices, ["start", "grokked", "plateau"], "memorising")]


def study(name: str, out: Path) -> list[Run]:
    """The finished runs of the study in OUT/NAME, which `landscape sweep` made."""
    definition = out / name / DEFINITION
    if not definition.exists():
        raise LandscapeError(f"{definition} is missing: no study {name} in {out}", "make studies")
    runs = [Run(run) for run in sweep_runs(load_sweep(definition), out)]
    # A run that is still being trained would read as one that was watched for a shorter time.
    missing = [r.planned.path for r in runs if not r.planned.path.exists() or r.data.attrs["status"] != "complete"]
    if missing:
        raise LandscapeError(
            f"{len(missing)} of {len(runs)} runs of study {name} are missing or unfinished, {missing[0]} the first",
            "make studies",
        )
    return runs


def distinct(runs: Sequence[Run]) -> list[Run]:
    """The first of those runs that differ in checkpoints and extra steps alone: studies may share some."""
    found: dict[TrainConfig, Run] = {}
    for one in runs:
        alike = dataclasses.replace(
            one.planned.config, checkpoint_every=0, checkpoint_log=0, checkpoint_at=(), extra_steps=0
        )
        found.setdefault(alike, one)
    return list(found.values())


def table_of(runs: Sequence[Run]) -> pd.DataFrame:
    """One row a run: its labels and times."""
    return pd.DataFrame([{**run.labels, **run.times} for run in runs])


def setting(config: TrainConfig, *varied: str) -> str:
    """The set-up of a study in words, without the options that it varies."""
    whole = config.batch_size == "full"
    parts = {
        "task": f"task {config.task} mod {config.p}, {config.tokens} tokens",
        "embed_dim": f"d = {config.embed_dim}",
        "hidden": f"h = {config.hidden}",
        "train_fraction": f"{config.train_fraction:.0%} of the pairs trained on",
        "batch_size": "full batches" if whole else f"batches of {config.batch_size}",
        "optimizer": config.optimizer,
        "lr": f"learning rate {config.lr:g}",
        "weight_decay": f"weight decay {config.weight_decay:g}",
        "steps": f"at most {config.steps:,} steps",
    }
    return ", ".join(text for option, text in parts.items() if option not in varied)


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

    draws = np.random.default_rng(0).integers(0, len(at), (RESAMPLES, len(at)))
    found = np.sort(_medians(at, censored_at, draws))
    low, high = (found[int(q * (RESAMPLES - 1))] for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return _median(at, censored_at), float(low), float(high)


def _median(times: Floats, last: Floats) -> float:
    curve = survival(times, last)
    # A product of fractions that is a half may come out a rounding error above it.
    below = curve.quantiles[curve.probabilities <= 0.5 + 1e-12]
    return float(below[0]) if len(below) else np.inf


def _medians(times: Floats, last: Floats, draws: NDArray[np.int64]) -> Floats:
    """`_median` of each row of draws (resample, run); SciPy takes one sample at a time, and a hundred times as long."""
    never = np.isnan(times)
    at = np.where(never, last, times)
    # By time, and what happens at a step comes before what is censored there.
    order = np.lexsort((never, at))
    drawn = order[np.sort(np.argsort(order)[draws], axis=1)]
    share = np.cumprod(1 - ~never[drawn] / np.arange(draws.shape[1], 0, -1), axis=1)
    there = share <= 0.5 + 1e-12
    first = np.take_along_axis(at[drawn], there.argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.where(there.any(axis=1), first, np.inf)


def km_median(times: ArrayLike, last: ArrayLike) -> float:
    """Kaplan-Meier median without an interval; infinite where half of them never got there."""
    return _median(np.asarray(times, dtype=float), np.asarray(last, dtype=float))


def resamples(n: int) -> list[tuple[int, ...]]:
    """RESAMPLES bootstrap samples of n seeds, each sorted: of few seeds most come again, and a cache saves work."""
    return [tuple(sorted(draw)) for draw in np.random.default_rng(0).integers(0, n, (RESAMPLES, n)).tolist()]


def logrank(a: pd.DataFrame, b: pd.DataFrame, column: str = "grokked") -> tuple[float, float]:
    """Statistic and p of the log-rank test that two groups of runs get there at the same pace, NaN censored at `last`.

    The statistic is standard normal where they do, and above 0 where `a` is sooner.
    """
    if a[column].isna().all() and b[column].isna().all():
        return 0.0, 1.0
    groups = [
        stats.CensoredData(uncensored=t[column].dropna().to_numpy(), right=t.loc[t[column].isna(), "last"].to_numpy())
        for t in (a, b)
    ]
    found = stats.logrank(*groups)
    return float(found.statistic), float(found.pvalue)


def sooner(a: pd.DataFrame, b: pd.DataFrame, column: str = "grokked") -> float:
    """p of the log-rank test that two groups of runs get there at the same pace; one sample censored at `last`."""
    return logrank(a, b, column)[1]


def spearman(x: ArrayLike, y: ArrayLike) -> tuple[float, float, float]:
    """Rank correlation with its 95 % bootstrap interval over pairs."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)

    def rho(i: Any) -> float:
        return float(stats.spearmanr(a[i], b[i]).statistic) if np.ptp(a[i]) and np.ptp(b[i]) else np.nan

    rng = np.random.default_rng(0)
    found = [rho(rng.integers(0, len(a), len(a))) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return rho(np.arange(len(a))), float(low), float(high)


def clustered_line(x: ArrayLike, y: ArrayLike, cluster: ArrayLike) -> dict[str, tuple[float, float, float]]:
    """Least squares of y on x, each number with its 95 % bootstrap interval over whole clusters, all of one weight.

    slope, intercept, r2; offset: mean of y - x; r2_identity: of the line y = x, negative where the mean of y does
    better; slope_within: with an intercept of its own for each cluster; r2_within: of that line inside clusters.
    """
    rows = pd.DataFrame({"x": np.asarray(x, dtype=float), "y": np.asarray(y, dtype=float)})
    rows = rows.assign(xx=rows.x**2, xy=rows.x * rows.y, yy=rows.y**2, ee=(rows.y - rows.x) ** 2)
    m = rows.groupby(np.asarray(cluster)).mean()
    data = m.assign(wxx=m.xx - m.x**2, wxy=m.xy - m.x * m.y, wyy=m.yy - m.y**2).to_numpy().T

    def line(moments: Floats) -> list[Any]:
        x, y, xx, xy, yy, ee, wxx, wxy, wyy = moments
        cxx, cxy, cyy = xx - x * x, xy - x * y, yy - y * y
        # No spread but rounding gives no line.
        cxx, cyy, wxx, wyy = (np.where(v > 1e-12, v, np.nan) for v in (cxx, cyy, wxx, wyy))
        slope = cxy / cxx
        return [slope, y - slope * x, cxy**2 / (cxx * cyy), y - x, 1 - ee / cyy, wxy / wxx, wxy**2 / (wxx * wyy)]

    n = data.shape[1]
    drawn = np.array(line(data[:, np.random.default_rng(0).integers(0, n, (RESAMPLES, n))].mean(-1)))
    if n < 2:
        drawn[:] = np.nan
    names = ("slope", "intercept", "r2", "offset", "r2_identity", "slope_within", "r2_within")
    tail = (1 - LEVEL) / 2
    found = {}
    for name, value, sample in zip(names, line(data.mean(-1)), drawn, strict=True):
        low, high = np.nanquantile(sample, [tail, 1 - tail]) if np.isfinite(sample).any() else (np.nan, np.nan)
        found[name] = (float(value), float(low), float(high))
    return found


def judge(low: float, high: float, threshold: float) -> Judgement:
    """Supported if the whole interval lies above the threshold, not supported if below it."""
    return "supported" if low > threshold else "not supported" if high < threshold else "undecided"


def within(number: tuple[float, float, float], low: float, high: float) -> Judgement:
    """A number's interval against the range that a claim asks for: inside it, outside it, or astride its ends."""
    _, a, b = number
    if a >= low and b <= high:
        return "supported"
    return "not supported" if a > high or b < low else "undecided"


def all_of(*judgements: Judgement) -> Judgement:
    """Of a claim that asks for several things: one that fails decides against it."""
    for found in ("not supported", "undecided"):
        if found in judgements:
            return found
    return "supported"


def columns(name: str, number: tuple[float, float, float]) -> dict[str, float]:
    """A number and the ends of its interval as columns of a table."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), number, strict=True))


def rule(doc: str | None) -> str:
    """The rule of the verdicts, which a script states in its docstring, as a paragraph."""
    return " ".join((doc or "").split("\n\n", 1)[-1].split())


def words(value: float, low: float, high: float, digits: int = 3, infinite: str = "not reached") -> str:
    """A number with its interval."""
    middle, least, most = (number(x, digits, infinite) for x in (value, low, high))
    return middle if middle == least == most == infinite else f"{middle} (95 % interval {least} to {most})"


def number(value: float, digits: int = 3, infinite: str = "not reached") -> str:
    """A number of so many digits."""
    if not np.isfinite(value):
        return infinite if value > 0 else "unknown"
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if abs(float(text)) >= 10**digits else text


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two groups of runs: median time of the first over that of the second, its interval, and the log-rank test."""

    ratio: float
    low: float
    high: float
    statistic: float
    """Above 0 where the first is sooner."""
    p: float

    def judgement(self, level: float = 1 - LEVEL) -> Judgement:
        """Whether the first is sooner, by p and direction."""
        if not self.p < level:
            return "undecided"
        return "supported" if self.statistic > 0 else "not supported"

    def __str__(self) -> str:
        return f"{words(self.ratio, self.low, self.high, infinite='infinite')}, log-rank p = {self.p:.2g}"


def compare(a: pd.DataFrame, b: pd.DataFrame, column: str = "grokked") -> Comparison:
    """Whether the runs `a` get there sooner than the runs `b`; the interval by bootstrap over runs.

    Where both have the same seeds, seeds are drawn, so that what a seed does to both is not taken for chance. Where
    neither median is reached the ratio is unknown, and counts as 0 in the lower and as infinite in the upper limit.
    """
    paired = "seed" in a and "seed" in b and a["seed"].is_unique and set(a["seed"]) == set(b["seed"])
    if paired:
        a, b = a.sort_values("seed"), b.sort_values("seed")
    rng, groups = np.random.default_rng(0), [(t[column].to_numpy(float), t["last"].to_numpy(float)) for t in (a, b)]
    draws = [rng.integers(0, len(t), (RESAMPLES, len(t))) for t in (a, b)]
    if paired:
        draws[1] = draws[0]
    drawn = _over(*(_medians(*group, index) for group, index in zip(groups, draws, strict=True)))
    tail = (1 - LEVEL) / 2
    low = np.quantile(np.nan_to_num(drawn, nan=0.0, posinf=np.inf), tail, method="lower")
    high = np.quantile(np.nan_to_num(drawn, nan=np.inf, posinf=np.inf), 1 - tail, method="higher")
    ratio = _over(*(np.array(_median(*group)) for group in groups))
    return Comparison(float(ratio), float(low), float(high), *logrank(a, b, column))


def _over(a: Floats, b: Floats) -> Floats:
    """a / b, NaN where both are infinite."""
    with np.errstate(invalid="ignore"):
        return a / b


def summary(table: pd.DataFrame, by: Sequence[str], column: str = "grokked") -> pd.DataFrame:
    """One row a group of runs: how many, how many got there, and the median time with its interval."""
    rows = []
    for key, group in table.groupby(list(by), sort=False):
        median, low, high = median_time(group[column], group["last"])
        counts = {"runs": len(group), "reached": int(group[column].notna().sum())}
        labels = dict(zip(by, key, strict=True))
        rows.append({**labels, **counts, "median": median, "low": low, "high": high})
    return pd.DataFrame(rows)


def survival_table(times: ArrayLike, last: ArrayLike) -> pd.DataFrame:
    """The Kaplan-Meier curve from step 0 on: step, share not there yet, its pointwise interval (log-log), censored."""
    curve = survival(times, last)
    with warnings.catch_warnings():
        # At shares of 1 and 0 the formula has no value.
        warnings.simplefilter("ignore", RuntimeWarning)
        limits = curve.confidence_interval(LEVEL, method="log-log")
    censored_at = np.asarray(last, dtype=float)[np.isnan(np.asarray(times, dtype=float))]
    steps, share = np.r_[0.0, curve.quantiles], np.r_[1.0, curve.probabilities]
    low, high = (np.r_[1.0, side.probabilities] for side in limits)
    low[share == 1], high[share == 1], low[share == 0] = 1, 1, 0
    found = pd.DataFrame({"step": steps, "share": share, "low": low, "high": high}).ffill()
    return found.assign(censored=[int((censored_at == step).sum()) for step in steps])


def draw_survival(axes: Axes, curve: pd.DataFrame, colour: Any, label: str, line: str = "-") -> None:
    """One Kaplan-Meier curve with its interval; a tick where runs are censored."""
    axes.step(curve["step"], curve["share"], where="post", color=colour, linestyle=line, label=label)
    axes.fill_between(curve["step"], curve["low"], curve["high"], step="post", color=colour, alpha=0.15, linewidth=0)
    ends = curve[curve["censored"] > 0]
    if len(ends):
        axes.plot(ends["step"], ends["share"], "|", color=colour, markersize=9, clip_on=False)


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
        # A column such as the batch size, numbers and `full`, is text in HDF5.
        text = {name: str for name in table if table[name].dtype == object}
        plain = table.reset_index(drop=True).astype(text)
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
