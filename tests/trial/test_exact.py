"""The exact statistics of the primary tests against enumeration and SciPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from exact import holm, median_interval, share_interval, signed_rank_p
from scipy import stats


def enumerated(x: list[float]) -> float:
    """p over all signs, one after the other."""
    ranks = stats.rankdata(np.abs(x))
    centre = sum(ranks[i] for i, v in enumerate(x) if v) / 2
    moved = [i for i, v in enumerate(x) if v]
    distance = abs(sum(ranks[i] for i in moved if x[i] > 0) - centre)
    sums = (sum(ranks[i] for i, up in zip(moved, signs, strict=True) if up) for signs in _signs(len(moved)))
    far = [abs(total - centre) >= distance - 1e-9 for total in sums]
    return sum(far) / len(far)


def _signs(n: int) -> Iterator[tuple[bool, ...]]:
    return itertools.product((False, True), repeat=n)


@pytest.mark.parametrize("seed", range(6))
def test_without_ties_it_is_scipys(seed: int) -> None:
    x = np.random.default_rng(seed).normal(0.5, 1, 10)
    assert signed_rank_p(x) == pytest.approx(stats.wilcoxon(x, method="exact").pvalue, rel=1e-12)


@pytest.mark.parametrize(
    "x",
    [
        [1, 1, 1, -1, 2, 2, -3],
        [0, 0, 1, -2, 3, 4],
        [math.inf, math.inf, -math.inf, 1, 2, 3],
        [math.inf] * 8 + [0, -0.1],
        [-5.0],
    ],
)
def test_ties_zeros_and_what_never_came(x: list[float]) -> None:
    assert signed_rank_p(x) == pytest.approx(enumerated(x), rel=1e-12)
    assert signed_rank_p([-v for v in x]) == pytest.approx(signed_rank_p(x), rel=1e-12)


def test_ratios_as_far_from_1_are_ties() -> None:
    """Their logarithms differ by rounding."""
    x = [math.log(11 / 12), math.log(12 / 11), math.log(2), math.log(3)]
    assert abs(x[0]) != x[1]
    assert signed_rank_p(x) == pytest.approx(enumerated([-1, 1, 2, 3]), rel=1e-12)


def test_ten_seeds_that_agree_reach_the_least_p() -> None:
    assert signed_rank_p(range(1, 11)) == pytest.approx(2 / 2**10)
    assert signed_rank_p([math.inf] * 10) == pytest.approx(2 / 2**10)
    assert signed_rank_p([0.0] * 10) == 1


def test_of_ten_the_second_and_the_ninth_bound_the_median() -> None:
    assert median_interval([3, 1, 4, 10, 5, 9, 2, 6, 8, 7]) == (5.5, 2, 9)
    # They miss it with probability 2 (1 + 10) / 2^10; the third and the eighth would with 0.11.
    assert 2 * stats.binom.cdf(1, 10, 0.5) < 0.05 < 2 * stats.binom.cdf(2, 10, 0.5)
    assert median_interval([math.inf] * 9 + [1.0])[0] == math.inf
    assert np.isnan(median_interval([1, 2, 3, 4, 5])[1])
    assert median_interval([math.inf, -math.inf])[0] == 0


def test_holm_corrects_in_order() -> None:
    corrected = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert corrected == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10)])
def test_the_interval_of_a_share_is_that_of_its_beta_quantiles(successes: int, trials: int) -> None:
    low, high = share_interval(successes, trials)
    rest = trials - successes
    assert low == pytest.approx(stats.beta.ppf(0.025, successes, rest + 1) if successes else 0)
    assert high == pytest.approx(stats.beta.ppf(0.975, successes + 1, rest) if rest else 1)
