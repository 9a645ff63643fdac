"""The closed-form blocks of the embedding-coupled MLP, and the digits of cross-entropy."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from conftest import TINY
from helpers.matrices import assert_close, draw
from helpers.networks import embedding_net
from torch import nn

from landscape import models
from landscape.choices.activations import ACTIVATIONS
from landscape.config import HessianConfig
from landscape.curvature.losses import cross_entropy, mse
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator
from landscape.measure.checkpoint import Checkpoint
from landscape.measure.measurement import Measurement, Point
from landscape.models.embedding_mlp.closed_form import ClosedForm, EmbeddingMLP, TableMLP
from landscape.models.embedding_mlp.networks import initial
from landscape.models.embedding_mlp.products import Passes
from landscape.models.tasks import make_data

# --- the closed form ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [2, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_closed_form_equals_products(activation: str, bias: bool, tokens: int) -> None:
    """The closed-form Hessian and all its sub-blocks, in any order, are those of the products."""
    point, x, y, objective = embedding_net(activation, bias, tokens)
    closed = EmbeddingMLP(point, x, y, ACTIVATIONS[activation])
    names = ["E", "W", "V", *(["b1", "b2"] if bias else [])]
    whole = HessianOperator(objective, point).block(names).dense()
    rows = dict(zip(names, torch.arange(len(whole)).split([point[name].numel() for name in names]), strict=True))
    pairs = [list(pair) for pair in itertools.permutations(names, 2)]
    for block in (*([n] for n in names), *pairs, names, names[::-1]):
        found, index = closed.hessian(block), torch.cat([rows[name] for name in block])
        assert_close(found, whole[index][:, index], 1e-12)
        assert torch.equal(found, found.T)


def test_closed_form_over_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Working through the samples a few at a time changes nothing but rounding."""
    point, x, y, _ = embedding_net("gelu", True, 4)
    closed = EmbeddingMLP(point, x, y, ACTIVATIONS["gelu"])
    expected = closed.hessian(list(point))
    monkeypatch.setattr("landscape.models.embedding_mlp.closed_form._CHUNK_BYTES", 5000)
    assert 1 < len(list(closed._chunks())) < len(x)
    again = EmbeddingMLP(point, x, y, ACTIVATIONS["gelu"])
    assert_close(again.hessian(list(point)), expected, 1e-14)


@pytest.mark.parametrize("bias", ["b1", "b2"])
def test_a_bias_alone_is_not_cut_out_of_the_block_of_its_matrix(bias: str) -> None:
    """At the paper's size that of W and b1 has 69 billion entries, that of b1 a quarter of a million."""
    data = vars(make_data(TINY))
    problem = models.of_config(TINY, data)
    what = Measurement.of(problem, HessianConfig(blocks=(bias,), device="cpu"))
    point = Checkpoint(what, Point(initial(TINY)))
    assert problem.structure(point.params, 0.0).dense([bias]) is None
    expected = HessianOperator(point.objective, point.params, [bias]).dense()
    assert_close(point.matrix(what.blocks[0]).matrix, expected, 1e-12)


@pytest.mark.parametrize("kind", [EmbeddingMLP, TableMLP])
def test_a_block_has_the_same_bits_after_others(kind: type[ClosedForm]) -> None:
    """What is kept between blocks changes none of them."""
    point, x, y, _ = embedding_net("gelu", True, 2)
    if kind is TableMLP:
        slots = point["W"].split(point["E"].shape[1], dim=1)
        point = {"W": torch.cat([W @ point["E"].T for W in slots], dim=1)} | {n: point[n] for n in ("b1", "V", "b2")}
    shared = kind(point, x, y, ACTIVATIONS["gelu"])
    names = list(point)
    for block in (names, names[:1], ["W", "V"], ["W"], names[::-1], names):
        assert torch.equal(shared.hessian(block), kind(point, x, y, ACTIVATIONS["gelu"]).hessian(block))


@pytest.mark.parametrize("tokens", [2, 4])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_table_gradient_is_the_gradient_by_the_tables(activation: str, tokens: int) -> None:
    """G = [dL/dT_1^T; ...] of T_k = E W_k^T, by automatic differentiation through the tables."""
    point, x, y, _ = embedding_net(activation, True, tokens)
    tables = [(point["E"] @ W_k.T).requires_grad_() for W_k in point["W"].split(3, 1)]
    pre = torch.stack([T[x[:, k]] for k, T in enumerate(tables)]).sum(0) + point["b1"]
    logits = ACTIVATIONS[activation](pre) @ point["V"].T + point["b2"]
    expected = torch.cat([g.T for g in torch.autograd.grad(nn.functional.cross_entropy(logits, y), tables)])
    G = Passes(point, x, y, ACTIVATIONS[activation]).table_gradient()
    assert_close(G, expected, 1e-13)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("margin", [1.0, 10.0, 20.0, 30.0, 45.0, 70.0])
def test_closed_form_keeps_its_digits_at_any_loss(margin: float, right: bool) -> None:
    """Where all samples are right (loss down to 1e-30) or wrong by a margin, the closed form still equals products."""
    point, x, _, _ = embedding_net("relu", False, 2)
    logits = torch.relu(point["E"][x].flatten(1) @ point["W"].T) @ point["V"].T
    best = logits.topk(2, 1)
    gap = best.values[:, 0] - best.values[:, 1]
    target = float(gap.median())
    kept = (gap > 0.7 * target) & (gap < 1.6 * target)
    assert int(kept.sum()) >= 3
    x, y = x[kept], best.indices[kept, 0 if right else 1]
    point["V"] *= margin / target
    model = embedding_net("relu", False, 2)[3]._model
    for block in (["V"], ["E"], ["W"], ["E", "W", "V"]):
        expected = HessianOperator(Objective(model, x, y), point, block).dense()
        assert_close(EmbeddingMLP(point, x, y, torch.relu).hessian(block), expected, 1e-9)


# --- cross-entropy --------------------------------------------------------------------------------------------


def margin_derivatives(margin: float, dtype: torch.dtype) -> tuple[float, float, float]:
    """Loss of two classes at z_wrong - z_right = margin, and its first two derivatives by the margin."""
    m = torch.tensor(margin, dtype=dtype, requires_grad=True)
    loss = cross_entropy(torch.stack([m.new_zeros(()), m])[None], torch.tensor([0]))[0]
    (first,) = torch.autograd.grad(loss, m, create_graph=True)
    (second,) = torch.autograd.grad(first, m)
    return loss.item(), first.item(), second.item()


@pytest.mark.parametrize(
    ("margin", "dtype", "relative"),
    [
        *((m, torch.float64, 1e-13) for m in (-700.0, -69.0, -37.0, -20.0, -5.0, 0.0, 0.3, 5.0, 20.5, 37.0, 700.0)),
        *((m, torch.float32, 3e-6) for m in (-80.0, -25.3, -17.0, -5.0, 0.0, 0.3, 17.0, 25.3, 80.0)),
    ],
)
def test_cross_entropy_keeps_its_digits(margin: float, dtype: torch.dtype, relative: float) -> None:
    """Loss, gradient and curvature against log1p(e^m), p and p (1 - p), from right to wrong by 700."""
    m = float(torch.tensor(margin, dtype=dtype))
    e = math.exp(-abs(m))
    loss = max(m, 0.0) + math.log1p(e)
    first = e / (1 + e) if m < 0 else 1 / (1 + e)
    found = margin_derivatives(margin, dtype)
    assert found == pytest.approx((loss, first, e / (1 + e) ** 2), rel=relative, abs=0)


@pytest.mark.parametrize(
    ("margin", "dtype"),
    [(-720.0, torch.float64), (-2000.0, torch.float64), (-90.0, torch.float32), (800, torch.float64)],
)
def test_cross_entropy_beyond_the_range_of_exp_is_finite(margin: float, dtype: torch.dtype) -> None:
    """A sample classified (or missed) by more than exp can hold has no curvature left; it must not give NaN."""
    loss, first, second = margin_derivatives(margin, dtype)
    assert loss == pytest.approx(max(margin, 0.0), abs=1e-30)
    assert first == pytest.approx(1.0 if margin > 0 else 0.0, abs=1e-30)
    assert second == pytest.approx(0.0, abs=1e-30)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3, 11])
def test_cross_entropy_is_torch_cross_entropy_at_ordinary_loss(classes: int) -> None:
    """Value, gradient and Hessian of random logits are those of torch's log-softmax form."""
    z, y = 3 * draw(5, classes, seed=classes), torch.arange(5) % classes
    pairs = []
    for loss in (lambda z: cross_entropy(z, y).sum(), lambda z: nn.functional.cross_entropy(z, y, reduction="sum")):
        pairs.append((loss(z), torch.func.grad(loss)(z), torch.func.hessian(loss)(z)))
    for ours, torchs in zip(*pairs, strict=True):
        assert float((ours - torchs).abs().max()) <= 1e-14
    assert cross_entropy(z, y).shape == (5,)


@pytest.mark.parametrize("margin", [21.0, 40.0, 300.0])
def test_large_wrong_margins_keep_the_curvature_of_the_other_classes(margin: float) -> None:
    """Two wrong classes tied far above the right one share the curvature 1/4, beyond softplus' linear threshold."""
    z = torch.tensor([[0.0, margin, margin]], dtype=torch.float64)
    H = torch.func.hessian(lambda z: cross_entropy(z, torch.tensor([0])).sum())(z)[0, :, 0]
    expected = torch.tensor([[0.0, 0, 0], [0, 0.25, -0.25], [0, -0.25, 0.25]], dtype=torch.float64)
    assert float((H - expected).abs().max()) <= 1e-9
    p = torch.softmax(z[0], 0)
    assert float((H - (torch.diag(p) - p[:, None] * p)).abs().max()) <= 1e-15


def test_float32_hessian_at_low_loss() -> None:
    """Loss 1e-11 in float32: the Hessian keeps 3e-6 of relative precision, where torch's cross-entropy has none."""
    x, y = draw(9, 3, seed=1), torch.zeros(9).long()
    point = {"w": torch.tensor([[25.0, 25.0, 25.0], [0.0, 0.0, 0.0]], dtype=torch.float64)}
    x = 0.33 + x.abs() / 100
    found = {}
    for loss in (cross_entropy, lambda z, y: nn.functional.cross_entropy(z, y, reduction="none")):
        for dtype in (torch.float32, torch.float64):
            objective = Objective(lambda P, x: x @ P["w"].T, x, y, loss, dtype=dtype)
            found[loss, dtype] = HessianOperator(objective, point).dense().double()
            value = objective.value({"w": point["w"].to(dtype)})
            if loss is cross_entropy:
                assert 1e-12 < value < 1e-10
    mine = found[cross_entropy, torch.float64]
    assert float(mine.norm()) > 1e-13
    # The logits themselves carry float32 rounding of about 25 eps, which shifts every probability alike.
    assert float((found[cross_entropy, torch.float32] - mine).norm()) <= 3e-6 * float(mine.norm())


def test_mse_is_the_mean_over_outputs() -> None:
    """Squared error of each sample, averaged over all its outputs."""
    out, target = draw(4, 3, 2, seed=1), draw(4, 3, 2, seed=2)
    assert mse(out, target).shape == (4,)
    assert mse(out, target).mean().item() == pytest.approx(nn.functional.mse_loss(out, target).item(), rel=1e-14)
