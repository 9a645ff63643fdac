"""Eigensolvers and inertia at their edges: orthonormality, wide brackets, defaults, both orders of a product."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.matrices import drawn_spectrum, matrix

from landscape.analysis.hessian import analyse
from landscape.config import HessianConfig, TrainConfig
from landscape.curvature import search
from landscape.curvature.coupling import coupling, coupling_strength
from landscape.curvature.inertia import from_spectrum, saddle_index
from landscape.curvature.lanczos import eigsh
from landscape.curvature.operators import MatrixOperator
from landscape.training.loop import train

SPECTRA = {
    "rank 10": [*range(-5, 0), *range(1, 6), *[0.0] * 390],
    "rank 1": [1.0, *[0.0] * 299],
    "two values": [*[-1.0] * 150, *[2.0] * 150],
    "decaying": (np.geomspace(1, 1e-14, 300) * np.resize([1, -1], 300)).tolist(),
    "one giant": [1e8, *np.linspace(-1, 1, 299)],
    "cluster": [*(-2 + 1e-7 * np.arange(6)), *np.linspace(-1, 1, 294)],
}


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6])
@pytest.mark.parametrize("name", list(SPECTRA))
@pytest.mark.parametrize("method", ["dense", "lanczos"])
def test_vectors_are_orthonormal_and_residuals_true(method: str, name: str, scale: float) -> None:
    """Breakdown, multiplets and any scale leave the basis orthonormal; residuals and values are recomputed here."""
    values = scale * np.sort(np.array(SPECTRA[name]))
    A = matrix(values)
    for seed in range(3):
        result = eigsh(MatrixOperator(A), 6, method=method, seed=seed)
        norm = np.abs(values).max()
        assert result.orthonormality <= 2e-14
        assert result.converged.all()
        expected = np.stack([values[:6], values[::-1][:6]])
        np.testing.assert_allclose(result.values, expected, atol=2e-7 * norm)
        for end in range(2):
            V = result.vectors[end]
            assert float((V.T @ V - torch.eye(6, dtype=torch.float64)).abs().max()) <= 2e-14
            residual = (A @ V - V * torch.from_numpy(result.values[end])).norm(dim=0).numpy()
            np.testing.assert_allclose(result.residuals[end], residual, atol=1e-14 * norm)


def test_a_hard_search_gets_a_longer_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where eigenvalues crowd at both ends: the true ones, for at most four fifths of the products."""
    values = np.sin(np.linspace(-np.pi / 2, np.pi / 2, 500))
    A = matrix(values)
    found = eigsh(MatrixOperator(A), 10, method="lanczos")
    np.testing.assert_allclose(found.values, np.stack([values[:10], values[::-1][:10]]), atol=1e-9)
    assert found.converged.all()
    assert found.orthonormality <= 2e-14
    monkeypatch.setattr(search, "_EASY", 10**9)
    short = eigsh(MatrixOperator(A), 10, method="lanczos")
    assert short.converged.all()
    assert found.num_products <= 0.8 * short.num_products


@pytest.mark.parametrize("seed", range(10))
def test_a_low_rank_operator_has_no_invented_eigenvalues(seed: int) -> None:
    """Rank 10 of 600: five negative, five positive, and zeros; the projection holds nothing else."""
    result = eigsh(MatrixOperator(matrix([*range(-5, 0), *range(1, 6), *[0.0] * 590], seed)), 8, method="lanczos")
    np.testing.assert_allclose(result.values[0], [-5, -4, -3, -2, -1, 0, 0, 0], atol=1e-13)
    assert int((np.abs(result.ritz) > 1e-12).sum()) == 10


def test_both_ends_where_largest_magnitudes_alternate() -> None:
    """{5, -4.95, 3, -2.9}: each end has its own two values, by either method."""
    A = MatrixOperator(matrix([5.0, -4.95, 3.0, -2.9, *[0.0] * 296]))
    for method in ("dense", "lanczos"):
        np.testing.assert_allclose(eigsh(A, 2, method=method).values, [[-4.95, -2.9], [5.0, 3.0]], atol=1e-12)


# --- inertia ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inside", "lower", "upper"), [(-0.495, 1, 2), (-0.505, 1, 2), (-0.52, 2, 2), (-0.48, 1, 1)])
def test_brackets_are_as_wide_as_the_error_on_either_side(inside: float, lower: int, upper: int) -> None:
    """An eigenvalue within the matrix error of -tau, above or below it, leaves a bracket; one beyond it does not."""
    result = eigsh(MatrixOperator(matrix([-1.0, inside, 0.1, 1.0]), error=0.01), 2)
    found = from_spectrum(result, tau=0.5)
    assert (found.lower, found.upper) == (lower, upper)
    assert found.level == ("certified" if lower == upper else "bracketed")
    assert found.negative == (lower if lower == upper else -1)


def test_theory_narrows_a_dense_bracket() -> None:
    """A bound on the index known from theory is the upper end where it is the smaller one."""
    result = eigsh(MatrixOperator(matrix([-1.0, -0.5, -0.5, 1.0]), error=0.01), 2)
    assert from_spectrum(result, tau=0.5).upper == 3
    assert from_spectrum(result, tau=0.5, upper=2).upper == 2


@pytest.mark.parametrize(("method", "relative"), [("dense", 1e-8), ("lanczos", 1e-3)])
def test_default_tolerance_is_relative_to_the_norm(method: str, relative: float) -> None:
    """1e-8 of |H| where the matrix is known, 1e-3 where it is not, whatever the scale."""
    for scale in (1e-12, 1.0, 1e6):
        A = matrix(scale * np.linspace(-1, 4, 300))
        found = saddle_index(MatrixOperator(A), method=method)
        assert found.tolerance == pytest.approx(4 * relative * scale, rel=1e-3)


def test_counts_hold_for_every_tolerance() -> None:
    """At any tau between two eigenvalues the certified counts are those of NumPy."""
    values = np.random.default_rng(0).standard_normal(60)
    result = eigsh(MatrixOperator(matrix(values)), 5)
    for tau in np.geomspace(1e-6, 0.9, 30):
        found = from_spectrum(result, tau=float(tau))
        shift = tau * np.abs(values).max()
        below, above = int((values < -shift).sum()), int((values > shift).sum())
        assert (found.negative, found.zero, found.positive) == (below, 60 - below - above, above)


# --- coupling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [0.9999, 1.0001])
def test_coupling_index_turns_at_one(kappa: float) -> None:
    """A coupling ratio a little above 1 is a negative direction, a little below is none."""
    one, K = torch.eye(2, dtype=torch.float64), torch.diag(torch.tensor([kappa, 0.5], dtype=torch.float64))
    result = coupling(*map(MatrixOperator, (one, K, one)), 0.0)
    joint = np.block([[one.numpy(), K.numpy()], [K.numpy().T, one.numpy()]])
    assert result.index == int(kappa > 1) == int((np.linalg.eigvalsh(joint) < 0).sum())


def test_coupling_strength_of_a_flat_block_is_undefined() -> None:
    """NaN where a diagonal block is zero; else |H_12| over the geometric mean of the blocks."""
    C = torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    assert coupling_strength(MatrixOperator(C), 4.0, 9.0) == pytest.approx(0.5, rel=1e-6)
    assert np.isnan(coupling_strength(MatrixOperator(C), 4.0, 0.0))


# --- what a file may claim ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("activation", "objective"), [("gelu", "data"), ("relu", "regularised"), ("relu", "data")])
def test_saddle_bound_is_given_only_where_it_holds(tmp_path: Path, activation: str, objective: str) -> None:
    """F14 is about the data loss of piecewise-linear networks; elsewhere the file says NaN and -1."""
    config = TrainConfig(p=5, tokens=2, embed_dim=3, hidden=6, train_fraction=0.6, steps=5, device="cpu", batch_size=8)
    train(dataclasses.replace(config, activation=activation), tmp_path / "run.h5", quiet=True)
    settings = HessianConfig(steps="5", blocks=("E,W",), objective=objective, device="cpu")
    row = analyse(tmp_path / "run.h5", settings, quiet=True).row(5)
    has_bound = (activation, objective) == ("relu", "data")
    assert np.isfinite(row["saddle_bound"]) == has_bound
    assert (row["saddle_rank_bound"] > 0) == has_bound
    if has_bound:
        assert row["eigenvalues"][0, 0, 0] >= -row["saddle_bound"]


@pytest.mark.parametrize("seed", range(100))
def test_nothing_is_missed_in_random_spectra(seed: int) -> None:
    """Multiplets, clusters, gaps and zeros at scales from 1e-12 to 1e6: both ends, with all copies."""
    rng = np.random.default_rng(seed)
    bulk = rng.uniform(-0.3, 0.3) + 0.2 * rng.standard_normal(rng.integers(150, 400)).clip(-2, 2)
    values = drawn_spectrum(seed, 1e-3, 12)
    values = np.concatenate([values, bulk * np.abs(values).max()])
    found = eigsh(MatrixOperator(matrix(values, seed)), 8, method="lanczos", tol=1e-7, seed=seed, max_products=20_000)
    ordered, norm = np.sort(values), np.abs(values).max()
    np.testing.assert_allclose(found.values, [ordered[:8], ordered[::-1][:8]], rtol=0, atol=1e-6 * norm)
    assert found.converged.all()
    assert found.orthonormality < 1e-13
