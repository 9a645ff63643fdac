"""Statistics of the trial: exact signed ranks over paired seeds, order statistics, Holm's correction, survival."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

ALPHA = 0.05
Name = TypeVar("Name", bound=Hashable)


def signed_rank_p(x: ArrayLike) -> float:
    """p of the two-sided test that x (seed,) is symmetric around 0, over all signs of its ranks.

    Ranks are those of |x|, equal ones share theirs, infinite ones are highest; zeros are ranked and count for neither
    side (Pratt 1959). 1.0 for zeros alone.
    """
    # Ratios of steps that are as far from 1, such as 11/12 and 12/11, have equal logarithms but for rounding.
    values = np.round(np.asarray(x, dtype=float), 12)
    # Twice the ranks are whole numbers; zeros keep theirs, but have no sign.
    ranks = np.rint(2 * stats.rankdata(np.abs(values))).astype(int)
    moved = ranks[values != 0]
    # Of each sum of the ranks that come out positive, how many of the 2^n choices of signs give it.
    count = np.array([1.0])
    for rank in moved:
        none = np.zeros(rank)
        # Halved at each step, so that many seeds overflow nothing.
        count = (np.r_[count, none] + np.r_[none, count]) / 2
    share = count
    positive, middle = ranks[values > 0].sum(), moved.sum() / 2
    at = np.arange(len(share))
    return float(min(1.0, share[np.abs(at - middle) >= abs(positive - middle) - 1e-9].sum()))


def median_interval(x: ArrayLike, level: float = 0.95) -> tuple[float, float, float]:
    """Median of x (seed,) with the narrowest pair of order statistics that holds it with probability `level`.

    NaN for the ends where even the extremes do not.
    """
    values = np.sort(np.asarray(x, dtype=float))
    n = len(values)
    middle = (values[(n - 1) // 2], values[n // 2])
    # Between −∞ and ∞ neither sign is nearer.
    opposite = middle[0] == -middle[1]
    median = middle[0] if middle[0] == middle[1] else 0.0 if opposite else (middle[0] + middle[1]) / 2
    inside = [j for j in range((n + 1) // 2) if 2 * stats.binom.cdf(j, n, 0.5) <= 1 - level]
    if not inside:
        return float(median), np.nan, np.nan
    return float(median), float(values[inside[-1]]), float(values[n - 1 - inside[-1]])


def share_interval(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share (Clopper and Pearson 1934)."""
    interval = stats.binomtest(successes, trials).proportion_ci(confidence_level=level, method="exact")
    return float(interval.low), float(interval.high)


def holm(p: Mapping[Name, float]) -> dict[Name, float]:
    """Corrected p-values by name (Holm 1979)."""
    corrected, least = {}, 0.0
    for i, (name, value) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, (len(p) - i) * value))
        corrected[name] = least
    return corrected


def later(a: float, b: float) -> float:
    """ln(a / b) of two steps; infinite where one never came, 0 where neither did."""
    if math.isnan(a) and math.isnan(b):
        return 0.0
    return math.inf if math.isnan(a) else -math.inf if math.isnan(b) else math.log(a / b)


def survival(times: ArrayLike, last: ArrayLike) -> stats._survival.EmpiricalDistributionFunction:
    """Kaplan-Meier estimate of the share not there yet; NaN times are censored at `last`."""
    at, censored_at = np.asarray(times, dtype=float), np.asarray(last, dtype=float)
    never = np.isnan(at)
    return stats.ecdf(stats.CensoredData(uncensored=at[~never], right=censored_at[never])).sf
