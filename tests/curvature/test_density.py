"""Densities, counts, traces and distances of densities, whose intervals cover."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from helpers.draws import drawn, draws
from helpers.matrices import matrix
from numpy.typing import NDArray

from landscape.curvature.density import (
    Quadrature,
    Smoothed,
    _gauss,
    _left_over,
    _lockstep,
    _mass_below,
    density_grid,
    density_of,
    jensen_shannon,
    jensen_shannon_error,
    quadrature,
    spectral_density,
)
from landscape.curvature.eigsh import eigsh
from landscape.curvature.operators import MatrixOperator

Array = NDArray[np.float64]


def spectra(n: int) -> dict[str, Array]:
    """Eigenvalues of one kind each; `n` of them."""
    rng = np.random.default_rng(0)
    positive = rng.exponential(size=n) ** 3
    low_rank = np.zeros(n)
    low_rank[:8] = [5, 4, 3, 2, -1, -2, -3, -4]
    third = n // 3
    return {
        "positive": positive,
        "one negative": np.concatenate([[-0.5], positive[1:]]),
        "half negative": rng.standard_normal(n),
        "low rank": low_rank,
        "clusters": np.concatenate([np.full(third, -1.0), np.full(third, 0.5), np.linspace(0.9, 1, n - 2 * third)]),
        "tail": -np.geomspace(1e-6, 1, n),
    }


# --- counts ---------------------------------------------------------------------------------------------------


def covered(rules: Iterable[Quadrature], values: Array, x: float) -> tuple[float, float]:
    """How often the interval holds the true count below x, and its mean width."""
    counts = [rule.count_below(x) for rule in rules]
    truth = int((values < x).sum())
    return np.mean([c.low <= truth <= c.high for c in counts]), np.mean([c.high - c.low for c in counts])


SEEDS = draws(120, 300)


@drawn
@pytest.mark.slow
@pytest.mark.parametrize("name", spectra(60))
def test_count_intervals_cover(name: str) -> None:
    """12 steps from 2 probes: the 95 % interval holds the true count for 95 % of the seeds, within their scatter."""
    values = spectra(60)[name]
    operator = MatrixOperator(matrix(values))
    rules = [quadrature(operator, probes=2, steps=12, seed=seed) for seed in range(SEEDS)]
    for x in (-1e-3, (values.min() + values.max()) / 2):
        # Three standard errors of a rate of 0.95 below it.
        assert covered(rules, values, x)[0] >= 0.95 - 3 * (0.95 * 0.05 / SEEDS) ** 0.5


def exact_rules(values: Array, probes: int, count: int) -> Iterator[Quadrature]:
    """Rules that are the measures of Gaussian vectors themselves."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        weights = rng.standard_normal((probes, len(values))) ** 2
        yield Quadrature(np.tile(np.sort(values), (probes, 1)), weights, np.zeros(probes), len(values), 0)


@pytest.mark.slow
def test_count_intervals_are_no_wider_than_they_must_be() -> None:
    """Where the quadrature is exact the interval covers 95 %, not 100 %, and more probes narrow it to the count."""
    values = np.concatenate([-np.ones(30), np.ones(30)])
    operator = MatrixOperator(matrix(values))
    counts = [quadrature(operator, probes=2, seed=seed).count_below(0.0) for seed in range(300)]
    missed = [sum(c.high < 30 for c in counts), sum(c.low > 30 for c in counts)]
    assert min(missed) > 0
    assert sum(missed) <= 0.07 * 300
    estimates = np.array([c.value for c in counts])
    assert abs(estimates.mean() - 30) < 4 * estimates.std() / 300**0.5
    errors = np.array([c.standard_error for c in counts])
    assert errors.mean() == pytest.approx(estimates.std(), rel=0.15)
    one = MatrixOperator(matrix(np.concatenate([[-1.0], np.ones(59)])))
    sharp = quadrature(one, probes=64).count_below(0.0)
    assert (sharp.low, sharp.high) == (1, 1)


@pytest.mark.parametrize("name", spectra(40))
def test_mass_bounds_hold_at_any_number_of_steps(name: str) -> None:
    """Chebyshev, Markov and Stieltjes: the mass of a known vector below x lies between the bounds, exact in the end."""
    values = np.sort(spectra(40)[name])
    z = torch.randn(40, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    operator = MatrixOperator(torch.diag(torch.from_numpy(values)))
    distinct = np.unique(values)
    points = [*(distinct[1:] + distinct[:-1]) / 2, values[0] - 0.1, values[-1] + 0.1]
    for steps in (1, 2, 5, 12, 40):
        for j, run in enumerate(_lockstep(operator, z, steps)):
            squared, left_over = float(z[:, j].square().sum()), _left_over(run)
            nodes, weights = _gauss(run.T[: run.filled, : run.filled], squared, steps)
            assert nodes.shape == weights.shape == (steps,)
            assert (left_over < np.inf) == (steps == 40 or name == "low rank" and steps > 9)
            assert (left_over == 0) == (run.filled == 40)
            assert weights.sum() == pytest.approx(squared, rel=1e-12)
            assert (np.diff(nodes) >= 0).all()
            for x in points:
                mass = float(z[values < x, j].square().sum())
                low, estimate, high = _mass_below(nodes, weights, left_over, x)
                assert low - 1e-5 <= mass <= high + 1e-5
                assert low <= estimate <= high
                assert left_over == np.inf or high - low <= (0 if left_over == 0 else 1e-9 * squared)


def test_a_small_matrix_has_an_exact_rule() -> None:
    """Where steps reach n every probe's rule is its spectral measure: nodes are the eigenvalues, extremes the norm."""
    values = np.sort(spectra(30)["half negative"])
    rule = quadrature(MatrixOperator(matrix(values)), probes=4, steps=100)
    assert not rule.left_over.any()
    assert (rule.n, rule.num_products, rule.nodes.shape) == (30, 120, (4, 30))
    np.testing.assert_allclose(rule.nodes, np.tile(values, (4, 1)), atol=1e-12)
    assert rule.norm == pytest.approx(np.abs(values).max(), rel=1e-12)
    below, above = (rule.count_below(x) for x in (-99.0, 99.0))
    assert (below.value, below.low, below.high) == (0.0, 0, 0)
    assert above.low <= above.high == 30 >= above.value


# --- densities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*spectra(300), "zero"])
def test_dense_density_is_the_smoothed_spectrum(name: str) -> None:
    """A sum of normal densities of width bandwidth * |H| over [-|H|, |H|]; it integrates to 1, without error."""
    values = np.zeros(300) if name == "zero" else spectra(300)[name]
    result = spectral_density(MatrixOperator(matrix(values)), bandwidth=0.02, points=700)
    norm = np.abs(values).max()
    assert result.width == pytest.approx(0.02 * norm if norm else 0.02, rel=1e-12)
    expected = scipy.stats.norm.pdf(result.grid[:, None], values[None], result.width).mean(1)
    np.testing.assert_allclose(result.density, expected, atol=1e-9 * expected.max())
    assert np.trapezoid(result.density, result.grid) == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(result.grid[[0, -1]], np.array([-1, 1]) * (norm + 4 * result.width), rtol=1e-12)
    assert not result.standard_error.any()
    assert (result.num_products, len(result.grid)) == (0, 700)


@pytest.mark.slow
@pytest.mark.parametrize("name", spectra(200))
def test_stochastic_density_agrees(name: str) -> None:
    """Lanczos quadrature integrates to 1 and lies within its errors of the exact density at the same width."""
    values = spectra(200)[name]
    operator = MatrixOperator(matrix(values))
    result = spectral_density(operator, bandwidth=0.05, probes=16, steps=60, method="lanczos")
    assert result.num_products <= 16 * 60
    assert result.width == pytest.approx(0.05 * np.abs(values).max(), rel=1e-3)
    assert np.trapezoid(result.density, result.grid) == pytest.approx(1, abs=1e-3)
    exact = density_of(values, result.grid, result.width)
    away = np.abs(result.density - exact)
    assert (away <= 6 * result.standard_error + 1e-3 * exact.max()).all()
    assert away.max() > 1e-6 * exact.max()


@pytest.mark.slow
def test_standard_errors_of_densities_are_calibrated() -> None:
    """z-scores over 500 draws of 30 probes have mean 0 and the spread 1.04 of Student's t of 29 degrees of freedom."""
    values, (grid, width) = np.linspace(-1, 1, 60), density_grid(1.0, 0.2, 7)
    estimates = [rule.density(grid, width) for rule in exact_rules(values, 30, 500)]
    true = density_of(values, grid, width)
    scores = np.array([(estimate.mean - true) / estimate.standard_error for estimate in estimates])[:, 1:-1]
    assert (np.abs(scores.mean(0)) < 0.25).all()
    assert (np.abs((scores**2).mean(0) ** 0.5 - 1.04) < 0.1).all()


def drawn(rng: np.random.Generator) -> Array:
    """A spectrum of any kind: continua that few steps do not resolve, clusters, outliers, low rank."""
    n = int(rng.integers(20, 300))
    kinds = [
        lambda: rng.uniform(-1, 1, n),
        lambda: rng.beta(1.5, 1.5, n) * 2 - 1,
        lambda: rng.exponential(size=n) ** 3 / 30,
        lambda: rng.choice(rng.uniform(-1, 1, 6), n),
        lambda: np.concatenate([rng.uniform(0.1, 1, 10), 1e-3 * rng.standard_normal(n)]),
        lambda: np.where(np.arange(n) < max(3, n // 20), rng.uniform(-1, 1, n), 0.0),
    ]
    return kinds[rng.integers(len(kinds))]()


@pytest.mark.slow
@pytest.mark.long
def test_jensen_shannon_errors_cover() -> None:
    """The interval holds the distance of the true densities for 95 % of 42 pairs, one in three beside a known one.

    Two bandwidths, of the same quadratures.
    """
    rng, bandwidths = np.random.default_rng(0), (0.01, 0.03)
    away, errors = np.empty((2, 42)), np.empty((2, 42))
    for trial in range(42):
        values = drawn(rng), drawn(rng)
        rules = [quadrature(MatrixOperator(torch.diag(torch.from_numpy(v))), seed=trial) for v in values]
        for i, bandwidth in enumerate(bandwidths):
            grid, width = density_grid(max(np.abs(v).max() for v in values), bandwidth, 512)
            true = [density_of(v, grid, width) for v in values]
            estimates = [rule.density(grid, width) for rule in rules]
            if trial % 3 == 0:
                estimates[1] = Smoothed.known(true[1])
            away[i, trial] = abs(jensen_shannon(estimates[0].mean, estimates[1].mean) - jensen_shannon(*true))
            errors[i, trial] = jensen_shannon_error(*estimates)
    assert ((away <= errors + 1e-12).mean(1) >= 0.93).all()
    assert (away.max(1) > 0.03).all()
    assert (np.median(errors, 1) < 8 * np.median(away, 1)).all()


def test_jensen_shannon_errors_of_known_densities_vanish() -> None:
    """Known densities have no error, nor has a density beside itself; an exact rule has no error of steps."""
    values = np.linspace(-1, 1, 30), np.linspace(-0.5, 1, 40)
    grid, width = density_grid(1.0, 0.05, 300)
    known = [Smoothed.known(density_of(v, grid, width)) for v in values]
    assert jensen_shannon_error(*known) == 0
    assert not known[0].standard_error.any()
    rule = quadrature(MatrixOperator(matrix(values[0])), steps=100)
    assert rule.shorter is None
    estimate = rule.density(grid, width)
    assert np.array_equal(estimate.shorter, estimate.mean)
    assert jensen_shannon_error(estimate, estimate) == 0 < jensen_shannon_error(estimate, known[1])
    few = quadrature(MatrixOperator(matrix(values[0])), steps=10)
    assert few.shorter is not None
    assert few.shorter.nodes.shape == few.nodes.shape == (8, 10)
    for power in range(17):
        moments = [(r.weights * r.nodes**power).sum(1) for r in (few, few.shorter)]
        np.testing.assert_allclose(*moments, atol=1e-12)
    assert not np.allclose((few.weights * few.nodes**18).sum(1), (few.shorter.weights * few.shorter.nodes**18).sum(1))


def test_jensen_shannon() -> None:
    """0 for equal densities, 1 for disjoint ones, symmetric, blind to scale, and the formula between; never NaN."""
    rng = np.random.default_rng(0)
    p, q = rng.exponential(size=(2, 50))
    assert jensen_shannon(p, p) == 0
    assert jensen_shannon(np.array([1.0, 0, 2, 0]), np.array([0, 3.0, 0, 1])) == pytest.approx(1, rel=1e-12)
    assert jensen_shannon(p, q) == pytest.approx(jensen_shannon(q, p), rel=1e-12)
    a, b = p / p.sum(), q / q.sum()
    divergence = (scipy.special.rel_entr(a, (a + b) / 2) + scipy.special.rel_entr(b, (a + b) / 2)).sum() / 2
    assert jensen_shannon(p, 7 * q) == pytest.approx((divergence / np.log(2)) ** 0.5, rel=1e-12)
    for size in (1e-16, 1e-14, 1e-9):
        for _ in range(50):
            assert 0 <= jensen_shannon(p, p * (1 + size * rng.standard_normal(50))) < 1e-7


def test_words_of_errors() -> None:
    """Too few probes and rectangular operators are refused with the number given."""
    square, oblong = (MatrixOperator(torch.zeros(n, 50, dtype=torch.float64)) for n in (50, 40))
    with pytest.raises(ValueError, match="1 probe: a standard error takes at least 2"):
        quadrature(square, probes=1)
    with pytest.raises(ValueError, match=r"probes is 7\.5"):
        quadrature(square, probes=7.5)
    for attempt in (quadrature, spectral_density, lambda op: eigsh(op, 1)):
        with pytest.raises(ValueError, match="eigenvalues of a 40 x 50 operator: take a diagonal block"):
            attempt(oblong)
