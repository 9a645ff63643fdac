"""H = G + R: Gauss-Newton and residual parts, the losses they come from, and the error of a product."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
from helpers.matrices import draw
from torch import Tensor, nn

from landscape.config import TrainConfig
from landscape.curvature.losses import cross_entropy, mse
from landscape.curvature.objective import Loss, Objective
from landscape.curvature.operators import HessianOperator, Part, product_error
from landscape.models.embedding_mlp.networks import MLP
from landscape.models.embedding_mlp.products import Passes
from landscape.models.tasks import TRAIN, make_data

PARTS = get_args(Part)
SMOOTHING = 0.2
Point = dict[str, Tensor]
LOSSES: dict[str, tuple[Loss, Callable[[Tensor, Tensor], Tensor]]] = {
    "cross-entropy": (cross_entropy, nn.functional.cross_entropy),
    "label smoothing": (
        functools.partial(cross_entropy, label_smoothing=SMOOTHING),
        functools.partial(nn.functional.cross_entropy, label_smoothing=SMOOTHING),
    ),
    "mse": (mse, nn.functional.mse_loss),
}


def problem(loss: str) -> tuple[nn.Module, Tensor, Tensor, Point]:
    """A tanh net in float64 with 7 inputs and targets; for mse its outputs are 2 x 2."""
    last = nn.Unflatten(1, (2, 2)) if loss == "mse" else nn.Identity()
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), last).double()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(draw(*p.shape, seed=i))
    y = draw(7, 2, 2, seed=9) if loss == "mse" else torch.arange(7) % 4
    return module, draw(7, 3, seed=8), y, {n: p.detach().clone() for n, p in module.named_parameters()}


def parts_by_torch(loss: str) -> tuple[Tensor, Tensor]:
    """J^T H_L J and sum_c slope_c d2 f_c of the plain mean loss, by torch.func."""
    module, x, y, point = problem(loss)
    sizes = [p.numel() for p in point.values()]
    mean_loss = functools.partial(LOSSES[loss][1], target=y)

    def outputs(vector: Tensor) -> Tensor:
        pieces = {n: v.view_as(p) for (n, p), v in zip(point.items(), vector.split(sizes), strict=True)}
        return torch.func.functional_call(module, pieces, (x,))

    at = torch.cat([p.reshape(-1) for p in point.values()])
    f = outputs(at)
    J = torch.func.jacrev(outputs)(at).reshape(f.numel(), -1)
    curvature = torch.func.jacrev(torch.func.grad(mean_loss))(f).reshape(f.numel(), f.numel())
    slope = torch.func.grad(mean_loss)(f)
    residual = torch.func.jacrev(torch.func.grad(lambda v: (outputs(v) * slope).sum()))(at)
    return J.T @ curvature @ J, residual


def assert_close(actual: Tensor, expected: Tensor, relative: float = 1e-13) -> None:
    """Equal within `relative` of the largest entry."""
    assert actual.shape == expected.shape
    assert float((actual - expected).abs().max()) <= relative * float(expected.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("loss", LOSSES)
def test_parts_equal_torch_and_sum_to_the_hessian(loss: str, decay: float, chunk_size: int | None) -> None:
    """G is J^T H_L J + wd I and PSD, R the curvature of the outputs alone, and H = G + R, block by block."""
    module, x, y, point = problem(loss)
    objective = Objective(module, x, y, LOSSES[loss][0], weight_decay=decay, chunk_size=chunk_size)
    H, G, R = (HessianOperator(objective, point, part=part) for part in PARTS)
    gauss_newton, residual = parts_by_torch(loss)
    gauss_newton += decay * torch.eye(len(gauss_newton), dtype=torch.float64)
    assert_close(G.dense(), gauss_newton)
    assert_close(R.dense(), residual)
    assert_close(H.dense(), gauss_newton + residual)
    values = torch.linalg.eigvalsh(G.dense())
    assert float(values[0]) >= decay - 1e-14 * float(values[-1])
    first, last = slice(0, 15), slice(20, 40)
    for operator, whole in ((G, gauss_newton), (R, residual)):
        off = operator.block(["2.weight"], ["0.weight"])
        assert off.part == operator.part
        assert_close(off.dense(), whole[last, first])
        assert_close(off.T.dense(), whole[first, last])
        assert_close(operator.block(["2.weight"]).dense(), whole[last, last])


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_products_one_by_one_and_batched_agree(part: Part, chunk_size: int | None) -> None:
    """The batched products that GPUs get are the products with each vector; repeated, they do not change."""
    module, x, y, point = problem("cross-entropy")
    operator = HessianOperator(Objective(module, x, y, chunk_size=chunk_size, weight_decay=0.1), point, part=part)
    vectors = draw(operator.shape[1], 3)
    image = operator @ vectors
    assert torch.equal(operator @ vectors[:, 1], image[:, 1])
    batched = sum(term.apply(vectors.T.contiguous(), batched=True) for term in operator._terms).T
    assert_close(batched, image)
    # Graphs are as large as a chunk's activations: of several chunks none is kept.
    operator @ vectors
    assert chunk_size is None or all(term.graph is None for term in operator._terms)


@pytest.mark.parametrize("part", PARTS)
def test_parameters_without_slope_and_linear_nets(part: Part) -> None:
    """Parameters that the outputs multiply by zero give zeros in every part, and a linear net has no residual part."""
    x, y = draw(6, 3), draw(6, 1)
    point = {"w": draw(3, seed=1), "flat": draw(2)}
    model = lambda P, x: (x @ P["w"] + 0 * P["flat"].sum())[:, None]  # noqa: E731
    operator = HessianOperator(Objective(model, x, y, mse), point, part=part)
    expected = torch.zeros(5, 5, dtype=torch.float64)
    if part != "residual":
        expected[:3, :3] = 2 * x.T @ x / 6
    torch.testing.assert_close(operator.dense(), expected, rtol=1e-14, atol=0)
    assert not operator.block(["flat"]).dense().any()
    assert not operator.block(["w"], ["flat"]).dense().any()


def embedding_net(activation: str, tokens: int = 2) -> tuple[Objective, Point, Tensor, Tensor]:
    """An embedding MLP at its initialisation, as objective, parameters, tokens and labels."""
    config = TrainConfig(p=7, tokens=tokens, embed_dim=3, hidden=6, activation=activation, dtype="float64")
    x, y = (torch.from_numpy(a).long() for a in make_data(config).subset(TRAIN))
    model = MLP(config)
    return Objective(model, x, y), {n: p.detach() for n, p in model.named_parameters()}, x, y


@pytest.mark.slow
def test_f8_residual_of_single_layers_vanishes_for_relu() -> None:
    """A ReLU net's residual part has no single-layer block, only couplings; tanh has both."""
    for activation in ("relu", "tanh"):
        objective, point, _, _ = embedding_net(activation)
        R = HessianOperator(objective, point, part="residual")
        scale = float(R.dense().abs().max())
        for name in ("E", "W"):
            assert (float(R.block([name]).dense().abs().max()) < 1e-15 * scale) == (activation == "relu"), name
        assert float(R.block(["V"]).dense().abs().max()) < 1e-15 * scale
        assert float(R.block(["E"], ["W"]).dense().abs().max()) > 0.1 * scale


@pytest.mark.parametrize("tokens", [2, 4])
def test_f14_residual_of_the_joint_block_is_the_table_gradient(tokens: int) -> None:
    """For ReLU the residual part of E,W has the eigenvalues +-sigma_i(G), each d times, and zeros."""
    objective, point, x, y = embedding_net("relu", tokens)
    R = HessianOperator(objective, point, ["E", "W"], part="residual").dense()
    sigma = torch.linalg.svdvals(Passes(point, x, y, torch.relu).table_gradient())
    d = point["E"].shape[1]
    expected = torch.cat([sigma, -sigma]).repeat_interleave(d)
    expected = torch.cat([expected, torch.zeros(len(R) - len(expected))]).sort()[0]
    torch.testing.assert_close(torch.linalg.eigvalsh(R), expected, rtol=0, atol=1e-14 * float(sigma[0]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_label_smoothing_is_that_of_torch(smoothing: float) -> None:
    """Value, gradient and curvature equal torch.nn.functional.cross_entropy's at the same label_smoothing."""
    z, y = (5 * draw(9, 4)).requires_grad_(), torch.arange(9) % 4
    theirs = functools.partial(nn.functional.cross_entropy, reduction="none")
    values = [loss(z, y, label_smoothing=smoothing) for loss in (cross_entropy, theirs)]
    torch.testing.assert_close(*values, rtol=1e-13, atol=1e-13)
    slopes = [torch.autograd.grad(f.sum(), z, create_graph=True)[0] for f in values]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-14)
    bent = [torch.autograd.grad((g * draw(9, 4, seed=1)).sum(), z)[0] for g in slopes]
    torch.testing.assert_close(*bent, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(("dtype", "margin", "limit"), [(torch.float64, 70.0, 1e-13), (torch.float32, 25.0, 3e-6)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_parts_keep_their_digits_at_tiny_loss(
    dtype: torch.dtype, margin: float, limit: float, smoothing: float
) -> None:
    """At loss 1e-30 G is q (1 - q) J^T J and R is the slope times [[0, 1], [1, 0]], for logits (u w, 0)."""
    point = {"u": torch.tensor([5.0], dtype=dtype), "w": torch.tensor([margin / 5], dtype=dtype)}
    model = lambda P, x: torch.stack([P["u"] * P["w"], 0 * P["u"]], 1)  # noqa: E731
    loss = functools.partial(cross_entropy, label_smoothing=smoothing)
    objective = Objective(model, torch.zeros(1, 1), torch.tensor([0]), loss, dtype=dtype)
    G, R = (HessianOperator(objective, point, part=part).dense().double() for part in PARTS[1:])
    q = float(np.exp(-margin) / (1 + np.exp(-margin)))
    J = torch.tensor([margin / 5, 5.0], dtype=torch.float64)
    torch.testing.assert_close(G, q * (1 - q) * torch.outer(J, J), rtol=limit, atol=0)
    slope = (smoothing / 2 - q) * torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(R, slope, rtol=limit, atol=0)


# --- modules: dropout, fused attention, buffers ---------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_fused_attention_has_a_correct_hessian(training: bool) -> None:
    """nn.TransformerEncoderLayer: products equal finite differences of torch's own gradients, in every part's sum."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True, activation="gelu")
    module = nn.Sequential(nn.Embedding(5, 4), layer, nn.Flatten(), nn.Linear(12, 5)).double().train(training)
    x = torch.randint(0, 5, (11, 3), generator=torch.Generator().manual_seed(1))
    y, point = x.sum(1) % 5, {n: p.detach().clone() for n, p in module.named_parameters()}

    def gradient(step: float) -> Tensor:
        leaves = {
            n: (p + step * v.view_as(p)).requires_grad_() for (n, p), v in zip(point.items(), pieces, strict=True)
        }
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            value = nn.functional.cross_entropy(torch.func.functional_call(module, leaves, (x,)), y)
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, list(leaves.values()))])

    operator = HessianOperator(Objective(module, x, y, chunk_size=4), point)
    v = draw(operator.shape[1])
    pieces = v.split([p.numel() for p in point.values()])
    # Central differences with one extrapolation: error O(h^4).
    coarse, fine = ((gradient(h) - gradient(-h)) / (2 * h) for h in (1e-3, 5e-4))
    assert_close(operator @ v, (4 * fine - coarse) / 3, 1e-7)
    assert_close(sum(HessianOperator(operator.objective, point, part=p) @ v for p in PARTS[1:]), operator @ v, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_buffers_are_used_in_float64_and_left_alone(dtype: torch.dtype) -> None:
    """BatchNorm in eval mode is the affine map of its buffers, in float64 whatever their precision."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4)).to(dtype)
    module(torch.randn(20, 3, dtype=dtype))
    norm, x, y, point = module.eval()[1], draw(7, 3), torch.arange(7) % 4, dict(module.named_parameters())

    def explicit(P: Point, x: Tensor) -> Tensor:
        pre = x @ P["0.weight"].T + P["0.bias"] - norm.running_mean.double()
        scaled = pre / (norm.running_var.double() + norm.eps).sqrt() * P["1.weight"] + P["1.bias"]
        return scaled.tanh() @ P["3.weight"].T + P["3.bias"]

    matrix = HessianOperator(Objective(module, x, y), point).dense()
    assert all(b.dtype == dtype for b in module.buffers() if b.is_floating_point())
    assert_close(matrix, HessianOperator(Objective(explicit, x, y), point).dense())


# --- the error of a product -----------------------------------------------------------------------------------


def of_probabilities(z: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy as one writes it: where p is next to 1, the curvature p - p^2 cancels."""
    return -(z.exp() / z.exp().sum(1, keepdim=True)).gather(1, y[:, None])[:, 0].log()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sound", "cancelling in float32", "cancelling in float64"])
def test_product_error_bounds_the_true_error(kind: str) -> None:
    """delta is 1 to 1000 times |H - exact H|_F, also where both are symmetric; of sound float64 it is near eps |H|."""
    if kind == "sound":
        module, x, y, at = problem("cross-entropy")
        rounded, exact = (Objective(module, x, y, dtype=d) for d in (torch.float32, torch.float64))
        H = HessianOperator(exact, at)
        assert product_error(H) < 1e-13 * float(H.dense().norm())
    else:
        # A loss of 6e-6, of which float32 keeps 1 % of the curvature and float64 nine digits.
        at = {"u": torch.tensor([5.0]), "w": torch.tensor([2.4])}
        product = lambda P, x: torch.stack([P["u"] * P["w"], 0 * P["u"]], 1)  # noqa: E731
        data, dtype = (torch.zeros(1, 1), torch.tensor([0])), getattr(torch, kind.rpartition(" ")[2])
        rounded, exact = Objective(product, *data, of_probabilities, dtype=dtype), Objective(product, *data)
    # The same point in both.
    point = {n: p.float() for n, p in at.items()}
    inexact, H = (HessianOperator(objective, point) for objective in (rounded, exact))
    true = float((inexact.dense().double() - H.dense()).norm())
    estimates = np.array([product_error(inexact, seed) for seed in range(40)])
    assert true > 0
    assert ((true <= estimates) & (estimates <= 1000 * true)).all()
