"""The chunked cross-entropy of a linear head: values, derivatives and Hessians are those of the logits themselves."""

from __future__ import annotations

import mpmath
import pytest
import torch
from helpers.matrices import assert_close, draw
from torch import Tensor, nn

from landscape.curvature.losses import cross_entropy, linear_cross_entropy
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator
from landscape.errors import ArgumentError


def data(scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states (2, 5, 4), a head (7, 4) and labels, two of them left out."""
    labels = torch.arange(10).view(2, 5) % 7
    labels[0, 3:] = -100
    return draw(2, 5, 4, seed=1) * scale, draw(7, 4, seed=2) * scale, labels


@pytest.mark.parametrize("chunk", [1, 3, 100, None])
def test_derivatives_are_those_of_the_logits(chunk: int | None) -> None:
    """Value, gradient and second derivative along a direction, through both arguments and the weights of the tokens."""
    hidden, weight, labels = data()
    scale = draw(2, 5, seed=3)

    def plain(h: Tensor, W: Tensor) -> Tensor:
        return nn.functional.cross_entropy((h @ W.T).flatten(0, 1), labels.flatten(), reduction="none").view(2, 5)

    def derivatives(loss: object) -> list[Tensor]:
        h, W, w = (x.clone().requires_grad_() for x in (hidden, weight, scale))
        values = loss(h, W)  # type: ignore[operator]
        first = torch.autograd.grad((values * w).sum(), (h, W), create_graph=True)
        slope = (first[0] * draw(2, 5, 4, seed=4)).sum() + (first[1] * draw(7, 4, seed=5)).sum()
        return [values, *first, *torch.autograd.grad(slope, (h, W, w))]

    ours = derivatives(lambda h, W: linear_cross_entropy(h, W, labels, chunk))
    for found, expected in zip(ours, derivatives(plain), strict=True):
        assert_close(found.detach(), expected.detach(), 1e-13)


def test_it_keeps_its_digits_at_tiny_losses() -> None:
    """At a loss of 1e-15 the curvature has the digits of 50-digit arithmetic."""
    z = torch.tensor([34.0, -0.5, 0.25], dtype=torch.float64)
    with mpmath.workdps(50):
        p = [mpmath.e ** mpmath.mpf(float(x)) for x in z]
        p = [x / sum(p) for x in p]
        true = [p[0] * p[1], p[0] * (1 - p[0]), p[1] * (1 - p[1])]
    head = torch.eye(3, dtype=torch.float64)

    def loss(h: Tensor) -> Tensor:
        return linear_cross_entropy(h[None], head, torch.tensor([0])).sum()

    H = torch.autograd.functional.hessian(loss, z)
    found = (-H[0, 1], H[0, 0], H[1, 1])
    for x, t in zip(found, true, strict=True):
        assert abs(float(x) / float(t) - 1) < 1e-14
    assert loss(z) == pytest.approx(float((p[1] + p[2]) / p[0]), rel=1e-14)


class Model(nn.Module):
    """Embedding, tanh, and a head tied to the embedding; returns logits, or losses where labels are given."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(7, 4), nn.Linear(4, 4)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        x = self.embed(tokens)
        x = x + torch.tanh(self.mix(x.cumsum(1)))
        if labels is None:
            return x @ self.embed.weight.T
        return linear_cross_entropy(x, self.embed.weight, labels, 2)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_hessians_are_those_of_the_logits(dtype: torch.dtype) -> None:
    """As the loss within a model, with a tied head and tokens left out; also for several vectors in one pass."""
    torch.manual_seed(0)
    model = Model()
    tokens, labels = torch.randint(0, 7, (6, 5)), torch.randint(0, 7, (6, 5))
    labels[1, 2:] = -100
    params = dict(model.named_parameters())
    whole = Objective(model, tokens, labels, cross_entropy, chunk_size=4, weight_decay=0.1)
    inputs = {"tokens": tokens, "labels": labels}
    ours = Objective(model, inputs, None, lambda model, batch: model(**batch), 0.1, 4, dtype)
    expected = HessianOperator(whole, params).dense()
    assert_close(HessianOperator(ours, params).dense().double(), expected, 1e-13 if dtype == torch.float64 else 1e-5)
    assert ours.value(params) == pytest.approx(whole.value(params), rel=1e-12 if dtype == torch.float64 else 1e-6)
    leaves = {n: p.detach().to(dtype).requires_grad_() for n, p in params.items()}
    (term, *_) = ours.terms()
    gradient = torch.autograd.grad(term(leaves), list(leaves.values()), create_graph=True)
    flat = torch.cat([g.reshape(-1) for g in gradient])
    vectors = draw(3, len(flat)).to(dtype)
    together = torch.autograd.grad(flat, list(leaves.values()), vectors, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(flat, list(leaves.values()), v, retain_graph=True) for v in vectors]
    for i, single in enumerate(alone):
        for found, x in zip(together, single, strict=True):
            assert_close(found[i], x, 1e-13 if dtype == torch.float64 else 1e-5)


def test_labels_that_cannot_be() -> None:
    """Of another shape, not integers, out of range."""
    hidden, weight, labels = data()
    for wrong in (labels[:, :4], labels.double()):
        with pytest.raises(ArgumentError, match=r"hidden states \(2, 5, 4\) and labels") as raised:
            linear_cross_entropy(hidden, weight, wrong)
        assert "hidden.shape[:-1]" in raised.value.hint
    with pytest.raises(ArgumentError, match="labels run from 0 to 9; the model has 7 classes"):
        linear_cross_entropy(hidden, weight, torch.arange(10).view(2, 5))
