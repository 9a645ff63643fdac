"""The exact facts F0 to F14 (docs/theory.md): closed forms that need no reference solver."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.bilinear import SUBSETS, K, M, N, balanced, bilinear, spectrum, target
from torch import Tensor

from landscape.curvature.coupling import coupling
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator, MatrixOperator
from landscape.files.runs import RunReader
from landscape.models.embedding_mlp.closed_form import EmbeddingMLP
from landscape.models.embedding_mlp.networks import MLP
from landscape.models.tasks import TRAIN, make_data


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tau", [0.0, 0.3])
def test_f0_index_counts_coupling_ratios_above_one(seed: int, tau: float) -> None:
    """n-(H + tau I) of a joint block with positive definite diagonal blocks is #{kappa_i > 1}."""
    rng = np.random.default_rng(seed)
    A, B = (X @ X.T + 0.1 * np.eye(len(X)) for X in (rng.standard_normal((6, 6)), rng.standard_normal((9, 9))))
    C = 2.0 * rng.standard_normal((6, 9))
    joint = np.block([[A, C], [C.T, B]])
    result = coupling(*(MatrixOperator(torch.from_numpy(X)) for X in (A, C, B)), abs_tau=tau)
    assert 0 < result.index == (np.linalg.eigvalsh(joint) < -tau).sum()
    shifted = [np.linalg.inv(np.linalg.cholesky(X + tau * np.eye(len(X)))) for X in (A, B)]
    expected = np.linalg.svd(shifted[0] @ C @ shifted[1].T, compute_uv=False)
    np.testing.assert_allclose(result.ratios, expected, rtol=1e-10)


def test_f1_blocks_of_bilinear_least_squares() -> None:
    """H_WW = (E E^T) (x) I and H_EE = I (x) (W^T W): their tops are squared singular values."""
    torch.manual_seed(0)
    W, E, Y = (torch.randn(*shape, dtype=torch.float64) for shape in ((M, K), (K, N), (M, N)))
    H = HessianOperator(bilinear(Y), {"W": W, "E": E})
    for name, other in (("W", E), ("E", W)):
        values = torch.linalg.eigvalsh(H.block([name]).dense())
        assert values[-1] == pytest.approx(float(torch.linalg.matrix_norm(other, 2)) ** 2, rel=1e-12)
        assert values[0] >= -1e-12
    assert torch.allclose(H.block(["W"]).dense(), torch.kron(torch.eye(M), (E @ E.T)), atol=1e-12)


def test_f2_origin() -> None:
    """At the origin the eigenvalues are +-sigma_i(Y), each k times, and zeros."""
    Y, _, s, _ = target()
    values = spectrum(bilinear(Y), torch.zeros(M, K), torch.zeros(K, N))
    expected = np.concatenate([np.repeat(s.numpy(), K), np.repeat(-s.numpy(), K), np.zeros(K * (N - M))])
    np.testing.assert_allclose(values, np.sort(expected), atol=1e-12)


def test_f3b_interpolation() -> None:
    """Where W E = Y the top of the joint Hessian is sigma_max(W)^2 + sigma_max(E)^2."""
    torch.manual_seed(0)
    W, E = torch.randn(M, K, dtype=torch.float64), torch.randn(K, N, dtype=torch.float64)
    top = float(torch.linalg.matrix_norm(W, 2) ** 2 + torch.linalg.matrix_norm(E, 2) ** 2)
    assert spectrum(bilinear(W @ E), W, E)[-1] == pytest.approx(top, rel=1e-12)


def test_f4_scalar() -> None:
    """f = (we - y)^2 / 2 has Hessian [[e^2, 2we - y], [2we - y, w^2]]."""
    w, e, y = 1.3, -0.7, 2.0
    one = lambda x: torch.tensor([[x]], dtype=torch.float64)  # noqa: E731
    H = HessianOperator(bilinear(one(y)), {"W": one(w), "E": one(e)}).dense().numpy()
    np.testing.assert_allclose(H, [[e * e, 2 * w * e - y], [2 * w * e - y, w * w]], atol=1e-14)


@pytest.mark.parametrize("S", SUBSETS)
def test_f5_regularised_critical_points(S: tuple[int, ...]) -> None:
    """With L2 the critical points are shrunk, and the index counts sigma_i > lambda only."""
    decay = 0.3
    Y, W, E, s = balanced(S, shrink=decay)
    objective = bilinear(Y, decay)
    gradient = objective.gradient({"W": W, "E": E})
    assert max(float(g.abs().max()) for g in gradient.values()) < 1e-12
    out, r = [i for i in range(M) if i not in S], len(S)
    index = (K - r) * sum(s[i] > decay for i in out) + sum(s[i] > s[j] for j in S for i in out)
    values = spectrum(objective, W, E)
    assert (values < -1e-8).sum() == index
    if not S:
        expected = [decay + sign * x for x in s.tolist() for sign in (1, -1) for _ in range(K)]
        expected += [decay] * (K * (M + N) - 2 * K * M)
        np.testing.assert_allclose(values, np.sort(expected), atol=1e-12)


def test_f6_cross_entropy_at_the_origin() -> None:
    """Softmax cross-entropy of z = W E x at the origin: +-sigma_i(G), each k times."""
    torch.manual_seed(0)
    x, y = torch.randn(20, N, dtype=torch.float64), torch.randint(0, M, (20,))
    objective = Objective(lambda P, x: x @ P["E"].T @ P["W"].T, x, y)
    G = (1 / M - torch.nn.functional.one_hot(y, M).double()).T @ x / len(x)
    s = torch.linalg.svdvals(G).numpy()
    expected = np.concatenate([np.repeat(s, K), np.repeat(-s, K), np.zeros(K * (M + N) - 2 * K * len(s))])
    values = spectrum(objective, torch.zeros(M, K), torch.zeros(K, N))
    np.testing.assert_allclose(values, np.sort(expected), atol=1e-12)


@pytest.fixture(params=[20, 60])
def trained(tiny_run: Path, request: pytest.FixtureRequest) -> tuple[dict[str, Tensor], HessianOperator, EmbeddingMLP]:
    """Parameters, Hessian and closed form of a trained net at two steps."""
    with RunReader(tiny_run) as reader:
        params = {n: torch.from_numpy(a).double() for n, a in reader.checkpoint(request.param).items()}
        data = reader.data()
    rows = data["split"] == TRAIN
    tokens, labels = (torch.from_numpy(data[n][rows]).long() for n in ("tokens", "labels"))
    operator = HessianOperator(Objective(MLP(TINY).double(), tokens, labels), params)
    return params, operator, EmbeddingMLP(params, tokens, labels, torch.relu)


def test_f7_gauge_identity(trained: tuple[dict[str, Tensor], HessianOperator, EmbeddingMLP]) -> None:
    """v = (-E X^T, W_k X) is orthogonal to the gradient and H v = (g_E X, -g_{W_k} X^T), at any point of any net."""
    params, operator, _ = trained
    g = operator.objective.gradient(params)
    d = params["E"].shape[1]
    X = torch.randn(d, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slots = [slice(k * d, (k + 1) * d) for k in range(2)]
    v = {"E": -params["E"] @ X.T, "W": torch.cat([params["W"][:, k] @ X for k in slots], dim=1)}
    assert abs(sum(float((g[n] * v[n]).sum()) for n in v)) < 1e-14
    expected = [g["E"] @ X, torch.cat([-g["W"][:, k] @ X.T for k in slots], dim=1)]
    flat = torch.cat([v[n].reshape(-1) for n in ("E", "W")])
    image = operator.block(["E", "W"]) @ flat
    gradient = torch.cat([x.reshape(-1) for x in expected])
    torch.testing.assert_close(image, gradient, atol=1e-14, rtol=1e-10)


def test_f8_single_layers_of_relu_nets_are_semidefinite(
    trained: tuple[dict[str, Tensor], HessianOperator, EmbeddingMLP],
) -> None:
    """Every single-layer block of a ReLU net is PSD; the joint block of E and W is not."""
    _, operator, _ = trained
    for block in ("E", "W", "V"):
        values = torch.linalg.eigvalsh(operator.block([block]).dense())
        assert values[0] >= -1e-12 * values[-1]
    joint = torch.linalg.eigvalsh(operator.block(["E", "W"]).dense())
    assert joint[0] < -1e-3 * joint[-1]


def test_f8_fails_for_gelu() -> None:
    """With GELU a single-layer block does have negative curvature, so F8 is no artefact of the code."""
    config = dataclasses.replace(TINY, activation="gelu", dtype="float64")
    tokens, labels = (torch.from_numpy(a).long() for a in make_data(config).subset(TRAIN))
    model = MLP(config)
    H = HessianOperator(Objective(model, tokens, labels), dict(model.named_parameters()))
    assert min(float(torch.linalg.eigvalsh(H.block([b]).dense())[0]) for b in ("E", "W")) < -1e-6
