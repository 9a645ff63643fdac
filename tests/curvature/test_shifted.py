"""The lowest eigenvalues of a dense block by the inverse, against LAPACK and the search by products."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.matrices import matrix
from numpy.typing import NDArray

from landscape import eigsh
from landscape.curvature import eigsh as shifted
from landscape.curvature.eigsh import shifted_ends
from landscape.curvature.operators import MatrixOperator

N, K = 300, 6
SPECTRA = {
    "cluster below zero": np.r_[-np.linspace(2e-3, 2.3e-3, 30), np.linspace(0, 1, N - 30)],
    "copies": np.r_[np.full(4, -0.5), np.linspace(-0.4, 1, N - 4)],
    "null space": np.r_[np.zeros(100), np.linspace(0.1, 3, N - 100)],
    "lowest of largest modulus": np.r_[-np.linspace(4.99, 5, 20), np.linspace(-1, 1, N - 20)],
    "negative": np.linspace(-2, -1, N),
    "small": 1e-9 * np.linspace(-1, 1, N),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECTRA)
def test_pairs_are_those_of_lapack(name: str) -> None:
    """Values, copies and residuals to the tolerance; `hidden` covers every difference, as a search's does."""
    H = MatrixOperator(matrix(SPECTRA[name]))
    eigen = shifted_ends(H, H, K, 1e-6, 0, 3000)
    true = torch.linalg.eigvalsh(H.matrix).numpy()
    norm = np.abs(true).max()
    expected = np.stack([true[:K], true[::-1][:K]])
    assert eigen.converged.all()
    assert np.abs(eigen.values - expected).max() <= 1e-10 * norm
    assert (np.abs(eigen.values - expected) <= eigen.hidden[:, None] + 1e-13 * norm).all()
    assert eigen.hidden.max() <= 1e-3 * norm
    assert eigen.operator_norm == pytest.approx(norm)
    for values, vectors, residuals in zip(eigen.values, eigen.vectors, eigen.residuals, strict=True):
        image = H.matrix @ vectors
        np.testing.assert_allclose(
            residuals, (image - vectors * torch.from_numpy(values)).norm(dim=0), atol=1e-14 * norm
        )
        assert (vectors.T @ vectors - torch.eye(K)).abs().max() < 1e-10
    slow = eigsh(H, K, method="lanczos")
    np.testing.assert_allclose(eigen.values, slow.values, atol=1e-9 * norm)
    assert (eigen.method, eigen.tol, eigen.hidden_failure_probability) == (
        slow.method,
        slow.tol,
        slow.hidden_failure_probability,
    )


@pytest.mark.slow
def test_hidden_allows_for_the_error_of_the_matrix() -> None:
    """As the values are those of products, which may be of another matrix by as much."""
    H = matrix(SPECTRA["cluster below zero"])
    exact, rough = (shifted_ends(MatrixOperator(H), MatrixOperator(H, e), K, 1e-6, 0, 3000) for e in (0.0, 1e-5))
    assert rough.hidden[0] == pytest.approx(exact.hidden[0] + 1e-5)
    assert exact.hidden[0] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "most"), [(np.zeros(N), 600), (SPECTRA["null space"], 12), (SPECTRA["copies"], 600)]
)
def test_products_find_what_the_inverse_does_not(
    values: NDArray[np.float64], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zero matrix, too few solves, and copies so close to the shift that all else looks alike: as without it."""
    monkeypatch.setattr(shifted, "_MOST", most)
    H = MatrixOperator(matrix(values))
    eigen, slow = shifted_ends(H, H, K, 1e-6, 0, 3000), eigsh(H, K, method="lanczos")
    assert eigen.values.tolist() == slow.values.tolist()
    assert eigen.hidden.tolist() == slow.hidden.tolist()
    assert eigen.num_products > slow.num_products
