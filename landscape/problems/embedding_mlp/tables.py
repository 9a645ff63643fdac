"""The tables T_k = E W_k^T side by side, [T_1 ... T_s] (token, slot hidden): their singular values (F16)."""

from __future__ import annotations

import torch
from torch import Tensor


def singular_values(gram: Tensor) -> Tensor:
    """Singular values (..., n), ascending, of matrices with these Gram matrices (..., n, n), as float64.

    NaN for a Gram matrix that is not finite. Below 1.5e-8 of the largest they are rounding.
    """
    is_bad = ~gram.isfinite().all(-1).all(-1)
    squared: Tensor = torch.linalg.eigvalsh(gram.masked_fill(is_bad[..., None, None], 0.0))
    return squared.clamp(min=0).sqrt().masked_fill(is_bad[..., None], torch.nan)


def spectrum(E: Tensor, W: Tensor) -> Tensor:
    """Singular values (member, token), ascending, of the tables of E (member, token, d) and W (member, hidden, s d)."""
    # One row a hidden unit and slot; their order changes no singular value.
    W_k = W.double().view(len(W), -1, E.shape[2])
    E = E.double()
    return singular_values(E @ (W_k.mT @ W_k) @ E.mT)


def effective_rank(sigma: Tensor) -> Tensor:
    """exp of the entropy of singular values (..., n) as shares of their sum; NaN where all are 0.

    Source: Roy and Vetterli, "The effective rank: a measure of effective dimensionality" (2007).
    """
    found: Tensor = torch.special.entr(sigma / sigma.sum(-1, keepdim=True)).sum(-1).exp()
    return found
