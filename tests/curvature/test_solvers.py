"""Solvers on matrices whose spectrum is prescribed: clusters, multiplicities, scales, zeros; NumPy and SciPy beside."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from helpers.marking import seeds
from helpers.matrices import drawn_spectrum, matrix
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.eigsh import eigsh
from landscape.curvature.operators import FunctionOperator, LinearOperator, MatrixOperator
from landscape.curvature.vectors import column_norms
from landscape.errors import NumericsError

METHODS = ["dense", "lanczos"]


class Counted(LinearOperator):
    """An operator that counts its columns, as a solver may see it."""

    def __init__(self, A: Tensor) -> None:
        self.A, self.shape, self.dtype, self.device, self.columns = A, (len(A), len(A)), A.dtype, A.device, 0

    def _matmat(self, V: Tensor) -> Tensor:
        self.columns += V.shape[1]
        return self.A @ V


def ends(values: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    values = np.sort(values)
    return np.stack([values[:k], values[::-1][:k]])


def spectra() -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    low_rank = np.zeros(300)
    low_rank[:10] = [5, 4, 3, 2, 1, -1, -2, -3, -4, -5]
    return {
        "clusters": np.concatenate([np.linspace(-1, 1, 300), -2 + 1e-9 * np.arange(6), 3 - 1e-9 * np.arange(6)]),
        "multiple": np.concatenate([np.full(10, -1.0), np.linspace(0, 2, 300)]),
        "low rank": low_rank,
        "both signs": np.concatenate([[5, -4.95, 3, -2.9], np.zeros(296)]),
        "positive": np.sort(rng.exponential(size=400)) ** 4,
        "identity": np.ones(280),
        "zero": np.zeros(280),
    }


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6])
@pytest.mark.parametrize("name", spectra())
@pytest.mark.parametrize("method", METHODS)
def test_prescribed_spectra(method: str, name: str, scale: float) -> None:
    """Both ends come back to the tolerance, multiplicities and all, at every scale; residuals are true."""
    values = spectra()[name] * scale
    A = matrix(values)
    op = MatrixOperator(A)
    result = eigsh(op, 6, method=method, rtol=1e-8)
    norm = np.abs(values).max()
    right = np.abs(result.values - ends(values, 6)) <= 1e-8 * norm
    assert right[result.converged].all()
    # The low end of "positive" is a cluster of a hundred eigenvalues within 2e-6 |H|: not converged, and said so.
    assert result.converged.all() or (method, name) == ("lanczos", "positive")
    for end in range(2):
        V = result.vectors[end]
        theta = torch.from_numpy(result.values[end])
        np.testing.assert_allclose((A @ V - V * theta).norm(dim=0), result.residuals[end], atol=1e-14 * norm)
    assert result.orthonormality < 1e-13


@pytest.mark.slow
def test_a_tenfold_eigenvalue_is_found_ten_times_over_10_seeds() -> None:
    """-1 ten times: 10 of 10 for every start, where single-vector Lanczos finds 1 to 3."""
    A = MatrixOperator(matrix(np.concatenate([np.full(10, -1.0), np.linspace(0, 2, 190)])))
    for seed in range(10):
        lowest = eigsh(A, 12, which="lowest", method="lanczos", seed=seed).values[0]
        assert (np.abs(lowest + 1) < 1e-5).sum() == 10, seed


@pytest.mark.parametrize("n", [1, 2, 3, 5, 63, 64, 65, 257, 300])
@pytest.mark.parametrize("method", METHODS)
def test_small_orders_and_k_beyond_n(method: str, n: int) -> None:
    """Orders around every switch, and k > n, give all that there is."""
    A = matrix(np.random.default_rng(n).standard_normal(n), seed=n)
    k = min(8, n)
    result = eigsh(MatrixOperator(A), 8 if n > 5 else 10, method=method, rtol=1e-9)
    expected = ends(np.linalg.eigvalsh(A.numpy()), k if n > 5 else n)
    np.testing.assert_allclose(result.values, expected, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["graded", "clusters", "identity", "rank 40", "blocks"])
def test_dense_ends_equal_the_whole_decomposition(kind: str, dtype: torch.dtype) -> None:
    """Residuals, orthonormality and eigenvalues to rounding, of spectra that inverse iteration finds hard."""
    n, eps = 300, torch.finfo(dtype).eps
    values = {
        "graded": np.logspace(-15, 0, n),
        "clusters": np.repeat([-1.0, -1 + 1e-14, 0.0, 1.0], [8, 8, 274, 10]),
        "identity": np.ones(n),
        "rank 40": np.r_[np.zeros(n - 40), np.linspace(1, 2, 40)],
    }
    small = matrix(np.linspace(-1, 2, 30), seed=1)
    A = (matrix(values[kind]) if kind in values else torch.kron(torch.eye(10, dtype=torch.float64), small)).to(dtype)
    result = eigsh(MatrixOperator(A), 12, method="dense")
    norm, whole = result.operator_norm, np.linalg.eigvalsh(A.double().numpy())
    np.testing.assert_allclose(result.ritz, whole, atol=100 * eps * norm)
    np.testing.assert_allclose(result.values, ends(whole, 12), atol=100 * eps * norm)
    assert result.residuals.max() <= 100 * eps * norm
    assert result.orthonormality <= 100 * eps


@pytest.mark.slow
def test_the_tolerance_of_float32_is_reached() -> None:
    """A pair whose residual is hardly above it is led on, not taken for rounding."""
    n = 20_000
    diagonal = torch.randn(n, generator=torch.Generator().manual_seed(0))
    result = eigsh(
        FunctionOperator(lambda x: diagonal[:, None] * x, (n, n), diagonal), 10, "lowest", "lanczos", max_hvps=500
    )
    assert result.converged.all()
    np.testing.assert_allclose(result.values[0], diagonal.sort().values[:10], atol=result.tol * result.operator_norm)


def test_a_matrix_too_large_to_square_is_refused() -> None:
    """By its size, whatever becomes of it on the way."""
    with pytest.raises(NumericsError, match="can be squared without losing digits"):
        eigsh(MatrixOperator(1e300 * matrix(np.linspace(-1, 1, 300))), 3, method="dense")


def test_scipy_agrees_on_one_end() -> None:
    """SciPy's ARPACK finds the same highest eigenvalues; `which` returns one end only."""
    A = matrix(np.random.default_rng(1).standard_normal(300))
    theirs = np.sort(scipy.sparse.linalg.eigsh(A.numpy(), 5, which="LA", rng=0)[0])[::-1]
    result = eigsh(MatrixOperator(A), 5, which="highest", method="lanczos", rtol=1e-9)
    assert result.values.shape == (1, 5)
    np.testing.assert_allclose(result.values[0], theirs, atol=1e-9)


def test_products_are_counted_and_bounded() -> None:
    """num_products is what the operator saw; too small a budget is reported as not converged."""
    A = matrix(np.random.default_rng(2).standard_normal(600))
    counted = Counted(A)
    result = eigsh(counted, 4, method="lanczos")
    assert result.num_products == counted.columns
    assert result.converged.all()
    short = eigsh(Counted(A), 4, method="lanczos", rtol=1e-12, max_hvps=60)
    assert not short.converged.all()
    assert short.num_products < 200


@pytest.mark.slow
def test_warm_start_saves_products() -> None:
    """Eigenvectors of a neighbouring matrix as start vectors need fewer products than a random start."""
    A = matrix(np.linspace(-1, 1, 600))
    cold = eigsh(Counted(A), 4, method="lanczos")
    moved = A + 1e-6 * matrix(np.random.default_rng(3).standard_normal(600))
    for start in (cold.vectors, torch.cat(list(cold.vectors), dim=1)):
        warm = eigsh(Counted(moved), 4, method="lanczos", v0=start)
        assert warm.converged.all()
        assert warm.num_products < cold.num_products


@pytest.mark.parametrize("columns", [1, 5, 100])
@pytest.mark.parametrize("rank", [0, 1])
def test_start_vectors_may_be_zero_or_all_the_same(rank: int, columns: int) -> None:
    """Random vectors stand in for what start vectors do not span, also where those are more than a basis holds."""
    values = np.linspace(-1, 1, 300)
    A = matrix(values)
    eigen = eigsh(MatrixOperator(A), 2, method="lanczos", v0=rank * A[:, :1].expand(-1, columns))
    assert eigen.converged.all()
    np.testing.assert_allclose(eigen.values, ends(values, 2), atol=1e-9)


@pytest.mark.parametrize("seed", seeds(5, 20))
def test_nothing_is_missed_in_random_spectra(seed: int) -> None:
    """Multiplets, clusters, gaps and zeros at scales from 1e-12 to 1e6: both ends, with all copies."""
    rng = np.random.default_rng(seed)
    bulk = rng.uniform(-0.3, 0.3) + 0.2 * rng.standard_normal(rng.integers(150, 400)).clip(-2, 2)
    values = drawn_spectrum(seed, 1e-3, 12)
    values = np.concatenate([values, bulk * np.abs(values).max()])
    eigen = eigsh(MatrixOperator(matrix(values, seed)), 8, method="lanczos", rtol=1e-7, seed=seed, max_hvps=20_000)
    ordered, norm = np.sort(values), np.abs(values).max()
    np.testing.assert_allclose(eigen.values, [ordered[:8], ordered[::-1][:8]], rtol=0, atol=1e-6 * norm)
    assert eigen.converged.all()
    assert eigen.orthonormality < 1e-13


@pytest.mark.slow
def test_norms_of_long_columns_in_single_precision() -> None:
    """Residuals of float32 searches over millions of parameters keep their digits."""
    columns = torch.rand(4_000_000, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(column_norms(columns).double(), columns.double().norm(dim=0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_clusters_group_multiplicities(method: str) -> None:
    """clusters() gives each end's eigenvalues with their multiplicities, outermost first; the gap decides."""
    values = np.concatenate([[-2.0] * 3, [-1.5, -1.4], np.linspace(-1, 1, 90), [3.0] * 4, [2.5] * 2])
    eigen = eigsh(MatrixOperator(matrix(values)), 6, method=method, rtol=1e-9)
    for end, expected in ((0, [(-2.0, 3), (-1.5, 1), (-1.4, 1), (-1.0, 1)]), (1, [(3.0, 4), (2.5, 2)])):
        assert [count for _, count in eigen.clusters(end)] == [count for _, count in expected]
        np.testing.assert_allclose([v for v, _ in eigen.clusters(end)], [v for v, _ in expected], atol=1e-8)
    assert [count for _, count in eigen.clusters(0, gap=0.05)] == [3, 2, 1]
    assert eigen.clusters(1, gap=1.0) == [(pytest.approx(17 / 6), 6)]


@pytest.mark.slow
def test_warm_start_from_both_ends_and_single_precision() -> None:
    """v0 takes `vectors` of another result as it is; in float32 tol rises to 10 sqrt(n) eps and is met; k > n is n."""
    A = matrix(np.linspace(-1, 1, 400) ** 3)
    cold = eigsh(MatrixOperator(A), 4, method="lanczos")
    assert cold.vectors.shape == (2, 400, 4)
    warm, flat = (
        eigsh(MatrixOperator(A), 4, method="lanczos", v0=v) for v in (cold.vectors, torch.cat([*cold.vectors], 1))
    )
    np.testing.assert_allclose(warm.values, flat.values, rtol=1e-11)
    assert max(warm.num_products, flat.num_products) < cold.num_products
    for method in METHODS:
        single = eigsh(MatrixOperator(A.float()), 4, method=method, rtol=1e-12)
        assert single.tol == 10 * 400**0.5 * torch.finfo(torch.float32).eps
        assert single.converged.all()
        np.testing.assert_allclose(single.values, cold.values, atol=single.tol * cold.operator_norm)
        small = eigsh(MatrixOperator(matrix([3.0, -1.0, 2.0])), 10, method=method)
        np.testing.assert_allclose(small.values, [[-1, 2, 3], [3, 2, -1]], atol=1e-13)
        assert small.vectors.shape == (2, 3, 3)
