"""Couplings of blocks with negative curvature of their own, as a Hessian file has them, against dense matrices."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.hessians import HessianReader, analyse
from helpers.marking import slow
from torch import Tensor, nn

from landscape.config import HessianConfig
from landscape.curvature.coupling import require_convex
from landscape.curvature.losses import cross_entropy, mse
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator
from landscape.errors import ArgumentError
from landscape.measure import tables
from landscape.measure.measure import measure
from landscape.measure.measurement import Measurement, Point
from landscape.models.embedding_mlp.closed_form import EmbeddingMLP
from landscape.models.module import ModuleProblem
from landscape.models.problem import Training
from landscape.training.loop import train

PAIR = ("embed", "attention")


class Attention(nn.Module):
    """One attention head and a GELU layer over three tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.attention = nn.Linear(3, 9, bias=False)
        self.V = nn.Linear(3, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = self.attention(x).chunk(3, -1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v) + x
        return self.V(nn.functional.gelu(mixed)[:, -1])


def network() -> tuple[Attention, Tensor, Tensor]:
    """24 sequences and labels that no network can fit."""
    torch.manual_seed(1)
    model = Attention().double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2.0)
    return model, torch.randint(0, 5, (24, 3)), torch.randint(0, 5, (24,))


def problem(loss: Any = cross_entropy, decay: float = 0.0) -> ModuleProblem:
    blocks = {"embed": ["embed.*"], "attention": ["attention.*"]}
    return ModuleProblem(*network(), loss, blocks=blocks, pairs=[PAIR], weight_decay=decay)


def measured(of: ModuleProblem, **settings: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {"blocks": ("embed", "attention", "embed,attention"), "k": 3, "rel_tau": 1e-3, **settings}
    config = HessianConfig(device="cpu", **{"certify": True, **chosen})
    nowhere = Training(0, dict.fromkeys(of.parameters, float("nan")), None, float("nan"))
    arrays = {n: p.detach().numpy() for n, p in network()[0].named_parameters()}
    return measure(Measurement.of(of, config), Point(arrays, nowhere)).datasets["/"]


def dense(decay: float = 0.0) -> tuple[Tensor, Tensor]:
    """Hessian and J^T (d2 loss / d logits2) J over embedding and attention, by torch.func alone."""
    names = ["embed.weight", "attention.weight"]
    model, tokens, labels = network()
    own = dict(model.named_parameters())
    sizes = [own[n].numel() for n in names]
    point = torch.cat([own[n].detach().reshape(-1) for n in names])

    def outputs(theta: Tensor) -> Tensor:
        parts = {n: x.view_as(own[n]) for n, x in zip(names, theta.split(sizes), strict=True)}
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            logits: Tensor = torch.func.functional_call(model, parts, (tokens,))
        return logits

    def loss(z: Tensor) -> Tensor:
        return nn.functional.cross_entropy(z.view(24, 5), labels)

    H = torch.func.hessian(lambda theta: loss(outputs(theta)))(point)
    J = torch.func.jacrev(outputs)(point).reshape(24 * 5, -1)
    G = J.T @ torch.func.hessian(loss)(outputs(point).reshape(-1)) @ J
    eye = decay * torch.eye(len(H)).double()
    return H.detach() + eye, G.detach() + eye


def whitened(G_11: Tensor, H_12: Tensor, G_22: Tensor, tau: float) -> Tensor:
    roots = []
    for G in (G_11, G_22):
        values, vectors = torch.linalg.eigh(G)
        roots.append(vectors * (values + tau).rsqrt() @ vectors.T)
    return torch.linalg.svdvals(roots[0] @ H_12 @ roots[1])


@pytest.mark.slow
@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("method", ["dense", slow("lanczos")])
def test_attention_and_gelu(method: str, decay: float) -> None:
    """Blocks with negative curvature: no coupling ratios, but an excess index, and ratios to Gauss-Newton curvature."""
    of = problem(decay=decay)
    row = measured(of, method=method, objective="regularised" if decay else "data")
    H, G = dense(decay)
    m, tau = 15, float(row["inertia_tolerance"][2])
    expected = whitened(G[:m, :m], H[:m, m:], G[m:, m:], tau)[:3]
    index, first, second = ((torch.linalg.eigvalsh(X) < -tau).sum().item() for X in (H, H[:m, :m], H[m:, m:]))
    assert first > 0
    assert second > 0
    assert np.isnan(row["coupling_ratios"]).all()
    assert row["excess_index_lower"][0] <= index - first - second <= row["excess_index_upper"][0]
    ratios = row["gauss_newton_ratios"][0]
    if method == "dense":
        assert row["excess_index_lower"] == row["excess_index_upper"]
        assert row["excess_level"] == 3
        assert (np.abs(ratios - expected.numpy()) <= row["gauss_newton_ratio_error"][0] + 1e-12 * ratios).all()
        assert row["gauss_newton_index"] == (whitened(G[:m, :m], H[:m, m:], G[m:, m:], tau) > 1).sum().item()
    else:
        assert row["excess_level"] == 2
        assert (np.abs(ratios - expected.numpy()) <= row["gauss_newton_ratio_distance"][0]).all()
        np.testing.assert_allclose(ratios, expected, rtol=2e-3)


def test_a_loss_that_is_not_convex_has_no_such_ratios() -> None:
    """1 - p(label) is not convex in the logits: the excess index is there, the ratios are not."""

    def error_rate(z: Tensor, y: Tensor) -> Tensor:
        return 1 - z.softmax(-1).gather(-1, y[:, None])[:, 0]

    of = problem(error_rate)
    row = measured(of, method="dense")
    assert np.isnan(row["gauss_newton_ratios"]).all()
    assert row["gauss_newton_index"] == -1
    assert row["excess_index_lower"] == row["excess_index_upper"]
    params = {n: p.detach() for n, p in network()[0].named_parameters()}
    with pytest.raises(ArgumentError, match=r"the loss is not convex in the outputs: curvature -\d") as raised:
        require_convex(of.objective(0.0), params)
    assert "look at the excess index" in raised.value.hint


@pytest.mark.parametrize(
    ("loss", "is_convex"),
    [
        (cross_entropy, True),
        (mse, True),
        (nn.MSELoss(reduction="none"), True),
        (nn.HuberLoss(reduction="none", delta=0.1), True),
        (lambda z, y: (z - y).abs().sqrt(), False),
        (lambda z, y: 1 - torch.cos(z - y), False),
        (lambda z, y: 0 * (z - y), True),
    ],
)
def test_which_losses_are_convex(loss: Any, is_convex: bool) -> None:
    """Against losses whose second derivatives are known, over chunks; a zero one is convex."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x, y = torch.randn(9, 3).double(), torch.randn(9, 2).double()
    if loss is cross_entropy:
        y = torch.arange(9) % 2
    by_sample = loss if loss in (cross_entropy, mse) else lambda z, y: loss(z, y).sum(1)
    objective = Objective(model, x, y, by_sample, chunk_size=4)
    if is_convex:
        require_convex(objective, dict(model.named_parameters()))
    else:
        with pytest.raises(ArgumentError, match="not convex in the outputs"):
            require_convex(objective, dict(model.named_parameters()))


@pytest.mark.slow
def test_of_relu_they_are_the_coupling_ratios(tiny_hessian: HessianReader) -> None:
    """A single layer of a piecewise-linear net has Gauss-Newton curvature alone, and the excess is the joint index."""
    for step in tiny_hessian.steps:
        row = tiny_hessian.row(step)
        for end in ("ratios", "ratio_error", "ratio_distance", "index"):
            np.testing.assert_array_equal(row[f"gauss_newton_{end}"], row[f"coupling_{end}"])
        joint = [tiny_hessian.blocks.index(pair) for pair in tiny_hessian.pairs]
        np.testing.assert_array_equal(row["excess_index_lower"], row["inertia"][joint, 0])
        np.testing.assert_array_equal(row["excess_index_upper"], row["inertia"][joint, 0])
        assert (row["excess_level"] == 3).all()
        assert (row["inertia"][joint, 0] > 0).all()


def gelu_run(folder: Path) -> Path:
    train(dataclasses.replace(TINY, activation="gelu", embed_dim=3, hidden=6, lr=0.05), folder / "run.h5", quiet=True)
    return folder / "run.h5"


@pytest.mark.slow
def test_the_embedding_mlp_in_closed_form(tmp_path: Path) -> None:
    """Its Gauss-Newton blocks without products are those by automatic differentiation, and give the same ratios."""
    path = gelu_run(tmp_path)
    blocks = ("E", "W", "E,W")
    row = analyse(
        path, HessianConfig(blocks=blocks, rel_tau=1e-6, certify=True, device="cpu", steps="60"), quiet=True
    ).row(60)
    assert (row["gauss_newton_ratios"][0] > 0).all()
    assert not np.allclose(row["gauss_newton_ratios"][0], row["coupling_ratios"][0], rtol=1e-3)
    torch.manual_seed(0)
    shapes = {"E": (5, 3), "W": (4, 6), "b1": (4,), "V": (5, 4), "b2": (5,)}
    params = {n: torch.randn(*shape, dtype=torch.float64) for n, shape in shapes.items()}
    tokens, labels = torch.randint(0, 5, (11, 2)), torch.randint(0, 5, (11,))

    def model(p: Any, x: Tensor) -> Tensor:
        return nn.functional.gelu(p["E"][x].flatten(1) @ p["W"].T + p["b1"]) @ p["V"].T + p["b2"]

    G = HessianOperator(Objective(model, tokens, labels), params, part="gauss_newton")
    closed = EmbeddingMLP(params, tokens, labels, nn.functional.gelu, gauss_newton=True)
    for names in (["E"], ["W", "b1"], ["E", "W"], ["W", "V"], ["E", "V", "b2"], list(params)):
        torch.testing.assert_close(closed.hessian(names), G.block(names).dense(), rtol=0, atol=1e-14)


@pytest.mark.slow
def test_matrix_free_it_takes_the_blocks(tmp_path: Path) -> None:
    """Without the diagonal blocks it is missing; with them it is there, and in the table."""
    path = gelu_run(tmp_path)
    settings: dict[str, Any] = {"device": "cpu", "steps": "60", "method": "lanczos", "rel_tau": 1e-2, "k": 3}
    first = analyse(path, HessianConfig(blocks=("E,W",), certify=True, **settings), quiet=True)
    assert np.isnan(first.row(60)["excess_index_lower"][0])
    assert first.row(60)["excess_level"][0] == 0
    assert tables.by_step(first)[1][tables.by_step(first)[0].index("excess index")] == "-"
    grown = analyse(
        path, HessianConfig(blocks=("E,W", "E", "W"), certify=True, **settings), tmp_path / "all.h5", quiet=True
    )
    row = grown.row(60)
    assert row["excess_level"][0] == 2
    exact = analyse(
        path,
        HessianConfig(blocks=("E", "W", "E,W"), certify=True, device="cpu", steps="60", rel_tau=1e-2),
        tmp_path / "dense.h5",
        quiet=True,
    ).row(60)
    assert row["excess_index_lower"][0] <= exact["excess_index_lower"][0] <= row["excess_index_upper"][0]
    ours, theirs = row["gauss_newton_ratios"][0], exact["gauss_newton_ratios"][0, :3]
    np.testing.assert_allclose(ours, theirs, rtol=0.02)
    cell = tables.by_step(grown)[1][tables.by_step(grown)[0].index("kappa_1 (GN)")]
    assert cell == f">={ours[0]:.4g}"
