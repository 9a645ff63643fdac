"""Derivatives of activations and of the softmax without cancellation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def others(p: Tensor, y: Tensor) -> Tensor:
    """1 - p_y of probabilities (N, C) without cancellation: the sum of all others."""
    return p.scatter(1, y[:, None], 0.0).sum(1)


def residuals(p: Tensor, y: Tensor) -> Tensor:
    """p - onehot(y) of probabilities (N, C), the gradient of the loss by the logits, without cancellation."""
    return p.scatter(1, y[:, None], -others(p, y)[:, None])


def softmax_slopes(p: Tensor) -> Tensor:
    """diag(p) - p p^T of probabilities (N, C), (N, C, C), the derivative of the softmax, without cancellation."""
    likeliest = p.argmax(1)
    found = -p[:, :, None] * p[:, None, :]
    rest = (1 - p).scatter(1, likeliest[:, None], others(p, likeliest)[:, None])
    found.diagonal(dim1=1, dim2=2).copy_(p * rest)
    return found


def derivatives(phi: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """phi, phi' and phi'' elementwise."""
    x = x.detach().requires_grad_()
    value = phi(x)
    (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    second = torch.zeros_like(x)
    if first.requires_grad:
        (found,) = torch.autograd.grad(first.sum(), x, allow_unused=True)
        second = second if found is None else found
    return value.detach(), first.detach(), second
