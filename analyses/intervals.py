"""Statistics of the claims' scripts: bootstrap intervals, times that may be censored, verdicts, numbers in words."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

LEVEL, RESAMPLES = 0.95, 2000
Floats = NDArray[np.float64]
Judgement = Literal["supported", "not supported", "undecided"]


def interval(sample: ArrayLike, of: Callable[..., Any] = np.median) -> tuple[float, float, float]:
    """A statistic of a sample with its 95 % bootstrap interval (percentile); NaN where a number is missing.

    Two values have no interval: even their whole range would hold the median in half of all cases only.
    """
    values = np.asarray(sample, dtype=float)
    if len(values) < 3 or np.isnan(values).any():
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


def km_median(times: ArrayLike, last: ArrayLike) -> float:
    """Kaplan-Meier median; infinite where half of them never got there."""
    curve = survival(times, last)
    # A product of fractions that is a half may come out a rounding error above it.
    below = curve.quantiles[curve.probabilities <= 0.5 + 1e-12]
    return float(below[0]) if len(below) else np.inf


def median_time(times: ArrayLike, last: ArrayLike) -> tuple[float, float, float]:
    """Kaplan-Meier median with its 95 % bootstrap interval over runs; infinite where half of them never got there."""
    at, censored_at = np.asarray(times, dtype=float), np.asarray(last, dtype=float)

    draws = np.random.default_rng(0).integers(0, len(at), (RESAMPLES, len(at)))
    found = np.sort(_medians(at, censored_at, draws))
    low, high = (found[int(q * (RESAMPLES - 1))] for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return km_median(at, censored_at), float(low), float(high)


def _medians(times: Floats, last: Floats, draws: NDArray[np.int64]) -> Floats:
    """`km_median` of each row of draws (resample, run); SciPy takes one sample at a time, and is far slower."""
    never = np.isnan(times)
    at = np.where(never, last, times)
    # By time, and what happens at a step comes before what is censored there.
    order = np.lexsort((never, at))
    drawn = order[np.sort(np.argsort(order)[draws], axis=1)]
    share = np.cumprod(1 - ~never[drawn] / np.arange(draws.shape[1], 0, -1), axis=1)
    there = share <= 0.5 + 1e-12
    first = np.take_along_axis(at[drawn], there.argmax(axis=1)[:, None], axis=1)[:, 0]
    return np.where(there.any(axis=1), first, np.inf)


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
    return rho(np.arange(len(a))), *_limits(found)


def _limits(drawn: ArrayLike) -> tuple[float, float]:
    """The ends of the interval that resamples give, those without a value left out; NaN where none has one."""
    if not np.isfinite(drawn).any():
        return np.nan, np.nan
    low, high = np.nanquantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


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
    values = zip(names, line(data.mean(-1)), drawn, strict=True)
    return {name: (float(value), *_limits(sample)) for name, value, sample in values}


def above(number: tuple[float, float, float], threshold: float) -> Judgement:
    """A number's interval against a threshold: supported if all of it lies above, not supported if all of it below."""
    _, low, high = number
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
    ratio = _over(*(np.array(km_median(*group)) for group in groups))
    return Comparison(float(ratio), float(low), float(high), *logrank(a, b, column))


def _over(a: Floats, b: Floats) -> Floats:
    """a / b, NaN where both are infinite."""
    with np.errstate(invalid="ignore"):
        return a / b


def summary(table: pd.DataFrame, by: Sequence[str], column: str = "grokked") -> pd.DataFrame:
    """One row per group of runs: how many, how many got there, and the median time with its interval."""
    rows = []
    for key, group in table.groupby(list(by), sort=False):
        median, low, high = median_time(group[column], group["last"])
        counts = {"runs": len(group), "reached": int(group[column].notna().sum())}
        labels = dict(zip(by, key, strict=True))
        rows.append({**labels, **counts, "median": median, "low": low, "high": high})
    return pd.DataFrame(rows, columns=[*by, "runs", "reached", "median", "low", "high"])


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
