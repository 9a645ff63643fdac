"""Theoretical bounds on the saddles of the embedding-coupled MLP (F14)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class SaddleBound:
    """lambda_min(H_[E,W]) >= -sigma_max(G) and saddle index <= d * rank(G) (F14)."""

    sigma_max: float
    rank_bound: int


def saddle_bound(G: Tensor, embed_dim: int) -> SaddleBound:
    """The bound from G = [dL/dT_1^T; ...; dL/dT_s^T], shape (s h, token), for piecewise-linear activations."""
    sigma = torch.linalg.svdvals(G)
    threshold = max(G.shape) * torch.finfo(G.dtype).eps * sigma[0]
    return SaddleBound(float(sigma[0]), embed_dim * int((sigma > threshold).sum()))
