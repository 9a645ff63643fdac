"""Functions whose derivatives by autograd are not theirs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class OnceSquare(torch.autograd.Function):
    """z^2 with a backward that has no derivative."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z**2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


class KeptSquare(torch.autograd.Function):
    """z^2 with a backward whose slope is a constant to autograd."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.slope = 2 * z.detach()
        return z**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return ctx.slope * g


def straight_through(z: Tensor) -> Tensor:
    return z + (z.round() - z).detach()
