"""The closed-form blocks of the embedding-coupled MLP, and the digits of cross-entropy."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from conftest import TINY
from helpers.matrices import assert_close
from helpers.networks import embedding_net

from landscape import models
from landscape.choices.activations import ACTIVATIONS
from landscape.config import HessianConfig
from landscape.curvature.losses import cross_entropy
from landscape.curvature.operators import HessianOperator
from landscape.measure.checkpoint import Checkpoint
from landscape.measure.measurement import Measurement, Point
from landscape.models.embedding_mlp.closed_form import EmbeddingMLP
from landscape.models.embedding_mlp.networks import initial
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
        matrix, index = closed.hessian(block), torch.cat([rows[name] for name in block])
        assert_close(matrix, whole[index][:, index], 1e-12)
        assert torch.equal(matrix, matrix.T)


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


def test_a_block_has_the_same_bits_after_others() -> None:
    """What is kept between blocks changes none of them."""
    point, x, y, _ = embedding_net("gelu", True, 2)
    shared = EmbeddingMLP(point, x, y, ACTIVATIONS["gelu"])
    names = list(point)
    for block in (names, names[:1], ["W", "V"], ["W"], names[::-1], names):
        assert torch.equal(shared.hessian(block), EmbeddingMLP(point, x, y, ACTIVATIONS["gelu"]).hessian(block))


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
    derivatives = margin_derivatives(margin, dtype)
    assert derivatives == pytest.approx((loss, first, e / (1 + e) ** 2), rel=relative, abs=0)


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
