"""The lowest eigenvalues of a dense block by the inverse, against LAPACK and the search by products."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.matrices import Diagonal, matrix
from numpy.typing import NDArray

from landscape import eigsh
from landscape.curvature import eigsh as shifted
from landscape.curvature.eigsh import shifted_ends
from landscape.curvature.operators import MatrixOperator, Product

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
    found = shifted_ends(H, H, K, 1e-6, 0, 3000)
    true = torch.linalg.eigvalsh(H.matrix).numpy()
    norm = np.abs(true).max()
    expected = np.stack([true[:K], true[::-1][:K]])
    assert found.converged.all()
    assert np.abs(found.values - expected).max() <= 1e-10 * norm
    assert (np.abs(found.values - expected) <= found.hidden[:, None] + 1e-13 * norm).all()
    assert found.hidden.max() <= 1e-3 * norm
    assert found.operator_norm == pytest.approx(norm)
    for values, vectors, residuals in zip(found.values, found.vectors, found.residuals, strict=True):
        image = H.matrix @ vectors
        np.testing.assert_allclose(
            residuals, (image - vectors * torch.from_numpy(values)).norm(dim=0), atol=1e-14 * norm
        )
        assert (vectors.T @ vectors - torch.eye(K)).abs().max() < 1e-10
    slow = eigsh(H, K, method="lanczos")
    np.testing.assert_allclose(found.values, slow.values, atol=1e-9 * norm)
    assert (found.method, found.tol, found.hidden_failure_probability) == (
        slow.method,
        slow.tol,
        slow.hidden_failure_probability,
    )


@pytest.mark.parametrize("seed", range(4))
def test_one_factorisation_suffices(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below one eigenvalue apart from a crowd, which a run finds late."""
    values = np.r_[-2.5e-3, np.linspace(-2e-3, 0, 1000), np.linspace(0, 1, 499)]
    taken, right = [], shifted.shifted_factor

    def counted(matrix: torch.Tensor, shift: float) -> torch.Tensor | None:
        taken.append(shift)
        return right(matrix, shift)

    monkeypatch.setattr(shifted, "shifted_factor", counted)
    H = MatrixOperator(torch.diag(torch.from_numpy(values)))
    found = shifted_ends(Diagonal(values), H, 3, 1e-6, seed, 3000)
    assert (np.abs(found.values[0] - np.sort(values)[:3]) <= found.hidden[0] + 1e-13).all()
    assert found.hidden[0] < 1e-6
    assert found.converged.all()
    assert len(taken) == 1


@pytest.mark.slow
def test_hidden_allows_for_the_error_of_the_matrix() -> None:
    """As the values are those of products, which may be of another matrix by as much."""
    H = matrix(SPECTRA["cluster below zero"])
    exact, rough = (shifted_ends(MatrixOperator(H), MatrixOperator(H, e), K, 1e-6, 0, 3000) for e in (0.0, 1e-5))
    assert rough.hidden[0] == pytest.approx(exact.hidden[0] + 1e-5)
    assert exact.hidden[0] < 1e-6


@pytest.mark.slow
def test_hidden_allows_for_the_error_of_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A factor of another matrix is noticed by the products with this one."""
    H, right = MatrixOperator(matrix(SPECTRA["cluster below zero"])), shifted.shifted_factor
    exact = shifted_ends(H, H, K, 1e-6, 0, 3000)
    change = 1e-6 * torch.eye(N, dtype=torch.float64)
    monkeypatch.setattr(shifted, "shifted_factor", lambda H, s: right(H + change, s))
    # The values differ by 1e-6, which is not all that such solves may hide.
    assert 3e-6 < shifted_ends(H, H, K, 1e-6, 0, 3000).hidden[0] - exact.hidden[0] < 1e-3


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
    found, slow = shifted_ends(H, H, K, 1e-6, 0, 3000), eigsh(H, K, method="lanczos")
    assert found.values.tolist() == slow.values.tolist()
    assert found.hidden.tolist() == slow.hidden.tolist()
    assert found.num_products > slow.num_products


@pytest.mark.slow
@pytest.mark.parametrize("name", ["negative", "copies"])
def test_every_product_is_counted(name: str) -> None:
    """Of the estimate, of the search and of the residuals, with the inverse or without."""
    H, columns = MatrixOperator(matrix(SPECTRA[name])), []
    counting = Product.square(lambda v: columns.append(v.shape[1]) or H @ v, N, H)
    assert shifted_ends(counting, H, K, 1e-6, 0, 3000).num_products == sum(columns)
