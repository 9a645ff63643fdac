"""The factorisation behind certified indices: its solutions and its counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from landscape.curvature.ldl import ShiftedLDL

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
