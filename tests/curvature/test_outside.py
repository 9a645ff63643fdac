"""The index outside of some directions by a low-rank correction, against the projected matrix itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.matrices import at_minus_tau, draw, exact_index, matrix
from torch import Tensor

from landscape.curvature import inertia as outside
from landscape.curvature.inertia import certified_outside
from landscape.curvature.operators import MatrixOperator, Spanned
from landscape.errors import NumericsError


class Span(Spanned):
    """The span of orthonormal columns."""

    def __init__(self, U: Tensor) -> None:
        self.U, self.sizes, self.dimension = U, [len(U)], U.shape[1]

    def basis(self) -> Tensor:
        return self.U

    def remove(self, vectors: Tensor) -> Tensor:
        return vectors - self.U @ (self.U.T @ vectors)


def span(n: int, m: int, seed: int) -> Span:
    return Span(torch.linalg.qr(draw(n, m, seed=seed)).Q)


def expected(H: Tensor, directions: Span, tolerance: float) -> int:
    """By all eigenvalues of the compression to an explicit basis of the complement."""
    Q = torch.linalg.qr(directions.U, mode="complete").Q[:, directions.dimension :]
    return int((torch.linalg.eigvalsh(Q.T @ H @ Q) < -tolerance).sum())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("m", [1, 7, 30])
def test_a_correction_counts_what_the_projection_has(seed: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of indefinite matrices with random directions, without a factorisation of the projected matrix."""
    H = matrix(np.random.default_rng(seed).standard_normal(60), seed)
    directions = span(60, m, seed + 100)
    monkeypatch.setattr(outside, "certified", None)
    inertia = certified_outside(MatrixOperator(H), directions, 1e-8, float(torch.linalg.matrix_norm(H, 2)))
    assert (inertia.negative, inertia.level) == (expected(H, directions, 1e-8), "certified")


def test_directions_that_hold_the_negative_eigenvectors_leave_none() -> None:
    """Eigenvectors are the hardest: A leaves their span invariant, and S has the eigenvalues of A^-1."""
    values = np.r_[-np.linspace(1, 2, 5), np.linspace(0.1, 1, 45)]
    H = matrix(values)
    vectors = torch.linalg.eigh(H).eigenvectors
    for m, left in ((5, 0), (3, 2)):
        assert certified_outside(MatrixOperator(H), Span(vectors[:, :m]), 1e-8, 2.0).negative == left


def test_an_eigenvalue_on_the_tolerance_is_left_to_the_projection() -> None:
    """Of the whole matrix, or only outside of the directions: the correction is not certain then."""
    H = matrix(np.r_[-1.0, -1e-3, np.linspace(0.1, 1, 40)])
    vectors = torch.linalg.eigh(H).eigenvectors
    inertia = certified_outside(MatrixOperator(H), Span(vectors[:, 1:2]), 1e-3, 1.0)
    assert (inertia.negative, inertia.level) == (1, "certified")
    with pytest.raises(NumericsError, match="below the error of the computed Hessian"):
        certified_outside(MatrixOperator(H, 1e-3), Span(vectors[:, 1:2]), 1e-3, 1.0)


def test_an_error_of_the_matrix_that_may_move_the_count_gives_a_bracket() -> None:
    """An eigenvalue of the projected matrix as near to -tolerance as the matrix is in error: 1 or 2."""
    H = matrix(np.r_[-1.0, -1.1e-2, 0.0, np.linspace(0.1, 1, 40)])
    vectors = torch.linalg.eigh(H).eigenvectors
    inertia = certified_outside(MatrixOperator(H, 2e-3), Span(vectors[:, 2:3]), 1e-2, 1.0)
    assert (inertia.negative, inertia.lower, inertia.upper, inertia.level) == (-1, 1, 2, "bracketed")


@pytest.mark.parametrize("scale", [2.0**-400, 1.0, 2.0**330, 2.0**400])
@pytest.mark.parametrize("seed", range(6))
def test_no_scale_makes_a_certificate(seed: int, scale: float) -> None:
    """An eigenvalue that is -tau to rounding: the exact inertia is in the bracket, in which no power of two counts."""
    A, tau = at_minus_tau(seed)
    H = torch.block_diag(A, torch.tensor([[3.0]], dtype=torch.float64)) * scale
    direction = Span(torch.eye(7, dtype=torch.float64)[:, 6:])
    inertia = certified_outside(MatrixOperator(H), direction, tau * scale, 3 * scale)
    assert inertia.lower <= exact_index(A, -tau) <= inertia.upper
    assert inertia.level == "bracketed"
