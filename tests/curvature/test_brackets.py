"""The saddle index without the matrix: brackets that are never wrong."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
from helpers.draws import drawn, draws
from helpers.matrices import Diagonal, drawn_spectrum, matrix, true_index
from numpy.typing import NDArray

from landscape.curvature import eigsh as complement
from landscape.curvature import krylov as random_start
from landscape.curvature.eigsh import ACCEPTED, eigsh, index_bounds
from landscape.curvature.inertia import saddle_index
from landscape.curvature.operators import MatrixOperator
from landscape.curvature.vectors import seeded
from landscape.errors import NumericsError

Array = NDArray[np.float64]


@drawn
@pytest.mark.slow
@pytest.mark.long
def test_matrix_free_brackets_of_prescribed_spectra() -> None:
    """lower <= index <= upper for many spectra; equal where no eigenvalue lies near -tau; no certificate is claimed."""
    for seed in range(draws(25, 60)):
        values = drawn_spectrum(seed, 1e-3, 20)
        inertia = saddle_index(MatrixOperator(matrix(values, seed)), method="lanczos", seed=seed)
        index = true_index(values, inertia)
        assert inertia.lower <= index <= inertia.upper, seed
        assert inertia.level == "bracketed", seed
        assert 0 <= inertia.failure_probability <= ACCEPTED
        assert inertia.lower == inertia.upper == inertia.negative == index, seed
        assert inertia.tolerance == pytest.approx(1e-3 * np.abs(values).max(), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_brackets_hold_with_a_continuum_across_the_tolerance(seed: int) -> None:
    """A bulk that runs smoothly through -tau: wide brackets are allowed, wrong ones are not."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.uniform(-0.05, 0.05, 200), rng.standard_normal(40)])
    inertia = saddle_index(MatrixOperator(matrix(values, seed)), rel_tau=0.01, method="lanczos", seed=seed)
    assert inertia.lower <= true_index(values, inertia) <= inertia.upper < 240
    assert inertia.level == "bracketed"
    assert 0 < inertia.failure_probability <= ACCEPTED


@pytest.mark.slow
def test_a_small_budget_gives_an_estimate_and_theory_a_bound() -> None:
    """With too few products there is no upper bound but n, or one given from theory; the estimate's interval holds."""
    values = np.concatenate([np.linspace(-1, -0.01, 150), np.linspace(0.001, 1, 250)])
    operator = MatrixOperator(matrix(values))
    inertia = saddle_index(operator, method="lanczos", max_hvps=60)
    assert (inertia.level, inertia.negative, inertia.upper, inertia.failure_probability) == ("estimated", -1, 400, 0)
    assert 0 < inertia.lower <= 150
    assert inertia.estimate.low <= 150 <= inertia.estimate.high < 400
    capped = saddle_index(operator, method="lanczos", max_hvps=60, upper=170)
    assert (capped.level, capped.upper, capped.failure_probability) == ("bracketed", 170, 0)
    assert capped.lower <= capped.estimate.low <= 150 <= capped.estimate.high <= 170
    assert saddle_index(operator, method="dense").negative == 150


@drawn
@pytest.mark.slow
@pytest.mark.long
def test_a_hidden_eigenvalue_is_never_missed() -> None:
    """One eigenvalue just below -tau among 150, and nothing gathered before: every seed counts it."""
    tau = 0.02
    values = np.concatenate([[-1.02 * tau], np.linspace(-0.2 * tau, 0.2 * tau, 60), np.linspace(0.01, 1, 89)])
    operator = MatrixOperator(matrix(values))
    blind = eigsh(operator, 1, which="highest", method="lanczos")
    for seed in range(draws(50, 200)):
        bounds = index_bounds(operator, blind, tau, 1e-14, 1e-6, 3000, seed)
        assert bounds.lower == bounds.upper == 1, seed
        assert 0 < bounds.failure_probability <= ACCEPTED


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-12, 1e-4, 2e-3, 2e-2])
def test_products_of_known_error_are_refused_or_bracketed(size: float) -> None:
    """With a skew error of norm `size` beside tau 1e-2 the bracket holds for the exact matrix, or tau is refused."""
    values = np.concatenate([-np.geomspace(1.1e-2, 1, 12), np.linspace(0, 1, 50)])
    skew = torch.randn(62, 62, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    skew = skew - skew.T
    operator = MatrixOperator(matrix(values) + size * skew / torch.linalg.matrix_norm(skew))
    refused = 0
    for method in ("dense", "lanczos"):
        try:
            inertia = saddle_index(operator, rel_tau=1e-2, method=method)
        except NumericsError:
            refused += 1
        else:
            assert inertia.lower <= true_index(values, inertia) <= inertia.upper
            assert inertia.error >= size if size > 1e-10 else inertia.negative == 12
    assert refused == (2 if size == 2e-2 else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rest", [np.linspace(-0.2, 0.2, 60), np.linspace(-0.7, 0.0, 60), np.r_[np.linspace(-0.745, -0.7, 30), np.ones(30)]]
)
def test_bounds_fail_as_seldom_as_they_say(rest: Array, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted at one in five, a bound misses an eigenvalue at the limit in at most that share of runs."""
    tau, accepted, runs = 0.02, 0.2, 300
    monkeypatch.setattr(random_start, "_CHECK_EVERY", 2)
    op = Diagonal(np.concatenate([[-0.7501 * tau], tau * rest, np.geomspace(tau, 1, 40)]))
    blind = torch.zeros(len(op.values), 0, dtype=torch.float64)
    chances = [complement._run(op, blind, tau, 0.0, accepted, 40, seeded(seed), True)[1] for seed in range(runs)]
    missed = sum(chance <= accepted for chance in chances)
    assert missed > 0
    assert scipy.stats.binom.sf(missed - 1, runs, accepted) > 1e-4, missed / runs


def test_a_direction_half_found_still_counts() -> None:
    """A gathered vector above -tau that hides a negative direction from its complement: the residual term counts it."""
    tau, share = 0.02, 0.018
    values = torch.cat([torch.tensor([-0.03]), torch.linspace(0.1, 1, 59)]).double()
    operator = MatrixOperator(torch.diag(values))
    q = torch.zeros(60, 1, dtype=torch.float64)
    q[0], q[-1] = (1 - share) ** 0.5, share**0.5
    quotient = q.T @ operator.matrix @ q
    assert -tau < float(quotient) < -tau / 4
    eigen = dataclasses.replace(eigsh(operator, 1), values=quotient.numpy(), vectors=q[None])
    bounds = index_bounds(operator, eigen, tau, 1e-14, 1e-6, 3000, 0)
    assert (bounds.lower, bounds.upper) == (0, 1)


@pytest.mark.parametrize(("lowest", "lower", "upper"), [(-195, 0, 1), (-205, 0, 1), (-220, 1, 1), (-180, 0, 0)])
def test_products_in_error_leave_the_bracket_open(lowest: int, lower: int, upper: int) -> None:
    """An eigenvalue within the error 0.001 of -tau = -0.02 may count or not; beyond it on either side it is known."""
    operator = MatrixOperator(torch.diag(torch.cat([torch.tensor([lowest * 1e-4]), torch.linspace(0, 1, 59)]).double()))
    bounds = index_bounds(operator, eigsh(operator, 1), 0.02, 1e-3, 1e-6, 3000, 0)
    assert (bounds.lower, bounds.upper) == (lower, upper)
