"""Cross-entropy of a linear head whose logits are never all in memory, twice differentiable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from landscape.curvature.arguments import require_count
from landscape.curvature.losses import IGNORED, Evaluation, require_labels
from landscape.errors import ArgumentError

_CHUNK_BYTES = 1 << 26


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int | None = None) -> Tensor:
    """Cross-entropy of logits hidden weight^T for each token, with full relative precision at any loss.

    hidden (..., d), weight (C, d), labels (...) class indices, -100 for tokens whose loss is 0; returns (...). Logits
    exist for `chunk` tokens at a time (default: 64 MiB of them), in the value and in the first and second derivatives,
    which are computed by formula; there is no third. Raises ArgumentError for labels that are not class indices of that
    shape.
    """
    if chunk is None:
        chunk = max(1, _CHUNK_BYTES // (len(weight) * weight.element_size()))
    require_count("chunk", chunk)
    if labels.is_floating_point() or labels.dtype == torch.bool or labels.shape != hidden.shape[:-1]:
        raise ArgumentError(
            f"linear_cross_entropy of hidden states {tuple(hidden.shape)} and labels {tuple(labels.shape)}, "
            f"{labels.dtype}",
            "labels are class indices, integers of shape hidden.shape[:-1]",
        )
    flat = labels.reshape(-1).long()
    kept = flat != IGNORED
    if bool(kept.any()):
        require_labels(flat[kept], len(weight))
    Evaluation.count("none", lambda: float(kept.sum()), kept.numel())
    values: Tensor = _Loss.apply(hidden.reshape(-1, hidden.shape[-1]), weight, flat, chunk)  # type: ignore[no-untyped-call]
    return values.view(labels.shape)


def _pieces(hidden: Tensor, labels: Tensor, chunk: int) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """By chunk: tokens, their hidden states, label indices (n, 1) and which of them count (n, 1), as numbers."""
    for start in range(0, len(hidden), chunk):
        at = slice(start, start + chunk)
        y = labels[at, None]
        yield at, hidden[at], y.clamp(min=0), (y != IGNORED).to(hidden.dtype)


def _residual(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(z) - onehot(y), and softmax(z); what the label lacks to 1 is the sum of the others."""
    p = z.softmax(-1)
    others = p.scatter(-1, y, 0.0)
    return others.scatter(-1, y, -others.sum(-1, keepdim=True)), p


class _Loss(torch.autograd.Function):
    """Losses (n,) of hidden states (n, d) and a weight (C, d)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int) -> Tensor:
        ctx.save_for_backward(hidden, weight, labels)
        ctx.chunk = chunk
        values = [hidden.new_zeros(0)]
        for _, h, y, kept in _pieces(hidden, labels, chunk):
            z = h @ weight.T
            margin = z.scatter(-1, y, -torch.inf).logsumexp(-1, keepdim=True) - z.gather(-1, y)
            soft = (-margin.abs()).exp().log1p() + margin.clamp(min=0)
            values.append((soft * kept)[:, 0])
        return torch.cat(values)

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, labels = ctx.saved_tensors
        return *_Gradient.apply(hidden, weight, scale, labels, ctx.chunk), None, None  # type: ignore[no-untyped-call]


class _Gradient(torch.autograd.Function):
    """Derivatives of sum(scale * losses) by the hidden states and the weight."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, scale: Tensor, labels: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, scale, labels)
        ctx.chunk = chunk
        by_hidden, by_weight = [hidden[:0]], torch.zeros_like(weight)
        for at, h, y, kept in _pieces(hidden, labels, chunk):
            r = _residual(h @ weight.T, y)[0] * (kept * scale[at, None])
            by_hidden.append(r @ weight)
            by_weight = torch.addmm(by_weight, r.T, h)
        return torch.cat(by_hidden), by_weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor, U: Tensor) -> tuple[Tensor | None, ...]:
        """Derivatives of <by_hidden, u> + <by_weight, U> = sum_n scale_n <residual_n, a_n>, a = u W^T + h U^T."""
        hidden, weight, scale, labels = ctx.saved_tensors
        by_hidden, by_scale, by_weight = [hidden[:0]], [scale[:0]], torch.zeros_like(weight)
        for at, h, y, kept in _pieces(hidden, labels, ctx.chunk):
            r, p = _residual(h @ weight.T, y)
            a = u[at] @ weight.T + h @ U.T
            # Relative to the likeliest class's: nothing cancels, at small losses or at large ones.
            a = a - a.gather(-1, p.argmax(-1, keepdim=True))
            by_scale.append(((r * a).sum(-1, keepdim=True) * kept)[:, 0])
            factor = kept * scale[at, None]
            r, s = r * factor, p * (a - (p * a).sum(-1, keepdim=True)) * factor
            by_hidden.append(s @ weight + r @ U)
            by_weight = torch.addmm(torch.addmm(by_weight, s.T, h), r.T, u[at])
        return torch.cat(by_hidden), by_weight, torch.cat(by_scale), None, None
