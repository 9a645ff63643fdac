"""Small torch modules with data and a loss, and their Hessians by torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from helpers.matrices import draw
from torch import Tensor, nn

from landscape.curvature.losses import cross_entropy, mse
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator

Point = dict[str, Tensor]


MeanLoss = Callable[[Tensor, Tensor], Tensor]


PER_SAMPLE = {nn.functional.cross_entropy: cross_entropy, nn.functional.mse_loss: mse}


class Attention(nn.Module):
    """One head of self-attention between two LayerNorms, and a linear readout of the last position."""

    def __init__(self, affine: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.before, self.after = (nn.LayerNorm(4, elementwise_affine=affine) for _ in range(2))
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = self.qkv(self.before(x)).chunk(3, -1)
        x = x + (q @ k.mT / 2).softmax(-1) @ v
        return self.out(self.after(x)[:, -1])


def make(kind: str) -> tuple[nn.Module, Tensor, Tensor, MeanLoss, list[str]]:
    """A module in float64, 13 inputs and targets, the mean loss as torch has it, and two parameters to pair up."""
    generator = torch.Generator().manual_seed(1)
    if kind == "mlp":
        module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
        data, loss, pair = (draw(13, 3, seed=2), draw(13, 2, seed=3)), nn.functional.mse_loss, ["0.weight", "2.weight"]
    else:
        module = Attention(kind == "attention").double()
        tokens = torch.randint(0, 5, (13, 3), generator=generator)
        data, loss, pair = (tokens, tokens.sum(1) % 5), nn.functional.cross_entropy, ["embed.weight", "qkv.weight"]
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(draw(*p.shape, seed=50 + i) / 2)
    return module, *data, loss, pair


def hessian(objective: Objective, module: nn.Module) -> Tensor:
    """An objective's Hessian at the module's own parameters."""
    return HessianOperator(objective, dict(module.named_parameters())).dense()


def dense(module: nn.Module, value: Callable[[Callable[..., Any]], Tensor]) -> Tensor:
    """The Hessian of value(call of the module) by torch.func alone."""
    point = {n: p.detach().double() for n, p in module.named_parameters()}
    sizes = [p.numel() for p in point.values()]

    def of(vector: Tensor) -> Tensor:
        pieces = {n: v.view_as(p) for (n, p), v in zip(point.items(), vector.split(sizes), strict=True)}
        return value(lambda *a, **k: torch.func.functional_call(module, pieces, a, k))

    return torch.func.hessian(of)(torch.cat([p.reshape(-1) for p in point.values()]))


def by_autograd(value: Tensor, module: nn.Module) -> Tensor:
    """The Hessian of a value by two backward passes over the module's own parameters, as torch has it."""
    parameters = list(module.parameters())
    slopes = torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, parameters, create_graph=True)])
    rows = [torch.autograd.grad(s, parameters, retain_graph=True, materialize_grads=True) for s in slopes]
    return torch.stack([torch.cat([h.reshape(-1) for h in row]) for row in rows])


def point_of(module: nn.Module) -> Point:
    """A module's parameters by name."""
    return {n: p.detach().clone() for n, p in module.named_parameters()}


def operator_of(kind: str, block: list[str] | None = None, **settings: object) -> HessianOperator:
    """The Hessian operator of a test problem."""
    module, x, y, loss, _ = make(kind)
    return HessianOperator(Objective(module, x, y, PER_SAMPLE[loss], **settings), point_of(module), block)


def reference(kind: str) -> tuple[Tensor, dict[str, slice]]:
    """The whole Hessian of the plain mean loss by torch.func, and each parameter's place in it.

    Reverse over reverse: torch.func.hessian, forward over reverse, is wrong for the weight of a LayerNorm.
    """
    module, x, y, loss, _ = make(kind)
    point = point_of(module)
    sizes = [p.numel() for p in point.values()]
    ends = np.cumsum([0, *sizes]).tolist()

    def mean_loss(vector: Tensor) -> Tensor:
        pieces = {n: v.view_as(p) for (n, p), v in zip(point.items(), vector.split(sizes), strict=True)}
        return loss(torch.func.functional_call(module, pieces, (x,)), y)

    whole = torch.func.jacrev(torch.func.grad(mean_loss))(torch.cat([p.reshape(-1) for p in point.values()]))
    assert float((whole - whole.T).abs().max()) <= 1e-13 * float(whole.abs().max())
    return whole, {n: slice(a, b) for n, a, b in zip(point, ends, ends[1:], strict=False)}


def pick(whole: Tensor, at: dict[str, slice], rows: list[str], cols: list[str]) -> Tensor:
    """The block of a whole Hessian over named rows and columns, in their order."""
    return torch.cat([torch.cat([whole[at[r], at[c]] for c in cols], 1) for r in rows])
