"""Diagonals: exact where asked for, and estimates whose intervals cover each element."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.matrices import Diagonal, Hidden, draw, matrix
from helpers.modules import operator_of

from landscape import HessianOperator, MatrixOperator, Objective, diagonal, mse
from landscape.curvature.diagonal import DiagonalMethod
from landscape.curvature.vectors import seeded, signs


@pytest.mark.parametrize("kind", ["mlp", "attention"])
def test_every_element_by_name(kind: str) -> None:
    """Up to 256 rows the diagonal is that of the matrix, and comes in the parameters' shapes."""
    H = operator_of(kind)
    exact, dense = diagonal(H), H.dense().diagonal()
    assert exact.num_products == H.shape[0]
    assert np.abs(exact.value - dense.numpy()).max() <= 1e-14 * float(dense.abs().max())
    assert not exact.standard_error.any()
    assert (exact.low < exact.value).all()
    assert (exact.high - exact.low < 1e-12 * np.abs(exact.value).max()).all()
    named = exact.by_name()
    assert {name: tensor.shape for name, tensor in named.items()} == H.shapes
    assert torch.equal(torch.cat([tensor.flatten() for tensor in named.values()]), torch.from_numpy(exact.value))
    block = diagonal(H.block(H.rows[1:])).by_name("high")
    assert list(block) == H.rows[1:]


def test_exact_beyond_256_rows() -> None:
    """At n products, in parts of 64 unit vectors; no method takes more products than there are rows."""
    A = matrix(np.linspace(-1, 2, 300))
    exact = diagonal(Hidden(A), "exact")
    assert np.abs(exact.value - A.diagonal().numpy()).max() <= 1e-15
    assert exact.num_products == 300
    assert [diagonal(Diagonal(np.ones(8)), method).num_products for method in ("xdiag", "hutchinson")] == [8, 8]


@pytest.mark.parametrize("method", ["xdiag", "hutchinson"])
def test_intervals_cover_each_element_and_the_mean_is_unbiased(method: DiagonalMethod) -> None:
    """Of 200 seeds 95 % of the intervals of each element hold it, within their scatter; standard errors are honest."""
    A = matrix(np.r_[5.0, -3.0, 2.0, np.linspace(-0.5, 0.7, 57)])
    true = A.diagonal().numpy()
    estimates = [diagonal(MatrixOperator(A), method, 30, seed) for seed in range(200)]
    covers = np.mean([(e.low <= true) & (true <= e.high) for e in estimates], 0)
    assert covers.mean() >= 0.945
    assert covers.min() >= 0.88
    away = np.array([e.value - true for e in estimates])
    size = (away**2).mean(0) ** 0.5
    assert (np.abs(away.mean(0)) <= 4.5 * size / 200**0.5).all()
    stated = np.mean([e.standard_error**2 for e in estimates], 0) ** 0.5
    assert (stated >= 0.85 * size).all()
    assert (stated <= 2 * size).all()


def test_xdiag_is_the_mean_over_projectors_that_leave_one_vector_out() -> None:
    """Beside the definition with dense projectors; its standard error is the jackknife's of the same with one fewer."""
    A, m = matrix(np.linspace(-1, 3, 40)), 4
    omega = signs(40, m, seeded(7))

    def estimate(kept: list[int]) -> torch.Tensor:
        each = []
        for i in kept:
            Q = torch.linalg.qr(A @ omega[:, [k for k in kept if k != i]]).Q
            beyond = A @ omega[:, i] - Q @ (Q.T @ (A @ omega[:, i]))
            each.append((Q @ Q.T @ A).diagonal() + omega[:, i] * beyond)
        return torch.stack(each).mean(0)

    result = diagonal(MatrixOperator(A), "xdiag", 2 * m, seed=7)
    assert np.abs(result.value - estimate(list(range(m))).numpy()).max() < 1e-13
    left_out = torch.stack([estimate([k for k in range(m) if k != j]) for j in range(m)])
    jackknife = ((m - 1) / m * (left_out - left_out.mean(0)).square().sum(0)).sqrt()
    assert np.abs(result.standard_error - jackknife.numpy()).max() < 1e-12


def test_low_rank_and_diagonal_matrices_are_exact() -> None:
    """XDiag of a rank below its sketch, also of 0; and Hutchinson of a diagonal matrix."""
    for rank in (0, 1, 12):
        A = matrix(np.r_[np.arange(1.0, rank + 1), np.zeros(300 - rank)])
        estimate = diagonal(MatrixOperator(A), "xdiag")
        assert np.abs(estimate.value - A.diagonal().numpy()).max() < 1e-12
        assert (estimate.low <= A.diagonal().numpy()).all()
        assert (estimate.high - estimate.low).max() < 1e-9
    values = draw(3000).numpy()
    assert np.abs(diagonal(Diagonal(values), "hutchinson").value - values).max() < 1e-12


def test_float32_intervals_hold_the_diagonal_of_float64() -> None:
    """Exact and estimated: rounding of the products is inside."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 10), torch.nn.Tanh(), torch.nn.Linear(10, 2))
    x, y, params = torch.randn(40, 5), torch.randn(40, 2), dict(model.named_parameters())
    true = HessianOperator(Objective(model, x, y, loss=mse), params).dense().diagonal().numpy()
    H = HessianOperator(Objective(model, x, y, loss=mse, dtype=torch.float32), params)
    exact = diagonal(H)
    assert ((exact.low <= true) & (true <= exact.high)).all()
    estimate = diagonal(H, "xdiag")
    assert ((estimate.low <= true) & (true <= estimate.high)).mean() > 0.9


def test_result_has_a_table_a_plot_and_words() -> None:
    """One row an element; names only where the operator has some; what cannot be is refused with its value."""
    estimate = diagonal(MatrixOperator(matrix(np.linspace(0, 1, 30), 1), error=0.5))
    assert list(estimate.to_dataframe()) == ["row", "value", "standard_error", "low", "high"]
    assert estimate.high - estimate.value == pytest.approx(0.5)
    assert estimate.plot().get_ylabel() == "diagonal element"
    with pytest.raises(ValueError, match="the rows of this diagonal have no names"):
        estimate.by_name()
    with pytest.raises(ValueError, match="field is 'shapes'"):
        diagonal(operator_of("mlp")).by_name("shapes")
    with pytest.raises(ValueError, match="method is 'bks'"):
        diagonal(Diagonal(np.ones(3)), "bks")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4 probes: an estimate takes at least 6"):
        diagonal(Diagonal(np.ones(300)), probes=4)
    with pytest.raises(ValueError, match="take a diagonal block"):
        diagonal(MatrixOperator(torch.zeros(4, 5, dtype=torch.float64)))
