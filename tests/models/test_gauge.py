"""Directions without geometry: gauge tangents against explicit bases, softmax shifts, and the index without them."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from helpers.marking import slow
from numpy.typing import NDArray
from torch import Tensor

from landscape.config import TrainConfig
from landscape.curvature.inertia import saddle_index
from landscape.curvature.objective import Objective
from landscape.curvature.operators import Deflated, Directions, HessianOperator, MatrixOperator
from landscape.models.embedding_mlp.gauge import GaugeTangent, SoftmaxShift
from landscape.models.embedding_mlp.networks import MLP
from landscape.models.tasks import TRAIN, make_data

Point = dict[str, Tensor]
ALL = ["E", "W", "b1", "V", "b2"]
D = 4


def normal(*shape: int, seed: int) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def point_of(slots: int, vocabulary: int = 6, dead_E: int = 0, dead_W: int = 0, scale: float = 1.0) -> Point:
    """Random parameters; the first directions of E and of all W_k are dead, in one rotated basis of the embedding."""
    Q = torch.linalg.qr(normal(D, D, seed=9))[0]
    E, W = normal(vocabulary, D, seed=0) * scale, normal(5, slots, D, seed=1)
    E[:, :dead_E], W[..., :dead_W] = 0.0, 0.0
    V, b1, b2 = normal(3, 5, seed=2), normal(5, seed=3), normal(3, seed=4)
    return {"E": E @ Q, "W": (W @ Q).reshape(5, -1), "b1": b1, "V": V, "b2": b2}


def tangents(params: Point, names: list[str]) -> Tensor:
    """The columns (-E X^T, W_k X) for the d^2 unit matrices X, zero in everything else."""
    d = params["E"].shape[1]
    slots = params["W"].reshape(len(params["W"]), -1, d)
    columns = []
    for X in torch.eye(d * d, dtype=torch.float64).reshape(-1, d, d):
        moved = {"E": -params["E"] @ X.T, "W": slots @ X}
        columns.append(torch.cat([moved.get(n, torch.zeros_like(params[n])).reshape(-1) for n in names]))
    return torch.stack(columns, 1)


def complement(basis: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal bases of the span of some columns and of its complement."""
    U, s, _ = torch.linalg.svd(basis)
    rank = int((s > 1e-10 * s[0]).sum())
    return U[:, :rank], U[:, rank:]


def assert_is_projector(directions: Directions, n: int, basis: Tensor) -> None:
    """`remove` is the orthogonal projector onto the complement of the columns, for one vector and for several."""
    span, _ = complement(basis)
    eye = torch.eye(n, dtype=torch.float64)
    P = directions.remove(eye)
    assert directions.dimension == span.shape[1]
    torch.testing.assert_close(P, eye - span @ span.T, rtol=0, atol=1e-13)
    torch.testing.assert_close(P, P.T, rtol=0, atol=1e-14)
    torch.testing.assert_close(directions.remove(P), P, rtol=0, atol=1e-14)
    assert float(directions.remove(basis).abs().max()) < 1e-13 * float(basis.abs().max())
    v = normal(n, seed=7)
    torch.testing.assert_close(directions.remove(v), P @ v, rtol=0, atol=1e-13)


# --- gauge tangents -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["E", "W"], ["W", "E"], ALL, ["V", "W", "b2", "E"]])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_remove_is_the_projector_of_an_explicit_basis(slots: int, names: list[str]) -> None:
    """Every tangent is removed exactly and nothing else, whatever else the block holds and in whatever order."""
    params = point_of(slots)
    basis = tangents(params, names)
    assert_is_projector(GaugeTangent(params, names), len(basis), basis)
    assert GaugeTangent(params, names).dimension == D * D


@pytest.mark.parametrize(("dead_E", "dead_W"), [(1, 0), (0, 2), (1, 1), (2, 1), (2, 3), (4, 0), (4, 4)])
@pytest.mark.parametrize("slots", [2, 4])
def test_dead_directions_are_no_tangents(slots: int, dead_E: int, dead_W: int) -> None:
    """Directions dead in E and in W move nothing: the dimension is d^2 - dead_E * dead_W, the rank of the basis."""
    params = point_of(slots, dead_E=dead_E, dead_W=dead_W)
    gauge = GaugeTangent(params, ["E", "W"])
    assert gauge.dimension == D * D - dead_E * dead_W
    basis = tangents(params, ["E", "W"])
    if dead_E == dead_W == D:
        v = normal(len(basis), 2, seed=0)
        assert torch.equal(gauge.remove(v), v)
    else:
        assert_is_projector(gauge, len(basis), basis)


def exact_span(columns: Tensor) -> Tensor:
    """Orthonormal columns of the same span, of which 60 digits are kept on the way (Gram-Schmidt)."""
    with mpmath.workdps(60):
        basis: list[NDArray[np.object_]] = []
        for column in columns.T.tolist():
            v = np.array([mpmath.mpf(x) for x in column], dtype=object)
            for u in basis:
                v = v - (u @ v) * u
            basis.append(v / mpmath.sqrt(v @ v))
        return torch.from_numpy(np.array(basis, dtype=float).T)


def decayed(small: float, vocabulary: int = 6) -> Point:
    """Parameters with all but one direction of the embedding smaller by a factor, in E and in W alike."""
    params = {n: p for n, p in point_of(2, vocabulary).items() if n in ("E", "W")}
    params["E"][:, 1:] *= small
    params["W"].view(5, 2, D)[..., 1:] *= small
    return params


@pytest.mark.parametrize("vocabulary", [3, 6])
@pytest.mark.parametrize("small", [1e-6, 1e-9, 1e-13])
def test_small_directions_are_tangents(small: float, vocabulary: int) -> None:
    """Of decayed directions, too, the projector is that of the tangents with 60 digits, to rounding."""
    params = decayed(small, vocabulary)
    # Products with unit matrices are exact.
    span = exact_span(tangents(params, ["E", "W"]))
    gauge = GaugeTangent(params, ["E", "W"])
    assert gauge.dimension == D * D == gauge.basis().shape[1]
    P = gauge.remove(torch.eye(len(span), dtype=torch.float64))
    torch.testing.assert_close(P, torch.eye(len(span), dtype=torch.float64) - span @ span.T, rtol=0, atol=1e-13)
    torch.testing.assert_close(gauge.basis() @ gauge.basis().T, span @ span.T, rtol=0, atol=1e-13)
    Q = torch.linalg.qr(normal(D, D, seed=9))[0]
    rotated = {"E": params["E"] @ Q, "W": (params["W"].view(5, 2, D) @ Q).reshape(5, -1)}
    assert GaugeTangent(rotated, ["E", "W"]).dimension == D * D


@pytest.mark.parametrize("method", ["dense", "lanczos"])
@pytest.mark.parametrize("of", ["module", "without gradients", "float64 with gradients"])
def test_parameters_as_a_module_has_them(of: str, method: str) -> None:
    """In float32 and with gradients they are those of a Hessian in float64, and vectors keep their precision."""
    torch.manual_seed(0)
    config = TrainConfig(p=4, tokens=2, embed_dim=2, hidden=6, train_fraction=0.6, activation="gelu")
    model = MLP(config)
    x, y = (torch.from_numpy(a).long() for a in make_data(config).subset(TRAIN))
    parameters = dict(model.named_parameters())
    H = HessianOperator(Objective(model, x, y), parameters, ["E", "W"])
    params = {
        "module": parameters,
        "without gradients": {n: p.detach() for n, p in parameters.items()},
        "float64 with gradients": {n: p.detach().double().requires_grad_() for n, p in parameters.items()},
    }[of]
    gauge = GaugeTangent(params, ["E", "W"])
    _, N = complement(tangents({n: p.detach().double() for n, p in parameters.items()}, ["E", "W"]))
    values = torch.linalg.eigvalsh(N.T @ H.dense() @ N)
    index = int((values < -1e-3 * values.abs().max()).sum())
    assert 0 < index == saddle_index(Deflated(H, gauge), rel_tau=1e-3, method=method).negative
    v = normal(len(N), 2, seed=0)
    torch.testing.assert_close(gauge.remove(v), N @ (N.T @ v), rtol=0, atol=1e-13)
    single = gauge.remove(v.float())
    assert (single.dtype, single.requires_grad) == (torch.float32, False)
    torch.testing.assert_close(single, (N @ (N.T @ v)).float(), rtol=0, atol=3e-6)


def net(activation: str, tokens: int = 2, weight_decay: float = 0.0) -> tuple[Objective, Point]:
    """An embedding MLP at its initialisation."""
    config = TrainConfig(
        p=5, tokens=tokens, embed_dim=3, hidden=6, train_fraction=0.6, activation=activation, dtype="float64"
    )
    x, y = (torch.from_numpy(a).long() for a in make_data(config).subset(TRAIN))
    model = MLP(config)
    return Objective(model, x, y, weight_decay=weight_decay), {n: p.detach() for n, p in model.named_parameters()}


def test_tangents_at_an_interpolating_point_are_null_vectors() -> None:
    """Where the gradient is zero a function of the products E W_k^T is flat along the gauge: P H P = H."""
    params = {n: p for n, p in point_of(2).items() if n in ("E", "W")}

    def tables(P: Point, x: Tensor) -> Tensor:
        return torch.einsum("td,hkd->kth", P["E"], P["W"].reshape(5, 2, D))[None]

    half_square = lambda f, y: 0.5 * (f - y).square().flatten(1).sum(1)  # noqa: E731
    objective = Objective(tables, torch.zeros(1, 1), tables(params, torch.zeros(1, 1)), half_square)
    H = HessianOperator(objective, params)
    gauge = GaugeTangent(params, ["E", "W"])
    torch.testing.assert_close(Deflated(H, gauge).dense(), H.dense(), rtol=0, atol=1e-13)
    inertia = saddle_index(H, method="dense")
    # F12: the rank of this Gauss-Newton matrix is the number of parameters less the gauge.
    assert (inertia.negative, inertia.zero) == (0, gauge.dimension)


@pytest.mark.slow
@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("method", ["dense", slow("lanczos")])
def test_the_gauge_free_index_is_that_of_the_complement(method: str, activation: str, dead: int) -> None:
    """The inertia of P H P is that of H on an explicit basis of the complement, and as many zeros as tangents."""
    objective, params = net(activation)
    params = {n: p.clone() for n, p in params.items()}
    params["E"][:, :dead] = 0.0
    params["W"][:, [3 * k for k in range(2 * dead)]] = 0.0
    H, gauge = HessianOperator(objective, params, ["E", "W"]), GaugeTangent(params, ["E", "W"])
    _, N = complement(tangents(params, ["E", "W"]))
    values = torch.linalg.eigvalsh(N.T @ H.dense() @ N)
    tau = 1e-3 * float(torch.linalg.matrix_norm(N.T @ H.dense() @ N, 2))
    index, positive = int((values < -tau).sum()), int((values > tau).sum())
    inertia = saddle_index(Deflated(H, gauge), rel_tau=1e-3, method=method)
    assert inertia.negative == index
    assert 0 < index < saddle_index(H, rel_tau=1e-3, method="dense").negative
    if method == "dense":
        assert (inertia.positive, inertia.level) == (positive, "certified")
        assert inertia.zero == len(values) - index - positive + gauge.dimension


# --- softmax shifts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["V"], ["V", "b2"], ["b2", "E", "V"], ["W", "V"], ["b2"], ["E", "W"], ALL])
def test_softmax_shifts_are_removed(names: list[str]) -> None:
    """V -> V + 1 c^T and b2 -> b2 + c_0: h dimensions for V and one for b2, and an orthogonal projector."""
    params = point_of(2)
    shift = SoftmaxShift(params, names)
    n = sum(params[name].numel() for name in names)
    assert shift.dimension == 5 * ("V" in names) + ("b2" in names)
    columns = []
    for j in range(6):
        moved = {name: torch.zeros_like(params[name]) for name in names}
        part = moved.get("V", torch.zeros(3, 5))[:, j] if j < 5 else moved.get("b2", torch.zeros(3))
        part.fill_(1.0)
        columns.append(torch.cat([p.reshape(-1) for p in moved.values()]))
    basis = torch.stack([c for c in columns if c.any()] or columns[:1], 1)
    if shift.dimension:
        assert_is_projector(shift, n, basis)
    v = normal(n, 2, seed=1)
    assert torch.equal(shift.remove(v), v) == (shift.dimension == 0)


@pytest.mark.parametrize("names", [["V"], ["V", "b2"], ["W", "V"], ["b2", "E", "V"], ALL])
def test_f9_softmax_shifts_are_null_vectors(names: list[str]) -> None:
    """The curvature of a net does not see what is removed: P H P = H, and as many exact zeros as dimensions."""
    objective, params = net("relu")
    H, shift = HessianOperator(objective, params, names), SoftmaxShift(params, names)
    dense = H.dense()
    scale = float(dense.abs().max())
    v = normal(len(dense), 2, seed=3)
    torch.testing.assert_close(H @ shift.remove(v), H @ v, rtol=0, atol=1e-13 * scale)
    torch.testing.assert_close(Deflated(H, shift).dense(), dense, rtol=0, atol=1e-14 * scale)
    inertia = saddle_index(H, method="dense")
    assert inertia.zero >= shift.dimension > 0


# --- deflation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gauge", "shift"])
def test_deflated_is_php(kind: str) -> None:
    """Products, the dense matrix (symmetric to the last bit) and the transpose are those of P H P."""
    params = point_of(2)
    directions = {"gauge": GaugeTangent, "shift": SoftmaxShift}[kind](params, ALL)
    n = sum(p.numel() for p in params.values())
    A = normal(n, n, seed=5)
    A = A + A.T
    P = directions.remove(torch.eye(n, dtype=torch.float64))
    deflated, V = Deflated(MatrixOperator(A), directions), normal(n, 3, seed=6)
    dense = deflated.dense()
    torch.testing.assert_close(dense, P @ A @ P, rtol=0, atol=1e-12)
    assert torch.equal(dense, dense.T)
    assert deflated.T is deflated
    assert (deflated.shape, deflated.dtype) == ((n, n), torch.float64)
    torch.testing.assert_close(deflated @ V, dense @ V, rtol=0, atol=1e-11)
    torch.testing.assert_close(deflated @ V[:, 0], dense @ V[:, 0], rtol=0, atol=1e-11)
    assert torch.equal(A, A.T)
