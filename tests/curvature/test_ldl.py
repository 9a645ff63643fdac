"""The factorisation behind certified indices: its solutions and its counts."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from helpers.matrices import matrix

from landscape.curvature.inertia import ShiftedLDL, count_below

EPS = torch.finfo(torch.float64).eps


def pivoted(n: int, kind: str) -> torch.Tensor:
    """Symmetric matrices whose factorisation takes pivots of both orders, in any order."""
    A = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    if kind == "graded":
        A *= torch.logspace(-6, 6, n, dtype=torch.float64)
    A = A + A.T
    if kind == "without a diagonal":
        A.diagonal().zero_()
    return A


@pytest.mark.parametrize("kind", ["full", "without a diagonal", "graded"])
@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 65, 66, 130, 321])
def test_solutions_and_counts(n: int, kind: str) -> None:
    """Backward stable on either side of the edges at which interchanges are gathered, and Sylvester's law holds."""
    H, shift = pivoted(n, kind), 0.25
    right = torch.randn(n, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = ShiftedLDL(H, shift)
    A = (H - shift * torch.eye(n, dtype=H.dtype)) / found.scale
    assert torch.equal(found.matrix, A)
    assert 1 <= float(H.abs().max()) / found.scale < 2 or not H.any()
    for _ in range(2):
        x = found.solve(right)
        assert float((A @ x - right).norm()) <= 10 * n * EPS * float(A.norm() * x.norm())
    values = np.linalg.eigvalsh(A.numpy())
    if kind != "graded":
        assert np.abs(values).min() > 1e-9 * np.abs(values).max()
        assert found.negative == int((values < 0).sum())


def test_solutions_equal_those_of_lapack() -> None:
    H = pivoted(200, "without a diagonal")
    LD, pivots, _ = torch.linalg.ldl_factor_ex(H)
    assert 0 < int((pivots < 0).sum()) < 200
    right = torch.eye(200, dtype=H.dtype)
    expected = torch.linalg.ldl_solve(LD, pivots, right)
    found = ShiftedLDL(H, 0.0)
    assert float((found.solve(right) / found.scale - expected).norm()) <= 1e-10 * float(expected.norm())


def test_single_precision() -> None:
    H = pivoted(130, "full").float()
    right = torch.ones(130, 1)
    found = ShiftedLDL(H, 0.5)
    x = found.solve(right) / found.scale
    assert x.dtype == torch.float32
    assert float((H @ x - 0.5 * x - right).norm()) <= 1e-4 * float(H.norm() * x.norm())


def test_a_singular_pivot_shows() -> None:
    """Callers take another shift then."""
    x = ShiftedLDL(torch.eye(3, dtype=torch.float64), 1.0).solve(torch.ones(3, 1, dtype=torch.float64))
    assert not torch.isfinite(x).any()


@pytest.mark.parametrize("kind", ["dense", "zero diagonal", "swaps", "banded"])
def test_negative_pivots_equal_eigenvalue_counts(kind: str) -> None:
    """Sylvester's law at many shifts, also where every pivot is a 2 x 2 block; with an error, only where it is far."""
    rng = np.random.default_rng(1)
    for n in (2, 3, 10, 41):
        A = rng.standard_normal((n, n))
        A = A + A.T
        if kind == "zero diagonal":
            np.fill_diagonal(A, 0.0)
        elif kind == "swaps":
            A = scipy.linalg.block_diag(*[[[0.0, c], [c, 0.0]] for c in rng.uniform(-1, 1, n)])
        elif kind == "banded":
            A = np.triu(np.tril(A, 1), -1)
        values = np.linalg.eigvalsh(A)
        shifts = np.concatenate([(values[1:] + values[:-1]) / 2, values[[0, -1]] + [-0.1, 0.1], [1e-6]])
        for shift in shifts:
            index, nearest = (values < shift).sum(), np.abs(values - shift).min()
            found = [count_below(torch.from_numpy(A), float(shift), nearest * far) for far in (0, 0.01 / n**0.5, 1.01)]
            assert found == [index, index, None]


@pytest.mark.parametrize("size", [3e-7, 1e-3])
def test_a_factorisation_in_error_along_a_null_vector_certifies_nothing(size: float) -> None:
    """There alone, products with H - s I cannot show it: they vanish where it is."""
    values = np.concatenate([[-1.0, -0.5 - 1e-13], np.linspace(0.1, 1, 10)])
    H, vectors = matrix(values), torch.linalg.eigh(matrix(values)).eigenvectors
    assert count_below(H, -0.5) in (2, None)
    wrong = ShiftedLDL(H + size * vectors[:, 1:2] @ vectors[:, 1:2].T, -0.5)
    assert wrong.negative == 1
    wrong.matrix = ShiftedLDL(H, -0.5).matrix
    assert count_below(H, -0.5, factored=wrong) is None
