"""The Krylov engine against dense matrices: projections, orthonormality, breakdown, restarts, lockstep.

test_sharded.py also runs them over ranks, each with its rows of every vector.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.matrices import matrix
from helpers.rows import held, mine, whole
from torch import Tensor

from landscape.curvature.density import quadrature
from landscape.curvature.eigsh import eigsh
from landscape.curvature.krylov import Krylov, advance
from landscape.curvature.operators import LinearMap, MatrixOperator
from landscape.curvature.vectors import Array, VectorSpace, space_of
from landscape.errors import NumericsError

N = 300
SPREAD = np.sort(np.random.default_rng(0).standard_normal(N)) ** 3


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def orthonormal(m: int, n: int = N, seed: int = 1) -> Tensor:
    return torch.linalg.qr(torch.randn(n, m, generator=generator(seed), dtype=torch.float64))[0]


def started(op: LinearMap, width: int, locked: int, columns: int = 60, keep_images: bool = False) -> Krylov:
    """A run from random vectors outside of random locked ones."""
    krylov = Krylov(space_of(op), columns, width, mine(op, orthonormal(locked)), keep_images)
    krylov.fill(generator())
    return krylov


def grow(op: LinearMap, krylov: Krylov) -> None:
    """To the full basis, or until the space is exhausted."""
    while not krylov.exhausted and krylov.filled + krylov.block.shape[1] <= krylov.columns:
        advance(op, [krylov])


def outermost(krylov: Krylov, each: int) -> np.ndarray:
    return np.r_[:each, krylov.filled - each : krylov.filled]


def require_right(A: Tensor, op: LinearMap, krylov: Krylov, tol: float = 1e-13) -> None:
    """Locked vectors, basis and block are orthonormal, and P H basis = basis T + block coupling."""
    locked, Q, block = (whole(op, X) for X in (krylov.locked, krylov.basis[:, : krylov.filled], krylov.block))
    every = torch.cat([locked, Q, block], dim=1)
    assert float((every.T @ every - torch.eye(every.shape[1]).to(A)).abs().max()) <= tol
    image = A @ Q
    image = image - locked @ (locked.T @ image)
    T, coupling = (torch.from_numpy(X) for X in (krylov.T[: krylov.filled, : krylov.filled], krylov.coupling))
    size = float(torch.linalg.matrix_norm(A, 2))
    assert float((Q.T @ image - T).abs().max()) <= tol * size
    assert float((image - Q @ T - block @ coupling).abs().max()) <= tol * size


@pytest.mark.parametrize("keep_images", [False, True])
@pytest.mark.parametrize("locked", [0, 5])
@pytest.mark.parametrize("width", [1, 4])
def test_the_recurrence_is_the_projection_through_restarts(width: int, locked: int, keep_images: bool) -> None:
    """T = Q^T H Q, and residuals are what the recurrence says, at every step and after every restart."""
    A = matrix(SPREAD)
    op = held(A)
    krylov = started(op, width, locked, keep_images=keep_images)
    for _ in range(8):
        grow(op, krylov)
        require_right(A, op, krylov)
        krylov.project()
        V, theta = whole(op, krylov.vectors(np.arange(krylov.filled))), torch.from_numpy(krylov.theta)
        true = A @ V - V * theta
        if keep_images:
            found = whole(op, krylov.residual_vectors(np.arange(krylov.filled)))
            torch.testing.assert_close(found, true, atol=1e-12, rtol=0)
        fixed = whole(op, krylov.locked)
        outside = true - fixed @ (fixed.T @ true)
        np.testing.assert_allclose(krylov.residuals(), outside.norm(dim=0).numpy(), atol=1e-12)
        krylov.restart(outermost(krylov, 8))
        require_right(A, op, krylov)
    # With so few columns the restarts have made something of them: both ends of the complement are there.
    P = torch.eye(N).to(A) - fixed @ fixed.T
    values = torch.linalg.eigvalsh(P @ A @ P)
    np.testing.assert_allclose(krylov.theta[[0, -1]], values[[0, -1]].numpy(), atol=1e-9)


def test_a_longer_basis_goes_on_where_the_shorter_one_stood() -> None:
    """A restart may move what it keeps, and its images, into more room."""
    A = matrix(SPREAD)
    op = held(A)
    krylov = started(op, 4, 3, columns=40, keep_images=True)
    grow(op, krylov)
    krylov.project()
    krylov.restart(outermost(krylov, 8), 80)
    grow(op, krylov)
    assert krylov.filled == 80
    require_right(A, op, krylov)


@pytest.mark.parametrize("width", [1, 4])
def test_an_invariant_space_ends_the_run(width: int) -> None:
    """Five different eigenvalues exhaust the space of every vector after five products, whatever the scale."""
    for scale in (1e-12, 1.0, 1e6):
        A = scale * torch.diag(torch.tensor([-2.0, -1.0, 0.0, 1.0, 3.0], dtype=torch.float64).repeat(30))
        op = held(A)
        krylov = Krylov(space_of(op), 60, width)
        krylov.fill(generator())
        grow(op, krylov)
        assert (krylov.exhausted, krylov.filled) == (True, 5 * width)
        krylov.project()
        np.testing.assert_allclose(krylov.theta / scale, np.repeat([-2.0, -1.0, 0.0, 1.0, 3.0], width), atol=1e-12)
        require_right(A, op, krylov)


def test_a_block_narrows_where_part_of_it_is_exhausted_and_is_filled_at_random() -> None:
    """Two of four columns lie in an invariant space of four dimensions: the others lead on, alone or with new ones."""
    A = torch.zeros(N, N, dtype=torch.float64)
    A[:4, :4], A[4:, 4:] = matrix([1.0, 2.0, 3.0, 4.0]), matrix(SPREAD[4:])
    op = held(A)
    for is_filled in (False, True):
        krylov = Krylov(space_of(op), 40, width=4)
        start = torch.zeros(N, 4, dtype=torch.float64)
        start[:4, :2], start[4:, 2:] = orthonormal(2, 4), orthonormal(2, N - 4)
        krylov.lead(mine(op, start))
        widths = []
        while krylov.filled + krylov.block.shape[1] <= 40:
            advance(op, [krylov])
            widths.append(krylov.block.shape[1])
            if is_filled:
                krylov.fill(generator())
            require_right(A, op, krylov)
        assert widths[:3] == [4, 2, 4 if is_filled else 2]


@pytest.mark.parametrize("width", [1, 4])
def test_the_whole_space_is_spanned_and_no_more(width: int) -> None:
    """With random columns for those lost, a basis as long as the order is reached for any matrix, zero included."""
    for values in ([2.0], [0.0] * 9, [1.0] * 9, np.linspace(-1, 1, 9), [5.0, *[0.0] * 8]):
        A = matrix(values)
        op = held(A)
        krylov = Krylov(space_of(op), len(A), width)
        krylov.fill(generator())
        while not krylov.exhausted:
            advance(op, [krylov])
            krylov.fill(generator(krylov.filled))
        assert krylov.filled == len(A)
        krylov.project()
        np.testing.assert_allclose(krylov.theta, np.sort(values), atol=1e-13)
        require_right(A, op, krylov)


def test_nearly_dependent_directions_are_told_from_rounding() -> None:
    """Columns that differ by parts in 1e4, 1e8 and 1e11 span four directions; a difference of 1e-15 is none."""
    e = orthonormal(4, seed=3)
    op = held(matrix(SPREAD))
    for differences, rank in (([1e-4, 1e-8, 1e-11], 4), ([1e-4, 1e-8, 1e-15], 3)):
        x = e[:, :1] + torch.cat([torch.zeros(N, 1), *(d * e[:, [i + 1]] for i, d in enumerate(differences))], dim=1)
        krylov = Krylov(space_of(op), 8, width=4)
        krylov.lead(mine(op, x))
        U = whole(op, krylov.block)
        assert U.shape[1] == rank
        assert float((U.T @ U - torch.eye(rank)).abs().max()) <= 1e-14
        # Each direction is right as far as the digits of x tell it.
        lost = (e[:, :rank] - U @ (U.T @ e[:, :rank])).norm(dim=0)
        assert (lost <= torch.tensor([1e-13, 1e-9, 1e-5, 1e-2])[:rank]).all()


def test_any_vectors_lead_on_where_images_are_kept() -> None:
    """Blocks that are none of the Krylov space's: T is still the projection, and residuals are true."""
    A = matrix(SPREAD)
    op = held(A)
    krylov = started(op, 4, 0, keep_images=True)
    for seed in range(6):
        krylov.lead(mine(op, orthonormal(7, seed=seed)), 5 + seed % 3)
        assert krylov.block.shape[1] == 5 + seed % 3
        advance(op, [krylov])
        assert krylov.block.shape[1] == 4
        krylov.project()
        Q = whole(op, krylov.basis[:, : krylov.filled])
        np.testing.assert_allclose(krylov.T[: krylov.filled, : krylov.filled], (Q.T @ A @ Q).numpy(), atol=1e-12)
        V, theta = whole(op, krylov.vectors(np.arange(4))), torch.from_numpy(krylov.theta[:4])
        torch.testing.assert_close(
            whole(op, krylov.residual_vectors(np.arange(4))), A @ V - V * theta, atol=1e-12, rtol=0
        )
        assert float((Q.T @ Q - torch.eye(krylov.filled)).abs().max()) <= 1e-14


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_product_that_is_not_finite_is_no_exhausted_space(bad: float) -> None:
    """One entry of one image is enough to stop the run."""
    op = held(matrix(SPREAD))
    krylov = started(op, 1, 0)
    for _ in range(5):
        advance(op, [krylov])
    image = op @ krylov.block
    image[7] = bad
    with pytest.raises(NumericsError, match="the Hessian is not finite: its products hold NaN or infinity"):
        krylov.take(image)


def test_single_precision_keeps_its_basis_orthonormal() -> None:
    """To 1e-6 through restarts, and T is its projection to as much."""
    A = matrix(SPREAD).float()
    op = held(A)
    krylov = started(op, 4, 0)
    krylov.fill(generator())
    for _ in range(4):
        grow(op, krylov)
        Q = whole(op, krylov.basis[:, : krylov.filled])
        assert float((Q.T @ Q - torch.eye(krylov.filled)).abs().max()) <= 1e-6
        T = krylov.T[: krylov.filled, : krylov.filled]
        np.testing.assert_allclose(T, (Q.T @ A @ Q).numpy(), atol=1e-5 * float(A.norm()))
        krylov.project()
        krylov.restart(outermost(krylov, 8))


def skewed(values: Array, size: float) -> MatrixOperator:
    """A matrix of these eigenvalues, beside which its products have a skew part of this norm."""
    skew = torch.randn(len(values), len(values), generator=generator(3), dtype=torch.float64)
    skew = skew - skew.T
    return MatrixOperator(matrix(values) + size * skew / torch.linalg.matrix_norm(skew, 2))


@pytest.mark.parametrize("size", [1e-10, 1e-6, 1e-3])
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
    found = eigsh(skewed(values, 0.05), 10, method="lanczos", max_hvps=1000)
    assert found.operator_norm == pytest.approx(1, abs=0.05)
    assert found.ritz[0] >= -0.14


def test_runs_in_lockstep_are_the_separate_runs() -> None:
    """Several runs share each product: the same projections, to rounding, and as many products."""
    op = held(matrix(SPREAD))
    starts = mine(op, torch.randn(N, 3, generator=generator(), dtype=torch.float64)).split(1, dim=1)
    together, apart = ([Krylov(space_of(op), 30) for _ in starts] for _ in range(2))
    for one, other, start in zip(together, apart, starts, strict=True):
        one.lead(start)
        other.lead(start)
        grow(op, other)
    for _ in range(30):
        advance(op, together)
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_allclose(one.T, other.T, atol=1e-12)


@pytest.mark.parametrize("by_columns", [False, True])
def test_inner_products_of_long_vectors(by_columns: bool) -> None:
    """Of a million numbers in float32 they are right to its precision, one vector or several, whatever the storage."""
    n = 1_000_000
    X = torch.randn(8, n, generator=generator()).T if by_columns else torch.randn(n, 8, generator=generator())
    X /= X.norm(dim=0)
    space, exact = VectorSpace(MatrixOperator(torch.eye(2))), X.double().T @ X.double()
    for m in (1, 8):
        assert float((space.inner(X[:, :m], X) - exact[:m]).abs().max()) < 1e-6
        assert float((space.inner(X[:, :m], X[:, :m]) - exact[:m, :m]).abs().max()) < 1e-6
