"""The Krylov engine against dense matrices: projections, orthonormality, restarts, inner products."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.matrices import matrix
from torch import Tensor

from landscape.curvature.density import quadrature
from landscape.curvature.eigsh import eigsh
from landscape.curvature.krylov import Krylov, advance
from landscape.curvature.operators import LinearOperator, MatrixOperator
from landscape.curvature.vectors import Array, inner
from landscape.errors import NumericsError

N = 300
SPREAD = np.sort(np.random.default_rng(0).standard_normal(N)) ** 3


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def orthonormal(m: int, n: int = N, seed: int = 1) -> Tensor:
    return torch.linalg.qr(torch.randn(n, m, generator=generator(seed), dtype=torch.float64))[0]


def started(op: LinearOperator, width: int, locked: int, columns: int = 60, keep_images: bool = False) -> Krylov:
    """A run from random vectors outside of random locked ones."""
    krylov = Krylov(op, columns, width, orthonormal(locked), keep_images)
    krylov.fill(generator())
    return krylov


def grow(op: LinearOperator, krylov: Krylov) -> None:
    """To the full basis, or until the space is exhausted."""
    while not krylov.exhausted and krylov.filled + krylov.block.shape[1] <= krylov.columns:
        advance(op, [krylov])


def outermost(krylov: Krylov, each: int) -> np.ndarray:
    return np.r_[:each, krylov.filled - each : krylov.filled]


def require_right(A: Tensor, op: LinearOperator, krylov: Krylov, tol: float = 1e-13) -> None:
    """Locked vectors, basis and block are orthonormal, and P H basis = basis T + block coupling."""
    locked, Q, block = (X for X in (krylov.locked, krylov.basis[:, : krylov.filled], krylov.block))
    every = torch.cat([locked, Q, block], dim=1)
    assert float((every.T @ every - torch.eye(every.shape[1]).to(A)).abs().max()) <= tol
    image = A @ Q
    image = image - locked @ (locked.T @ image)
    T, coupling = (torch.from_numpy(X) for X in (krylov.T[: krylov.filled, : krylov.filled], krylov.coupling))
    size = float(torch.linalg.matrix_norm(A, 2))
    assert float((Q.T @ image - T).abs().max()) <= tol * size
    assert float((image - Q @ T - block @ coupling).abs().max()) <= tol * size


@pytest.mark.parametrize(("width", "locked", "keep_images"), [(1, 5, False), (4, 0, True), (4, 5, True)])
def test_the_recurrence_is_the_projection_through_restarts(width: int, locked: int, keep_images: bool) -> None:
    """T = Q^T H Q, and residuals are what the recurrence says, at every step and after every restart."""
    A = matrix(SPREAD)
    op = MatrixOperator(A)
    krylov = started(op, width, locked, keep_images=keep_images)
    for _ in range(8):
        grow(op, krylov)
        require_right(A, op, krylov)
        krylov.project()
        V, theta = krylov.vectors(np.arange(krylov.filled)), torch.from_numpy(krylov.theta)
        true = A @ V - V * theta
        if keep_images:
            residuals = krylov.residual_vectors(np.arange(krylov.filled))
            torch.testing.assert_close(residuals, true, atol=1e-12, rtol=0)
        fixed = krylov.locked
        outside = true - fixed @ (fixed.T @ true)
        np.testing.assert_allclose(krylov.residuals(), outside.norm(dim=0).numpy(), atol=1e-12)
        krylov.restart(outermost(krylov, 8))
        require_right(A, op, krylov)
    # With so few columns the restarts have made something of them: both ends of the complement are there.
    P = torch.eye(N).to(A) - fixed @ fixed.T
    values = torch.linalg.eigvalsh(P @ A @ P)
    np.testing.assert_allclose(krylov.theta[[0, -1]], values[[0, -1]].numpy(), atol=1e-9)


@pytest.mark.parametrize("width", [1, 4])
def test_an_invariant_space_ends_the_run(width: int) -> None:
    """Five different eigenvalues exhaust the space of every vector after five products, whatever the scale."""
    for scale in (1e-12, 1.0, 1e6):
        A = scale * torch.diag(torch.tensor([-2.0, -1.0, 0.0, 1.0, 3.0], dtype=torch.float64).repeat(30))
        op = MatrixOperator(A)
        krylov = Krylov(op, 60, width)
        krylov.fill(generator())
        grow(op, krylov)
        assert (krylov.exhausted, krylov.filled) == (True, 5 * width)
        krylov.project()
        np.testing.assert_allclose(krylov.theta / scale, np.repeat([-2.0, -1.0, 0.0, 1.0, 3.0], width), atol=1e-12)
        require_right(A, op, krylov)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_product_that_is_not_finite_is_no_exhausted_space(bad: float) -> None:
    """One entry of one image is enough to stop the run."""
    op = MatrixOperator(matrix(SPREAD))
    krylov = started(op, 1, 0)
    for _ in range(5):
        advance(op, [krylov])
    image = op @ krylov.block
    image[7] = bad
    with pytest.raises(NumericsError, match="the Hessian is not finite: its products hold NaN or infinity"):
        krylov.take(image)


def skewed(values: Array, size: float) -> MatrixOperator:
    """A matrix of these eigenvalues, beside which its products have a skew part of this norm."""
    skew = torch.randn(len(values), len(values), generator=generator(3), dtype=torch.float64)
    skew = skew - skew.T
    return MatrixOperator(matrix(values) + size * skew / torch.linalg.matrix_norm(skew, 2))


@pytest.mark.parametrize("size", [1e-10, 1e-3])
def test_products_that_are_not_symmetric_raise_no_norm(size: float) -> None:
    """Where little but their error is left of the operator, neither kind of step loses the basis."""
    op = skewed(np.concatenate([-np.geomspace(0.1, 1, 5), np.geomspace(0.1, 1, 5), np.zeros(90)]), size)
    assert quadrature(op).norm <= 1 + size
    krylov = started(op, 1, 0)
    grow(op, krylov)
    basis = krylov.basis[:, : krylov.filled]
    assert float((basis.T @ basis - torch.eye(krylov.filled).to(basis)).abs().max()) <= 1e-13


def test_a_long_search_with_products_that_are_not_symmetric_stays_within_the_spectrum() -> None:
    """One that cannot converge, over many restarts: of lost bases the norm grew without end, and with it tau."""
    values = np.concatenate([np.linspace(-0.09, -0.025, 150), [0.8, 0.9, 1]])
    eigen = eigsh(skewed(values, 0.05), 10, method="lanczos", max_hvps=1000)
    assert eigen.operator_norm == pytest.approx(1, abs=0.05)
    assert eigen.ritz[0] >= -0.14


@pytest.mark.parametrize("by_columns", [False, True])
def test_inner_products_of_long_vectors(by_columns: bool) -> None:
    """Of a million numbers in float32 they are right to its precision, one vector or several, whatever the storage."""
    n = 1_000_000
    X = torch.randn(8, n, generator=generator()).T if by_columns else torch.randn(n, 8, generator=generator())
    X /= X.norm(dim=0)
    exact = X.double().T @ X.double()
    for m in (1, 8):
        assert float((inner(X[:, :m], X) - exact[:m]).abs().max()) < 1e-6
        assert float((inner(X[:, :m], X[:, :m]) - exact[:m, :m]).abs().max()) < 1e-6
