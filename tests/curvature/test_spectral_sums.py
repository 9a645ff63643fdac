"""Frobenius norms, log-determinants and effective dimensions: closed forms, intervals, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.matrices import Diagonal, Hidden, matrix
from helpers.modules import operator_of
from numpy.typing import NDArray

from landscape import (
    HessianOperator,
    MatrixOperator,
    Objective,
    cross_entropy,
    effective_dimension,
    frobenius_norm,
    log_determinant,
)
from landscape.curvature.density import quadrature
from landscape.curvature.vectors import gaussian, seeded

SPECTRUM = np.r_[40.0, 7.0, np.geomspace(1e-4, 1, 198)]


def sums(values: NDArray[np.float64], shift: float) -> tuple[float, float, float]:
    """The three, from all eigenvalues."""
    return float(np.linalg.norm(values)), float(np.log(values + shift).sum()), float((values / (values + shift)).sum())


def test_known_eigenvalues_give_the_sums() -> None:
    """Written out, each is exact to the error that it states."""
    A = Hidden(matrix(SPECTRUM))
    exact = frobenius_norm(A, method="exact"), log_determinant(A, 0.1), effective_dimension(A, 0.1)
    for estimate, true in zip(exact, sums(SPECTRUM, 0.1), strict=True):
        assert estimate.low <= true <= estimate.high
        assert estimate.high - estimate.low < 1e-9 * abs(true)
        assert (estimate.standard_error, estimate.num_products) == (0.0, 200)
    network = operator_of("mlp")
    values = torch.linalg.eigvalsh(network.dense()).numpy()
    assert frobenius_norm(network).value == pytest.approx(np.linalg.norm(values), rel=1e-13)
    shifted = log_determinant(network, 1 - values.min())
    assert shifted.value == pytest.approx(np.log(values - values.min() + 1).sum(), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("outliers", [[], [1e6], [1e3] * 5])
def test_intervals_cover_beside_outliers(outliers: list[float]) -> None:
    """One outlier has nearly all of an effective dimension: 8 probes know it to a factor, and say so."""
    values = np.r_[outliers, np.full(300, 1e-3)]
    true = sums(values, 1.0)
    covers = np.zeros(3)
    for seed in range(60):
        A = Diagonal(values)
        estimates = (
            frobenius_norm(A, seed=seed),
            log_determinant(A, 1.0, method="lanczos", seed=seed, steps=8),
            effective_dimension(A, 1.0, method="lanczos", seed=seed, steps=8),
        )
        covers += [e.low - 1e-12 * t <= t <= e.high + 1e-12 * t for e, t in zip(estimates, true, strict=True)]
    assert (covers >= 60 * 0.95 - 5).all(), covers


def test_estimates_need_few_products() -> None:
    """The norm of a low rank is exact within its sketch; probes of one length know the identity."""
    low_rank = frobenius_norm(Diagonal(np.r_[5.0, -4.0, 3.0, np.zeros(2000)]))
    assert low_rank.value == pytest.approx(50**0.5, rel=1e-12)
    assert low_rank.high - low_rank.low < 1e-6
    assert low_rank.num_products == 30
    identity = log_determinant(Diagonal(np.full(9000, 2.0)), 1.0)
    assert identity.value == pytest.approx(9000 * np.log(3), rel=1e-12)
    assert identity.high - identity.low < 1e-6
    zero = frobenius_norm(Diagonal(np.zeros(500)))
    assert (zero.value, zero.standard_error, zero.low) == (0.0, 0.0, 0.0)


def test_gauss_and_radau_rules_bracket_each_probe() -> None:
    """z^T f(A) z itself lies between them at any number of steps, and the bracket closes with steps."""
    values = np.geomspace(1e-6, 1, 120)
    A, shift = MatrixOperator(torch.diag(torch.from_numpy(values))), 1e-5
    functions = (lambda x: np.log(np.maximum(x, 0) + shift), lambda x: np.maximum(x, 0) / (np.maximum(x, 0) + shift))
    widths = []
    for steps in (5, 20, 80):
        rule, generator = quadrature(A, 4, steps, seed=1), seeded(1)
        z = np.concatenate([gaussian(120, 1, generator).numpy() for _ in range(4)], 1)
        nodes, weights = rule.radau(0.0)
        assert nodes.min() == pytest.approx(0, abs=1e-12)
        # A linear function, and up to twice the steps, is integrated exactly.
        assert (nodes * weights).sum(1) == pytest.approx((rule.nodes * rule.weights).sum(1), rel=1e-10)
        for f in functions:
            true = (z.T**2 * f(values)).sum(1)
            lower, upper = (weights * f(nodes)).sum(1), (rule.weights * f(rule.nodes)).sum(1)
            assert (lower <= true + 1e-9).all()
            assert (true <= upper + 1e-9).all()
        widths.append(float((upper - lower).max()))
    assert widths[0] > widths[1] > 10 * widths[2]


def test_few_steps_widen_the_interval() -> None:
    """Two steps miss a spectrum of six decades: the bracket holds the truth, which a scatter of probes does not."""
    values = np.geomspace(1e-6, 1, 300)
    _, true, dimension = sums(values, 1e-6)
    for seed in range(10):
        rough = log_determinant(Diagonal(values), 1e-6, method="lanczos", steps=2, probes=30, seed=seed)
        assert rough.low <= true <= rough.high
        assert rough.high - rough.low > 20 * rough.standard_error
        rough = effective_dimension(Diagonal(values), 1e-6, method="lanczos", steps=2, probes=30, seed=seed)
        assert 0 <= rough.low <= dimension <= rough.high <= 300


def test_float32_intervals_hold_what_float64_has() -> None:
    """The error of float32 products is inside, by either method."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 4))
    x, y, params = torch.randn(60, 6), torch.arange(60) % 4, dict(model.named_parameters())
    exact, single = (
        HessianOperator(Objective(model, x, y, cross_entropy, dtype=dtype), params, part="gauss_newton")
        for dtype in (torch.float64, torch.float32)
    )
    values = torch.linalg.eigvalsh(exact.dense()).clamp_min(0).numpy()
    for method in ("dense", "lanczos"):
        for f, true in zip((log_determinant, effective_dimension), sums(values, 1e-2)[1:], strict=True):
            estimate = f(single, 1e-2, steps=20, method=method)
            assert estimate.low <= true <= estimate.high
    norm = frobenius_norm(single)
    assert norm.low <= np.linalg.norm(values) <= norm.high


def test_what_has_no_logarithm_is_refused() -> None:
    """Negative and unknown eigenvalues, each with the number that would mend it."""
    indefinite, singular = Diagonal(np.linspace(-1, 2, 300)), Diagonal(np.r_[np.zeros(9), np.ones(291)])
    for method in ("dense", "lanczos"):
        with pytest.raises(ValueError, match="H \\+ shift has the eigenvalue -0.[89].*not positive definite"):
            log_determinant(indefinite, 0.1, method=method)
        with pytest.raises(ValueError, match="H has an eigenvalue of at most -"):
            effective_dimension(indefinite, 0.1, method=method)
    with pytest.raises(ValueError, match="not positive definite") as refusal:
        log_determinant(singular)
    enough = float(refusal.value.hint.split()[4])  # type: ignore[attr-defined]
    assert log_determinant(singular, enough).value < -200
    with pytest.raises(ValueError, match="below the floor 0"):
        log_determinant(indefinite, 1.5, method="lanczos")
    assert log_determinant(indefinite, 1.5, floor=-1.0, method="lanczos").value > 0
    with pytest.raises(ValueError, match="its determinant may be 0"):
        log_determinant(Diagonal(np.linspace(1, 2, 300)), method="lanczos")
    known = log_determinant(Diagonal(np.linspace(1, 2, 300)), floor=1.0, method="lanczos")
    assert known.low <= np.log(np.linspace(1, 2, 300)).sum() <= known.high
    for shift in (float("nan"), float("inf"), "1"):
        with pytest.raises(ValueError, match="shift is"):
            log_determinant(indefinite, shift)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shift is 0"):
        effective_dimension(singular, 0)
    with pytest.raises(ValueError, match="method is 'slq'"):
        frobenius_norm(singular, method="slq")  # type: ignore[arg-type]
