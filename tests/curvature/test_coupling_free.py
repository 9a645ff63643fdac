"""Coupling ratios without matrices against dense ones, and what goes with them: joint block, angles, masses."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from helpers.matrices import Hidden, draw, joint_matrix, semidefinite
from torch import Tensor

from landscape.config import TrainConfig
from landscape.curvature.coupling import (
    CouplingResult,
    coupling,
    coupling_strength,
    joint,
    masses,
    principal_angles,
    spectral_norm,
)
from landscape.curvature.eigsh import eigsh
from landscape.curvature.inertia import saddle_index
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator, LinearOperator, MatrixOperator
from landscape.errors import NumericsError
from landscape.models.embedding_mlp.networks import MLP
from landscape.models.tasks import TRAIN, make_data

TAU = 1e-3


def blocks(seed: int, m: int = 40, n: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """Two semidefinite blocks, one of them singular for odd seeds, and a coupling that makes the joint indefinite."""
    singular = 7 * (seed % 2)
    return semidefinite(m, m - singular, seed), 0.01 * draw(m, n, seed=seed + 100), semidefinite(n, n, seed + 200)


def whitened(H_11: Tensor, H_12: Tensor, H_22: Tensor, tau: float) -> np.ndarray:
    """Singular values of (H_11 + tau)^(-1/2) H_12 (H_22 + tau)^(-1/2) by symmetric roots."""
    roots = [scipy.linalg.sqrtm(np.linalg.inv(H.numpy() + tau * np.eye(len(H)))) for H in (H_11, H_22)]
    return np.linalg.svd(roots[0] @ H_12.numpy() @ roots[1], compute_uv=False)


def assert_bounds(result: CouplingResult, true: np.ndarray) -> None:
    """Each ratio is at most the true one of its rank and within its error of it, or at least near a true one."""
    k = len(result.ratios)
    assert (np.diff(result.ratios) <= 0).all()
    assert (result.ratios <= true[:k] + 1e-9 * true[0]).all()
    assert (np.abs(result.ratios[:, None] - true).min(1) <= result.distances + 1e-9 * true[0]).all()
    known = ~np.isnan(result.errors)
    assert (true[:k] - result.ratios <= result.errors)[known].all()
    assert result.index_lower == (result.ratios > 1).sum() <= (true > 1).sum() <= result.index_upper


# --- matrix-free ratios ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["free free", "dense free", "free dense", "dense dense"])
@pytest.mark.parametrize("seed", range(6))
def test_ratios_are_lower_bounds_within_their_errors(seed: int, kinds: str) -> None:
    """For any budget of products; converged ones are within `tol` and their errors of the dense ones, and counted."""
    parts = blocks(seed)
    true = coupling(*map(MatrixOperator, parts), TAU, method="dense").ratios
    first, second = (MatrixOperator if kind == "dense" else Hidden for kind in kinds.split())
    for max_hvps in (1, 200, 600, 1500, 20000):
        H = [first(parts[0]), Hidden(parts[1]), second(parts[2])]
        result = coupling(*H, TAU, k=6, method="lanczos", seed=seed, max_hvps=max_hvps)
        assert_bounds(result, true)
        assert result.num_products == sum(h.count[0] for h in H if isinstance(h, Hidden))
        highest = {"free free": 100, "dense free": 60, "free dense": 40, "dense dense": 40}[kinds]
        assert (result.tolerance, result.method, result.index_upper) == (TAU, "lanczos", highest)
    assert result.ratios.shape == result.errors.shape == result.distances.shape == (6,)
    assert (result.distances <= 1e-3 * result.ratios).all()
    assert np.isnan(result.errors).all() == ("free" in kinds)
    if kinds == "dense dense":
        # What a search may hide is a share of the largest square.
        assert ((result.ratios + result.errors) ** 2 - result.ratios**2 <= 2e-3 * result.ratios[0] ** 2).all()
    assert result.ratios[0] > 1
    assert result.index_lower == min(6, (true > 1).sum())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_it_begins_where_it_is_told_to(seed: int) -> None:
    """At the joint block's lowest eigenvectors the largest ratio is found sooner; at any vectors the bounds hold."""
    parts = blocks(seed)
    true = coupling(*map(MatrixOperator, parts), TAU, method="dense").ratios
    lowest = eigsh(joint(*map(MatrixOperator, parts)), 6, "lowest", "lanczos", 1e-8).vectors[0]

    def first(v0: Tensor | None, budget: int) -> float:
        """How far the largest ratio still is."""
        H = [Hidden(part) for part in parts]
        result = coupling(*H, TAU, k=6, method="lanczos", seed=seed, max_hvps=budget, v0=v0)
        assert_bounds(result, true)
        assert result.num_products == sum(h.count[0] for h in H)
        return 1 - result.ratios[0] / true[0]

    assert first(lowest, 1) < first(None, 1)
    for v0 in (draw(100, 3, seed=seed), lowest[:, :1].expand(-1, 3), torch.zeros(100, 2, dtype=torch.float64)):
        assert first(v0, 20000) < 1e-3


@pytest.mark.parametrize("method", ["dense", "lanczos"])
def test_multiple_ratios_are_all_found(method: str) -> None:
    """A ratio of multiplicity four above four smaller ones counts four times."""
    values = torch.tensor([2.0] * 4 + [0.5] * 26, dtype=torch.float64)
    U, V = (torch.linalg.qr(draw(n, 30, seed=n))[0] for n in (30, 50))
    K = U * values @ V.T
    A, C = (torch.diag(torch.linspace(1, 3, n, dtype=torch.float64)) for n in (30, 50))
    B = (A.diagonal() + TAU).sqrt()[:, None] * K * (C.diagonal() + TAU).sqrt()
    result = coupling(*(MatrixOperator(X) for X in (A, B, C)), TAU, k=6, method=method)
    np.testing.assert_allclose(result.ratios[:6], [2, 2, 2, 2, 0.5, 0.5], rtol=1e-5)
    assert result.index_lower == 4


@pytest.mark.parametrize("rank", [0, 2])
def test_a_coupling_of_low_rank_has_zero_ratios(rank: int) -> None:
    """The k leading ratios of a coupling of rank below k are its ratios and zeros."""
    A, B, C = blocks(0)
    B = B @ torch.diag((torch.arange(60) < rank).double())
    true = coupling(*map(MatrixOperator, (A, B, C)), TAU, method="dense").ratios
    result = coupling(*map(Hidden, (A, B, C)), TAU, k=5, method="lanczos")
    assert result.ratios.shape == result.distances.shape == (5,)
    np.testing.assert_allclose(result.ratios, true[:5], rtol=1e-3, atol=1e-8)
    assert_bounds(result, true)


@pytest.mark.parametrize("kind", [Hidden, MatrixOperator])
@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("lowest", [-1.1e-3, -0.1])
def test_an_indefinite_block_is_refused(which: int, kind: type, lowest: float) -> None:
    """An eigenvalue of a diagonal block below -tau leaves the ratios undefined, and the words say so."""
    parts = list(blocks(0))
    values, vectors = torch.linalg.eigh(parts[which])
    values[0] = lowest
    parts[which] = vectors * values @ vectors.T
    words = r"a diagonal block has eigenvalues below -tau = -0\.001, so that coupling ratios are undefined"
    for method in ("lanczos", "dense") if kind is MatrixOperator else ("lanczos",):
        with pytest.raises(NumericsError, match=words) as refusal:
            coupling(*map(kind, parts), TAU, method=method)
        assert refusal.value.hint.startswith("take a larger tolerance")
        assert coupling(*map(kind, parts), 0.2, method=method, k=2).tolerance == 0.2


@pytest.mark.parametrize("kind", [Hidden, MatrixOperator])
def test_negative_curvature_that_no_search_meets_is_within_the_bracket(kind: type) -> None:
    """A direction that is decoupled from all else, and from every start, may be negative: the index counts it."""
    A, B, C = torch.eye(200).double(), torch.zeros(200, 1).double(), torch.eye(1).double()
    A[-1, -1], B[0, 0] = -0.5, 3.0
    result = coupling(Hidden(A), Hidden(B), kind(C), TAU, method="lanczos")
    index = int((torch.linalg.eigvalsh(joint_matrix(A, B, C)) < -TAU).sum())
    assert index == 2
    assert result.index_lower <= index <= result.index_upper
    assert result.index == -1


@pytest.fixture(scope="module")
def net() -> tuple[HessianOperator, list[LinearOperator]]:
    """The joint block of E and W of a ReLU net at its initialisation, and its three parts."""
    config = TrainConfig(p=7, tokens=2, embed_dim=3, hidden=6, train_fraction=0.6, dtype="float64")
    x, y = (torch.from_numpy(a).long() for a in make_data(config).subset(TRAIN))
    model = MLP(config)
    H = HessianOperator(Objective(model, x, y, chunk_size=12), dict(model.named_parameters()), ["E", "W"])
    return H, [H.block(["E"]), H.block(["E"], ["W"]), H.block(["W"])]


@pytest.mark.slow
def test_f0_on_a_net_by_products_alone(net: tuple[HessianOperator, list[LinearOperator]]) -> None:
    """On a ReLU net the matrix-free ratios bound the dense ones, and count as many as the joint block has negatives."""
    H, parts = net
    tau = 1e-2 * float(torch.linalg.matrix_norm(H.dense(), 2))
    true = coupling(*parts, tau, method="dense")
    values = torch.linalg.eigvalsh(H.dense())
    assert true.index == int((values < -tau).sum()) == saddle_index(H, 1e-2, method="dense").negative > 0
    for one in (parts[0], MatrixOperator(parts[0].dense())):
        result = coupling(one, *parts[1:], tau, k=12, method="lanczos")
        assert_bounds(result, true.ratios)
        np.testing.assert_allclose(result.ratios, true.ratios[:12], rtol=1e-3)
        assert result.index_lower == min(12, true.index)


# --- dense ratios and brackets --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_dense_brackets_equal_the_index_over_a_sweep_of_tau(seed: int) -> None:
    """F0 at 25 tolerances: the ratios are those of symmetric roots, and those above 1 count the eigenvalues below."""
    parts = blocks(seed)
    values = np.linalg.eigvalsh(joint_matrix(*parts).numpy())
    for tau in np.geomspace(1e-6 if seed % 2 == 0 else 1e-4, 1, 25):
        result = coupling(*map(MatrixOperator, parts), abs_tau=tau)
        index = int((values < -tau).sum())
        assert result.index_lower <= index <= result.index_upper
        assert result.index == index
        assert (result.method, result.num_products, len(result.ratios)) == ("dense", 0, 40)
        np.testing.assert_allclose(result.ratios, whitened(*parts, tau), rtol=1e-6, atol=1e-9)
        assert (result.errors < 1e-6).all()


def test_a_ratio_of_one_and_errors_of_the_matrix_are_bracketed() -> None:
    """Where rounding, or the stated error of the matrices, can move a ratio across 1 the index is a bracket."""
    eye = torch.eye(4, dtype=torch.float64)
    B = torch.diag(torch.tensor([2.0, 1.0, 0.98, 0.5], dtype=torch.float64))
    result = coupling(*map(MatrixOperator, (eye, B, eye)), abs_tau=0.0)
    assert (result.index_lower, result.index_upper, result.index) == (1, 2, -1)
    wide = coupling(*(MatrixOperator(X, error=0.03) for X in (eye, B, eye)), abs_tau=0.0)
    assert (wide.index_lower, wide.index_upper) == (1, 3)
    # Errors e of every block move a ratio kappa by e (1 + kappa) / (floor - e).
    assert (wide.errors >= 0.03 * (1 + result.ratios)).all()
    assert (wide.errors < 0.034 * (1 + result.ratios)).all()
    low = coupling(*(MatrixOperator(X, error=0.03) for X in (eye / 4, B / 4, eye)), abs_tau=0.0)
    assert (low.errors >= 0.12 * (1 + low.ratios)).all()
    assert (low.errors < 0.16 * (1 + low.ratios)).all()
    with pytest.raises(NumericsError, match=r"a diagonal block, known to 3\.0e-01, may have eigenvalues below -tau"):
        coupling(*(MatrixOperator(X, error=0.3) for X in (eye / 4, B / 4, eye)), abs_tau=0.0)


def test_the_default_tolerance_is_relative_to_the_joint_block() -> None:
    """1e-8 of the joint block's norm where dense, 1e-3 where matrix-free."""
    parts = blocks(2)
    norm = float(torch.linalg.matrix_norm(joint_matrix(*parts), 2))
    for method, relative in (("dense", 1e-8), ("lanczos", 1e-3)):
        result = coupling(*map(MatrixOperator, parts), method=method, k=2)
        assert result.tolerance == pytest.approx(relative * norm, rel=1e-2)


# --- the joint block, norms, masses and angles ----------------------------------------------------------------


def test_coupling_strength_is_a_ratio_of_norms() -> None:
    """|H_12| / sqrt(|H_11| |H_22|) by NumPy's 2-norms, on both shapes; NaN where a block is zero."""
    A, B, C = blocks(0)
    norms = [np.linalg.norm(X.numpy(), 2) for X in (A, B, C)]
    for X in (B, B.T.contiguous()):
        assert spectral_norm(Hidden(X)) == pytest.approx(norms[1], rel=1e-6)
        strength = coupling_strength(Hidden(X), norms[0], norms[2])
        assert strength == pytest.approx(norms[1] / (norms[0] * norms[2]) ** 0.5, rel=1e-6)
    assert np.isnan(coupling_strength(Hidden(B), 0.0, 1.0))


def test_masses_and_principal_angles() -> None:
    """Masses of unit vectors sum to 1; angles are SciPy's, pi/2 where a part has too few rows, 0 where it holds all."""
    sizes = [12, 3, 10]
    V = torch.linalg.qr(draw(25, 5, seed=0))[0]
    shares = masses(V, sizes)
    np.testing.assert_allclose(shares.sum(0), 1, rtol=1e-13)
    np.testing.assert_allclose(shares[1], (V[12:15] ** 2).sum(0), rtol=1e-13)
    angles = principal_angles(V, sizes)
    assert angles.shape == shares.shape == (3, 5)
    for i, (a, b) in enumerate(((0, 12), (12, 15), (15, 25))):
        theirs = np.sort(scipy.linalg.subspace_angles(V.numpy(), np.eye(25)[:, a:b]))
        np.testing.assert_allclose(angles[i, : len(theirs)], theirs, atol=1e-7)
        np.testing.assert_array_equal(angles[i, len(theirs) :], np.pi / 2)
    # The squared cosines of a part add up to its mass.
    np.testing.assert_allclose((np.cos(angles) ** 2).sum(1), shares.sum(1), rtol=1e-12)
    inside = principal_angles(torch.eye(25, dtype=torch.float64)[:, 13:15], sizes)
    np.testing.assert_array_equal(inside, [[np.pi / 2] * 2, [0, 0], [np.pi / 2] * 2])
