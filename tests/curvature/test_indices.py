"""Indices, norms and coupling at their edges: brackets, defaults, and both orders of a product."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.hessians import analyse
from helpers.matrices import matrix

from landscape.config import HessianConfig, TrainConfig
from landscape.curvature.coupling import coupling, coupling_strength, spectral_norm
from landscape.curvature.eigsh import eigsh
from landscape.curvature.inertia import from_spectrum, saddle_index
from landscape.curvature.operators import MatrixOperator
from landscape.errors import NumericsError
from landscape.models.embedding_mlp.problem import saddle_bound
from landscape.training.loop import train


@pytest.mark.parametrize("seed", range(5))
def test_certified_index(seed: int) -> None:
    """The dense index counts eigenvalues below -tau, zeros are zeros, and the level says certified."""
    values = np.concatenate([-np.geomspace(1e-6, 1, 17), np.zeros(16), np.geomspace(1e-6, 2, 40)])
    found = saddle_index(MatrixOperator(matrix(values, seed)))
    assert (found.negative, found.zero, found.positive, found.level) == (17, 16, 40, "certified")
    assert found.lower == found.upper == 17
    assert found.tolerance == pytest.approx(2e-8, rel=1e-9)


def test_an_eigenvalue_at_the_tolerance_is_bracketed() -> None:
    """Where rounding could change the count only a bracket is given."""
    result = eigsh(MatrixOperator(matrix([-1.0, -0.5, 0.1, 1.0])), 2)
    found = from_spectrum(result, tau=0.5)
    assert (found.level, found.negative, found.lower, found.upper) == ("bracketed", -1, 1, 2)


def test_the_assembly_error_widens_the_bracket() -> None:
    """Eigenvalues within the error of -tau on either side count in the upper bound only; theory may cap it."""
    result = eigsh(MatrixOperator(matrix([-1.0, -0.505, -0.495, 1.0]), error=0.01), 2)
    found = from_spectrum(result, tau=0.5)
    assert (found.level, found.lower, found.upper) == ("bracketed", 1, 3)
    assert from_spectrum(result, tau=0.5, upper=2).upper == 2


def test_a_tolerance_below_the_error_is_refused() -> None:
    """The message names the smallest tolerance that would be honest, which is the default."""
    result = eigsh(MatrixOperator(matrix([-1.0, 0.0, 1.0]), error=1e-6), 1)
    with pytest.raises(NumericsError, match="tau 1.0e-08 is below the error of the computed Hessian, 1.0e-06") as error:
        from_spectrum(result, tau=1e-8)
    assert error.value.hint == "use tau >= 2.0e-06 relative to |H|, 2.0e-06 absolute"
    assert from_spectrum(result).tolerance == pytest.approx(2e-6, rel=1e-6)


@pytest.mark.slow
def test_matrix_free_index_is_a_bracket() -> None:
    """Without the matrix the projection gives a lower bound and theory the upper one."""
    values = np.concatenate([-np.linspace(0.1, 1, 30), np.linspace(0, 2, 300)])
    found = saddle_index(MatrixOperator(matrix(values)), method="lanczos", upper=64, max_hvps=100)
    assert found.level == "bracketed"
    assert found.negative == found.zero == found.positive == -1
    assert 5 <= found.lower <= 30 <= found.upper == 64
    assert found.failure_probability == 0
    alone = saddle_index(MatrixOperator(matrix(values)), method="lanczos", max_hvps=100)
    assert (alone.level, alone.upper) == ("estimated", 330)
    assert found.tolerance == pytest.approx(1e-3 * 2, rel=1e-3)


def test_norms_and_saddle_bound() -> None:
    """spectral_norm equals NumPy's 2-norm on either shape; the rank in the saddle bound ignores rounding."""
    rng = np.random.default_rng(0)
    for shape in ((5, 40), (90, 30)):
        A = torch.from_numpy(rng.standard_normal(shape))
        assert spectral_norm(MatrixOperator(A)) == pytest.approx(np.linalg.norm(A.numpy(), 2), rel=1e-6)
    G = torch.from_numpy(rng.standard_normal((20, 3)) @ rng.standard_normal((3, 9)))
    bound = saddle_bound(G, embed_dim=4)
    assert bound.rank_bound == 12
    assert bound.sigma_max == pytest.approx(np.linalg.norm(G.numpy(), 2), rel=1e-12)


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


@pytest.mark.slow
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


@pytest.mark.slow
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
