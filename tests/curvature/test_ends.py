"""The eigenvectors at the ends of a matrix, by two methods, against the prescribed spectrum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.matrices import matrix

from landscape.curvature.krylov import end_vectors, tridiagonal_ends

SPECTRA = {
    "even": np.linspace(-1, 1, 300),
    "more copies than a block holds": np.r_[np.full(21, -1.0), np.linspace(0, 1, 279)],
    "null space": np.r_[np.zeros(64), np.linspace(0.1, 1, 236)],
    "two scales": np.r_[-1e-9 * np.arange(1, 200), 1e3 * np.arange(1, 102.0)],
    "tiny": 1e-12 * np.random.default_rng(0).standard_normal(300),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("lowest", [True, False])
def test_vectors_of_both_ends_belong_to_the_outermost_eigenvalues(name: str, lowest: bool) -> None:
    """Orthonormal, with residuals near rounding, copies counted."""
    H = matrix(SPECTRA[name])
    values = torch.linalg.eigvalsh(H).numpy()
    wanted = torch.from_numpy((values if lowest else values[::-1])[:12].copy())
    by_tridiagonal = tridiagonal_ends(H, 12)
    np.testing.assert_allclose(by_tridiagonal[0], np.sort(SPECTRA[name]), atol=1e-13 * np.abs(values).max())
    for found in (end_vectors(H, values, 12, lowest), by_tridiagonal[1 if lowest else 2]):
        assert found is not None
        assert (H @ found - found * wanted).norm(dim=0).max() <= 1e-13 * np.abs(values).max()
        assert (found.T @ found - torch.eye(12)).abs().max() <= 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("shift", [-0.5, 0.5])
def test_wrong_eigenvalues_give_no_vectors(shift: float) -> None:
    """Neither where the shift lies inside the spectrum, nor where eigenvalues are missing below it."""
    H = matrix(SPECTRA["even"])
    assert end_vectors(H, np.sort(SPECTRA["even"]) + shift, 5, True) is None
