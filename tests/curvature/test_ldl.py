"""The factorisation behind certified indices: its solutions and its counts."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from helpers.matrices import matrix

from landscape.curvature.inertia import ShiftedLDL, count_below


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
            counts = [count_below(torch.from_numpy(A), float(shift), nearest * far) for far in (0, 0.01 / n**0.5, 1.01)]
            assert counts == [index, index, None]


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
