"""The statistics that judge Proposition 4.1, on made-up data whose answer is known."""

from __future__ import annotations

import c7_sweep
import intervals
import numpy as np
import open_curvature_rate
import pandas as pd
import pytest


def clustered(slope: float, seed: int, clusters: int = 30, rows: int = 20) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y = slope x + 0.7 with a shift of each cluster of its own, ten times the noise of a row."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(clusters), rows)
    x = rng.normal(size=clusters)[cluster] + 0.3 * rng.normal(size=cluster.size)
    y = slope * x + 0.7 + rng.normal(scale=0.5, size=clusters)[cluster] + rng.normal(scale=0.05, size=cluster.size)
    return x, y, cluster


def test_slope_of_clustered_rows_lies_in_its_interval() -> None:
    of_clusters = of_rows = 0
    for seed in range(12):
        x, y, cluster = clustered(0.9, seed)
        _, low, high = intervals.clustered_line(x, y, cluster)["slope"]
        of_clusters += low <= 0.9 <= high
        _, low, high = intervals.clustered_line(x, y, np.arange(x.size))["slope"]
        of_rows += low <= 0.9 <= high
    assert of_clusters >= 10
    # As if rows were independent, the interval is far too narrow: the same data tell the two apart.
    assert of_rows <= 6


def test_line_has_the_numbers_of_least_squares() -> None:
    x, y, cluster = clustered(1.3, 1)
    line = {name: value for name, (value, _, _) in intervals.clustered_line(x, y, cluster).items()}
    slope, intercept = np.polyfit(x, y, 1)
    assert line["slope"] == pytest.approx(slope)
    assert line["intercept"] == pytest.approx(intercept)
    assert line["r2"] == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)
    assert line["offset"] == pytest.approx(np.mean(y - x))
    assert line["r2_identity"] == pytest.approx(1 - np.mean((y - x) ** 2) / np.var(y))
    # Inside clusters their shifts are gone.
    assert line["slope_within"] == pytest.approx(1.3, abs=0.03)
    assert line["r2_within"] > 0.98


def test_each_cluster_has_the_same_weight() -> None:
    x = np.array([0.0, 1.0] + [0.0, 1.0] * 50)
    y = np.array([0.0, 3.0] + [0.0, 1.0] * 50)
    cluster = np.array([0, 0] + [1] * 100)
    assert intervals.clustered_line(x, y, cluster)["slope"][0] == pytest.approx(2.0)


def test_points_without_spread_have_no_line() -> None:
    line = intervals.clustered_line([0.1] * 6, [0.1, 0.2, 0.3] * 2, [0, 0, 0, 1, 1, 1])
    assert np.isnan(line["slope"]).all()
    assert line["offset"][0] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("number", "judgement"),
    [
        ((1.0, 0.9, 1.1), "supported"),
        ((1.0, 0.7, 1.1), "undecided"),
        ((0.6, 0.5, 0.7), "not supported"),
        ((1.5, 1.4, 1.6), "not supported"),
        ((1.0, np.nan, np.nan), "undecided"),
    ],
)
def test_verdict_by_the_interval(number: tuple[float, float, float], judgement: str) -> None:
    assert intervals.within(number, 0.8, 1.25) == judgement


def test_one_failure_decides_against_a_claim() -> None:
    assert intervals.all_of("supported", "undecided", "not supported") == "not supported"
    assert intervals.all_of("supported", "undecided") == "undecided"
    assert intervals.all_of("supported", "supported") == "supported"


def sweep(steps: dict[str, dict[float, list[float]]], predicted: dict[str, float]) -> pd.DataFrame:
    """One row a run, from the steps of each seed; 6000 stands for a run that never grokked."""
    rows = [
        {"case": case, "lr_ratio": c, "seed": seed, "grokked": t if t < 6000 else np.nan, "last": min(t, 6000.0)}
        for case, by_c in steps.items()
        for c, times in by_c.items()
        for seed, t in enumerate(times)
    ]
    table = pd.DataFrame(rows)
    table["predicted"] = table["predicted_median"] = table["case"].map(predicted)
    return table


def test_best_ratio_counts_runs_that_never_grok() -> None:
    # c = 8 has the smallest mean of those that grokked, but most of its runs never do.
    table = sweep({"base": {1.0: [2000.0, 2100, 2200], 2.0: [900, 950, 6000], 8.0: [300, 6000, 6000]}}, {"base": 2.0})
    found = c7_sweep.compare(table)
    row = found["cases"].iloc[0]
    assert row["best"] == pytest.approx(2.0)
    assert row["best_low"] >= 1.0
    assert row["best_high"] == pytest.approx(8.0)
    assert found["distance_predicted"][0] == pytest.approx(0.0)
    assert found["distance_fixed"][0] == pytest.approx(np.log2(5))


def test_best_ratio_of_equal_medians_is_their_middle() -> None:
    assert 2 ** c7_sweep.best(pd.Series({1.0: np.inf, 2.0: 500.0, 8.0: 500.0})) == pytest.approx(4.0)
    assert np.isnan(c7_sweep.best(pd.Series({1.0: np.inf, 2.0: np.inf})))


@pytest.mark.parametrize(("bests", "rho"), [((2.0, 4.0, 8.0), 1.0), ((8.0, 4.0, 2.0), -1.0), ((4.0, 4.0, 4.0), 0.0)])
def test_order_of_best_ratios(bests: tuple[float, ...], rho: float) -> None:
    grid = (2.0, 4.0, 8.0)
    steps = {
        f"case{i}": {c: [1000 + 500 * abs(np.log2(c / best)) + seed for seed in range(3)] for c in grid}
        for i, best in enumerate(bests)
    }
    found = c7_sweep.compare(sweep(steps, {f"case{i}": c for i, c in enumerate(grid)}))
    assert found["rho_predicted"] == pytest.approx((rho, rho, rho))
    assert list(found["cases"]["best"]) == pytest.approx(list(bests))


def test_nothing_grokked_leaves_the_best_ratio_undecided() -> None:
    found = c7_sweep.compare(sweep({"base": {1.0: [6000.0] * 3, 2.0: [6000.0] * 3}}, {"base": 2.0}))
    for name in ("rho_predicted", "distance_predicted"):
        assert intervals.within(found[name], 0.0, 1.0) == "undecided"


def test_policies_are_compared_seed_by_seed() -> None:
    seeds = np.arange(8)
    times = {"c1": 3000.0 + 300 * seeds, "c10": 2000.0 + 300 * seeds, "prop41": 1900.0 + 300 * seeds}
    times["curvature"] = np.where(seeds < 7, 2500.0 + 300 * seeds, np.nan)
    table = pd.concat(
        pd.DataFrame({"case": case, "seed": seeds, "grokked": t, "last": np.where(np.isnan(t), 6000.0, t)})
        for case, t in times.items()
    )
    compared = open_curvature_rate.comparisons(table, open_curvature_rate.pairs(table))
    number, within, sooner = open_curvature_rate.number, intervals.within, open_curvature_rate.SOONER
    # 100 steps in every seed, beside 300 from one seed to the next.
    assert number(compared, "prop41", "c10") == pytest.approx((-100, -100, -100))
    assert within(number(compared, "prop41", "c10"), *sooner) == "supported"
    assert within(number(compared, "curvature", "c10"), *sooner) == "not supported"
    row = compared.set_index(["policy", "other"]).loc[("curvature", "c10")]
    assert (row["sooner"], row["later"], row["censored"]) == (0, 8, 1)
    assert row["logrank_p"] > 0.05
