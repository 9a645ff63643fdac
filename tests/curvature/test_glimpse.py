"""A look at both ends of a spectrum: what it shows is true of matrices whose spectrum is known, for few products."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.matrices import Diagonal, Hidden, drawn_spectrum, matrix, true_index

from landscape.curvature.eigsh import eigsh, glimpse
from landscape.curvature.inertia import glimpsed
from landscape.curvature.operators import MatrixOperator


@pytest.mark.parametrize("seed", range(40))
def test_what_it_shows_is_true(seed: int) -> None:
    """The outermost pairs are within their bounds, every residual is that of its pair, and the bracket holds."""
    values = np.sort(drawn_spectrum(seed, 1e-3, 60))
    H = matrix(values, seed)
    seen = glimpse(Hidden(H), 4, 1e-3, seed, 3000)
    eigen, norm = seen.eigen, np.abs(values).max()
    for end, true in ((0, values[0]), (1, values[-1])):
        assert eigen.converged[end, 0]
        assert abs(eigen.values[end, 0] - true) <= eigen.hidden[end] + 1e-12 * norm
        assert abs(eigen.values[end, 0] - true) <= 2e-3 * norm
        for value, vector, residual in zip(eigen.values[end], eigen.vectors[end].T, eigen.residuals[end], strict=True):
            assert float((H @ vector - value * vector).norm()) <= residual + 1e-12 * norm
    inertia = glimpsed(seen)
    assert inertia.lower <= true_index(values, inertia) <= inertia.upper
    if inertia.estimate and inertia.lower < inertia.upper:
        assert inertia.lower <= inertia.estimate.low <= inertia.estimate.high <= inertia.upper


def test_no_negative_curvature_is_a_bracket() -> None:
    """Where the lowest eigenvalue is above -tau, the index is 0; where theory bounds it, at most that."""
    seen = glimpse(Diagonal(np.linspace(0.1, 1, 3000)), 4, 1e-3, 0, 3000)
    inertia = glimpsed(seen)
    assert (inertia.lower, inertia.upper, inertia.level) == (0, 0, "bracketed")
    assert 0 < inertia.failure_probability <= 1e-6
    seen = glimpse(Diagonal(np.linspace(-1, 1, 3000)), 4, 1e-3, 0, 3000)
    assert glimpsed(seen).level == "estimated"
    assert (glimpsed(seen, upper=2000).upper, glimpsed(seen, upper=2000).level) == (2000, "bracketed")


def test_the_interval_of_the_estimate_covers() -> None:
    """At 95 % of forty spectra of order 1,500, an eighth to seven eighths of them negative."""
    covered = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        count = int(1500 * (0.125 + 0.75 * rng.random()))
        values = np.concatenate([-(0.01 + rng.random(count)), 0.01 + 3 * rng.random(1500 - count)])
        estimate = glimpsed(glimpse(Diagonal(values), 4, 1e-3, seed, 3000), 1e-3).estimate
        assert estimate
        covered += estimate.low <= (values < -1e-3 * np.abs(values).max()).sum() <= estimate.high
        assert abs(estimate.value - count) < 0.25 * 1500
    assert covered >= 36


def test_it_takes_fewer_products_than_all_pairs() -> None:
    """And counts every one."""
    H = Hidden(matrix(np.concatenate([np.linspace(-1, 1, 500), [3, 5, -4]])))
    seen = glimpse(H, 4, 1e-3, 0, 3000)
    assert seen.eigen.num_products == H.count[0]
    all_pairs = eigsh(Hidden(H.A), 4, method="lanczos", rtol=1e-3)
    assert seen.eigen.num_products < all_pairs.num_products


def test_an_assembled_matrix_gives_its_own_error() -> None:
    """Nothing is measured of products then."""
    values = np.linspace(-1, 2, 300)
    H = MatrixOperator(matrix(values), 1e-9)
    seen = glimpse(Diagonal(values), 4, 1e-4, 0, 3000, H)
    assert seen.error == 1e-9
    assert glimpse(Hidden(H.matrix), 4, 1e-4, 0, 3000).error != 1e-9
