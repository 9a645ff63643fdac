"""Matrix-free coupling ratios at tolerances near what rounding leaves: right within their bounds, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.matrices import Blocks, Hidden, draw, exact_ratios

from landscape.curvature.coupling import coupling
from landscape.curvature.operators import MatrixOperator
from landscape.errors import NumericsError


def rank_one(seed: int, tau: float) -> Blocks:
    """Diagonal blocks of rank one, and a coupling whose ratios at tau are 0.9 and less: the index is 0."""
    rng = np.random.default_rng(seed)
    diagonal, roots = [], []
    for n in rng.integers(2, 7, 2):
        a = rng.standard_normal((n, 1))
        values, Q = np.linalg.eigh(a @ a.T)
        diagonal.append(a @ a.T)
        roots.append(Q * np.sqrt(values.clip(0) + tau) @ Q.T)
    X = rng.standard_normal((len(roots[0]), len(roots[1])))
    return diagonal[0], roots[0] @ (X * 0.9 / np.linalg.norm(X, 2)) @ roots[1], diagonal[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Hidden, MatrixOperator])
@pytest.mark.parametrize("tau", [1e-3, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10])
def test_ratios_at_small_tolerances_are_right(tau: float, kind: type) -> None:
    """Against 50 digits: every ratio within its bounds, which stay of use, and no index is proved that is not true."""
    for seed in range(12):
        blocks = rank_one(seed, tau)
        true = np.array([float(x) for x in exact_ratios(blocks, tau)])
        result = coupling(*(kind(torch.from_numpy(X)) for X in blocks), tau, method="lanczos", max_hvps=1000)
        assert len(result.ratios) == len(true)
        assert result.index_lower == 0
        assert (np.abs(result.ratios[:, None] - true).min(1) <= result.distances).all()
        assert (result.distances[:2] <= 1e-3 + 3e-13 / tau).all()
        assert (result.ratios <= true + 3e-13 / tau).all()
        known = ~np.isnan(result.errors)
        assert (np.abs(result.ratios - true) <= result.errors)[known].all()


def test_a_tolerance_within_rounding_is_refused() -> None:
    """The hint names a tolerance that is none, and there the bounds hold."""
    parts = [torch.from_numpy(X) for X in rank_one(0, 1e-15)]
    with pytest.raises(NumericsError, match="may have eigenvalues below -tau") as refusal:
        coupling(*map(Hidden, parts), 1e-15, method="lanczos")
    assert refusal.value.hint.startswith("take a larger tolerance, above ")
    tau = 1.01 * float(refusal.value.hint.rsplit(" ", 1)[1])
    true = np.array([float(x) for x in exact_ratios(tuple(X.numpy() for X in parts), tau)])
    result = coupling(*map(Hidden, parts), tau, method="lanczos")
    assert (np.abs(result.ratios[:, None] - true).min(1) <= result.distances).all()
    assert result.index_lower <= (true > 1).sum()


@pytest.mark.slow
def test_bounds_hold_to_rounding() -> None:
    """Searches that converge fully leave rounding alone, of all conditions: it is within the bounds."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        m, n = rng.integers(1, 8, 2)
        diagonal = []
        for size in (m, n):
            Q = np.linalg.qr(rng.standard_normal((size, size)))[0]
            A = Q * 10 ** rng.uniform(-rng.uniform(0, 9), 0, size) @ Q.T
            diagonal.append((A + A.T) / 2)
        tau = 10 ** rng.uniform(-9, -1)
        blocks = (diagonal[0], draw(int(m), int(n), seed=seed).numpy() * 10 ** rng.uniform(-3, 2), diagonal[1])
        true = np.array(exact_ratios(blocks, tau))
        for kind in (Hidden, MatrixOperator):
            result = coupling(*(kind(torch.from_numpy(X)) for X in blocks), tau, method="lanczos", rtol=1e-12)
            away = np.abs(result.ratios[:, None] - true).astype(float)
            assert (away.min(1) <= result.distances).all()
            known = ~np.isnan(result.errors)
            assert (away.diagonal() <= result.errors)[known].all()


@pytest.mark.parametrize("tau", [0.0, 1e-300, 1e-16])
def test_definite_blocks_need_no_tolerance(tau: float) -> None:
    """The factorised blocks' own spectrum bounds the distances, which depend on no tolerance then."""
    A, C = torch.eye(20).double() + 0.1, 2 * torch.eye(9).double()
    B = draw(20, 9, seed=0)
    # (1 + 0.1 J)^(-1/2) = 1 + (3^(-1/2) - 1) J / 20 for the matrix J of ones.
    root = torch.eye(20).double() + (3**-0.5 - 1) / 20
    true = torch.linalg.svdvals(root @ B / 2**0.5).numpy()
    result = coupling(*map(MatrixOperator, (A, B, C)), tau, k=3, method="lanczos")
    assert (np.abs(result.ratios - true[:3]) <= result.distances).all()
    assert (result.distances <= 2e-3 * result.ratios).all()


@pytest.mark.parametrize("kind", [Hidden, MatrixOperator])
def test_an_eigenvalue_just_above_the_tolerance(kind: type) -> None:
    """At -tau (1 - 1e-4) a factorisation proves the floor that distances need; ratios are lower bounds without it."""
    tau = 1e-3
    for seed in range(20):
        a, c = (0.02 + draw(60, seed=seed + s).abs() for s in (0, 100))
        a[0] = -tau * (1 - 1e-4)
        B = 0.05 * draw(60, 60, seed=seed + 200)
        B[0] *= 0.01
        true = torch.linalg.svdvals(B / (a + tau).sqrt()[:, None] / (c + tau).sqrt()).numpy()
        parts = kind(torch.diag(a)), Hidden(B), kind(torch.diag(c))
        for budget in (30, 60, 120):
            result = coupling(*parts, tau, k=3, method="lanczos", max_hvps=budget, seed=seed)
            assert (result.ratios <= true[:3] * (1 + 1e-9)).all()
            assert result.index_lower <= (true > 1).sum()
            if kind is MatrixOperator:
                assert (np.abs(result.ratios[:, None] - true).min(1) <= result.distances).all()
