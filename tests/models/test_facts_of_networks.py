"""The exact facts on trained networks, in other shapes, and where the bounds are attained."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.matrices import draw
from torch import Tensor, nn

from landscape.choices.activations import ACTIVATIONS
from landscape.config import TrainConfig, replace
from landscape.curvature.coupling import coupling
from landscape.curvature.eigsh import eigsh
from landscape.curvature.losses import cross_entropy
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator, MatrixOperator
from landscape.files.runs import RunReader
from landscape.models.embedding_mlp.networks import MLP
from landscape.models.embedding_mlp.problem import saddle_bound
from landscape.models.embedding_mlp.products import Passes
from landscape.models.tasks import TRAIN

Point = dict[str, Tensor]


def spectrum(H: Tensor) -> np.ndarray:
    """Eigenvalues by NumPy, ascending."""
    return np.linalg.eigvalsh(H.numpy())


def index_of(values: np.ndarray) -> int:
    """Number of eigenvalues below -1e-9 times the largest magnitude."""
    return int((values < -1e-9 * np.abs(values).max()).sum())


def hessian(objective: Objective, point: Point, names: list[str] | None = None) -> Tensor:
    """A dense Hessian block from Hessian-vector products."""
    return HessianOperator(objective, point, names).dense()


def checkpoints(run: Path) -> list[tuple[Point, Objective, TrainConfig]]:
    """Every checkpoint of a run in float64, with the data loss on its training pairs."""
    with RunReader(run) as reader:
        config, data = replace(TrainConfig(), reader.config), reader.data()
        stored = [reader.checkpoint(step) for step in reader.steps]
    rows = data["split"] == TRAIN
    tokens, labels = (torch.from_numpy(data[n][rows]).long() for n in ("tokens", "labels"))
    points = [{n: torch.from_numpy(a).double() for n, a in arrays.items()} for arrays in stored]
    return [(point, Objective(MLP(config), tokens, labels), config) for point in points]


def random_net(
    activation: str = "relu", bias: bool = True, seed: int = 0, tokens: int = 2, samples: int | None = None
) -> tuple[Point, Tensor, Tensor, Objective]:
    """Parameters, tokens, labels and loss of a random network on its first inputs (default: all)."""
    p, d, h = 5, 4, 9
    x = torch.cartesian_prod(*[torch.arange(p)] * tokens)[:samples]
    y = (x.sum(1) + (x[:, 0] == 1)) % p
    point = {"E": draw(p, d, seed=seed), "W": draw(h, tokens * d, seed=seed + 1) / 2}
    point["V"] = draw(p, h, seed=seed + 2) / 2
    if bias:
        point |= {"b1": draw(h, seed=seed + 3) / 2, "b2": draw(p, seed=seed + 4)}
    phi = ACTIVATIONS[activation]

    def model(P: Point, x: Tensor) -> Tensor:
        return phi(P["E"][x].flatten(1) @ P["W"].T + P.get("b1", 0.0)) @ P["V"].T + P.get("b2", 0.0)

    return point, x, y, Objective(model, x, y)


# --- F0 -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_f0_on_a_trained_net(tiny_run: Path) -> None:
    """The singular diagonal blocks of a trained net, shifted by the tolerance: index = coupling ratios above 1."""
    indices: dict[float, list[int]] = {1e-8: [], 1e-3: [], 3e-2: []}
    for point, objective, _ in checkpoints(tiny_run):
        H, at = hessian(objective, point, ["E", "W"]), point["E"].numel()
        values = spectrum(H)
        for tau, by_step in indices.items():
            shift = tau * np.abs(values).max()
            result = coupling(*map(MatrixOperator, (H[:at, :at], H[:at, at:], H[at:, at:])), shift)
            assert result.index == int((values < -shift).sum())
            by_step.append(result.index)
    assert all(min(by_step) > 0 and len(set(by_step)) > 1 for by_step in indices.values())


# --- F3: other shapes, a singular target, unbalanced factors ----------------------------------------------------

SHAPES = [
    (3, 4, 2, [3.0, 2.0, 1.0]),
    (4, 3, 3, [2.5, 1.5, 0.7]),
    (3, 3, 2, [2.0, 1.0, 0.0]),
    (4, 4, 3, [4.0, 2.2, 1.1, 0.3]),
]


@pytest.mark.parametrize(
    ("m", "n", "k", "sigma", "S"),
    [
        pytest.param(m, n, k, sigma, S, id=f"{m}x{n} width {k} keeps {list(S)}")
        for m, n, k, sigma in SHAPES
        for r in range(k + 1)
        for S in itertools.combinations([i for i, s in enumerate(sigma) if s > 0], r)
    ],
)
def test_f3_in_other_shapes_and_gauges(m: int, n: int, k: int, sigma: list[float], S: tuple[int, ...]) -> None:
    """The full spectrum for tall, wide and singular Y; the index, not the spectrum, survives W -> W A, E -> A^-1 E."""
    q, r, rest = min(m, n), len(S), [i for i in range(len(sigma)) if i not in S]
    U, Vt = torch.linalg.qr(draw(m, q, seed=1))[0], torch.linalg.qr(draw(n, q, seed=2))[0].T
    s = torch.tensor(sigma, dtype=torch.float64)
    objective = Objective(
        lambda P, X: X @ (P["W"] @ P["E"]).T,
        torch.eye(n, dtype=torch.float64),
        ((U * s) @ Vt).T.contiguous(),
        loss=lambda out, target: 0.5 * n * (out - target).square().sum(1),
    )
    Q, kept = torch.linalg.qr(draw(k, k, seed=3))[0][:r], list(S)
    point = {"W": (U[:, kept] * s[kept].sqrt()) @ Q, "E": Q.T @ (s[kept].sqrt()[:, None] * Vt[kept])}
    assert all(float(g.abs().max()) < 1e-13 for g in objective.gradient(point).values())
    expected = [sigma[i] + sigma[j] for i in S for j in S]
    expected += [sigma[j] + sign * sigma[i] for j in S for i in rest for sign in (1, -1)]
    expected += [sigma[j] for j in S for _ in range(abs(m - n))]
    expected += [sign * sigma[i] for i in rest for sign in (1, -1) for _ in range(k - r)]
    expected += [0.0] * (r * r + 2 * r * (k - r) + (k - r) * abs(m - n))
    values = spectrum(hessian(objective, point))
    np.testing.assert_allclose(values, np.sort(expected), atol=1e-12)
    index = (k - r) * sum(sigma[i] > 0 for i in rest) + sum(sigma[i] > sigma[j] for j in S for i in rest)
    assert index_of(values) == index
    A = torch.eye(k, dtype=torch.float64) + 0.4 * draw(k, k, seed=5)
    moved = spectrum(hessian(objective, {"W": point["W"] @ A, "E": torch.linalg.solve(A, point["E"])}))
    assert index_of(moved) == index
    if S:
        assert np.abs(moved - values).max() > 1e-3


# --- F13: power iteration ---------------------------------------------------------------------------------------


def test_f13_power_iteration_returns_the_largest_magnitude() -> None:
    """PyHessian's top eigenvalue of (a^2 - 3 b^2)/2 is -3; both ends of the Hessian are -3 and 1."""
    from pyhessian import hessian as pyhessian

    class Quadratic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.theta = nn.Parameter(torch.tensor([0.3, 0.2], dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return 0.5 * (x @ self.theta.square())

    model = Quadratic()
    x, y = torch.tensor([[1.0, -3.0]], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using backward.. with create_graph")
        solver = pyhessian(model, lambda out, _: out.sum(), data=(x, y), cuda=False)
    (top,), _ = solver.eigenvalues(maxIter=200, tol=1e-9, top_n=1)
    model.zero_grad()
    assert top == pytest.approx(-3.0, abs=1e-3)
    operator = HessianOperator(Objective(model, x, y, loss=lambda out, _: out), dict(model.named_parameters()))
    np.testing.assert_allclose(eigsh(operator, 1).values[:, 0], [-3.0, 1.0], atol=1e-14)


# --- F14: the saddle bound --------------------------------------------------------------------------------------


def table_gradient(point: Point, x: Tensor, y: Tensor) -> Tensor:
    """G = [dL/dT_1^T; ...] by automatic differentiation through the tables T_k = E W_k^T of a ReLU net."""
    tables = [(point["E"] @ W_k.T).requires_grad_() for W_k in point["W"].split(point["E"].shape[1], 1)]
    pre = torch.stack([T[x[:, k]] for k, T in enumerate(tables)]).sum(0) + point.get("b1", 0.0)
    logits = torch.relu(pre) @ point["V"].T + point.get("b2", 0.0)
    return torch.cat([g.T for g in torch.autograd.grad(nn.functional.cross_entropy(logits, y), tables)])


def coupling_part(G: Tensor, point: Point) -> Tensor:
    """K0 of F14 on (E, W): delta E[t] meets delta W_k[j] through G_k[j, t] times the identity."""
    (V, d), (h, width) = point["E"].shape, point["W"].shape
    K = torch.zeros(V, d, h, width, dtype=torch.float64)
    for k, G_k in enumerate(G.split(h)):
        for i in range(d):
            K[:, i, :, k * d + i] = G_k.T
    K = K.reshape(V * d, h * width)
    corner = [K.new_zeros(n, n) for n in K.shape]
    return torch.cat([torch.cat([corner[0], K], 1), torch.cat([K.T, corner[1]], 1)])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("seed", "tokens"), [(0, 2), (10, 2), (20, 3)])
def test_f14_split_of_the_joint_block(seed: int, tokens: int, bias: bool) -> None:
    """H_[E,W] - K0 is positive semidefinite and K0 has +-sigma_i(G), d times each; hence both bounds."""
    point, x, y, objective = random_net(bias=bias, seed=seed, tokens=tokens)
    G, d = table_gradient(point, x, y), point["E"].shape[1]
    assert float((Passes(point, x, y, torch.relu).table_gradient() - G).abs().max()) <= 1e-15
    H, K0 = hessian(objective, point, ["E", "W"]), coupling_part(G, point)
    joint, sigma = spectrum(H), np.linalg.svd(G.numpy(), compute_uv=False)
    assert spectrum(H - K0)[0] >= -1e-13 * joint[-1]
    expected = np.sort([*sigma, *-sigma] * d + [0.0] * (len(H) - 2 * d * len(sigma)))
    np.testing.assert_allclose(spectrum(K0), expected, atol=1e-14)
    bound = saddle_bound(G, d)
    assert bound.sigma_max == pytest.approx(sigma[0], rel=1e-13)
    assert bound.rank_bound == d * np.linalg.matrix_rank(G.numpy())
    assert -bound.sigma_max * (1 + 1e-12) <= joint[0] < 0
    assert index_of(joint) <= bound.rank_bound


def test_f14_is_attained_where_every_direction_is_inactive() -> None:
    """At E = W = 0 (biases alone) lambda_min = -sigma_max(G) and the index is d rank(G)."""
    point, x, y, objective = random_net()
    point["E"].zero_()
    point["W"].zero_()
    bound = saddle_bound(table_gradient(point, x, y), 4)
    joint = spectrum(hessian(objective, point, ["E", "W"]))
    assert joint[0] == pytest.approx(-bound.sigma_max, rel=1e-12)
    assert index_of(joint) == bound.rank_bound > 0


@pytest.mark.parametrize("seed", [0, 10, 20])
def test_f14b_the_control_pair_is_bounded_unit_by_unit(seed: int) -> None:
    """lambda_min(H_[W,V]) >= -max_j sigma_max(C_j), C_j = sum over active n of dL/dlogits_n z_n^T."""
    point, x, y, objective = random_net(seed=seed)
    z = point["E"][x].flatten(1)
    pre = z @ point["W"].T + point["b1"]
    logits = (torch.relu(pre) @ point["V"].T + point["b2"]).requires_grad_()
    (r,) = torch.autograd.grad(cross_entropy(logits, y).mean(), logits)
    bounds = [float(torch.linalg.matrix_norm(r[on].T @ z[on], 2)) for on in (pre > 0).T]
    assert -max(bounds) * (1 + 1e-12) <= spectrum(hessian(objective, point, ["W", "V"]))[0] < 0
