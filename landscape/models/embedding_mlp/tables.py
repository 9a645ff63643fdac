"""The tables T_k = E W_k^T side by side, [T_1 ... T_s] (token, slot hidden): their singular values (F16)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def singular_values(gram: Tensor) -> Tensor:
    """Singular values (..., n), ascending, of matrices with these Gram matrices (..., n, n), as float64.

    NaN for a Gram matrix that is not finite; 0 below 1.5e-8 sqrt(n) of the largest, where they are rounding.
    """
    is_bad = ~gram.isfinite().all(-1).all(-1)
    squared: Tensor = torch.linalg.eigvalsh(gram.masked_fill(is_bad[..., None, None], 0.0))
    return _roots(squared).masked_fill(is_bad[..., None], torch.nan)


def spectrum(E: Tensor, W: Tensor) -> Tensor:
    """Singular values (member, token), ascending, of the tables of E (member, token, d) and W (member, hidden, s d)."""
    # One row a hidden unit and slot; their order changes no singular value.
    W_k = W.double().reshape(len(W), -1, E.shape[2])
    E = E.double()
    return singular_values(E @ (W_k.mT @ W_k) @ E.mT)


def effective_rank(sigma: Tensor) -> Tensor:
    """exp of the entropy of singular values (..., n) as shares of their sum; NaN where all are 0.

    Source: Roy and Vetterli, "The effective rank: a measure of effective dimensionality" (2007).
    """
    found: Tensor = torch.special.entr(sigma / sigma.sum(-1, keepdim=True)).sum(-1).exp()
    return found


def shrink(matrices: Tensor, by: Tensor) -> Tensor:
    """argmin_X |X - Y|_F^2 / 2 + t |X|_* of each matrix Y (..., m, n): its singular values lowered by t, down to 0.

    by: t >= 0 of each matrix, shape (...). Computed in float64 from the n x n Gram matrix; a singular value is right to
    about 1e-16 sigma_max^2 / t. A matrix whose Gram matrix is not finite becomes NaN. Source: Cai, Candes and Shen,
    "A singular value thresholding algorithm for matrix completion" (2010), theorem 2.1.
    """
    t = by[..., None]
    return _rescaled(matrices, lambda sigma: torch.where(sigma > t, 1 - t / sigma, 0.0))


def subgradient(matrices: Tensor) -> Tensor:
    """U V^T of each matrix U S V^T (..., m, n), the subgradient of its nuclear norm that is least in norm.

    Singular values below 1.5e-8 sqrt(n) of the largest count as 0. Computed as in `shrink`.
    """
    return _rescaled(matrices, lambda sigma: torch.where(sigma > 0, 1 / sigma, 0.0))


def _rescaled(matrices: Tensor, factors: Callable[[Tensor], Tensor]) -> Tensor:
    """The matrices with their singular values (..., n), ascending, multiplied by `factors` of them."""
    Y = matrices.double()
    gram = Y.mT @ Y
    is_bad = ~gram.isfinite().all(-1).all(-1)
    squared, right = torch.linalg.eigh(gram.masked_fill(is_bad[..., None, None], 0.0))
    by = factors(_roots(squared)).masked_fill(is_bad[..., None], torch.nan)
    found: Tensor = Y @ (right * by[..., None, :] @ right.mT)
    return found.to(matrices)


def _roots(squared: Tensor) -> Tensor:
    """Singular values (..., n) from the eigenvalues of a Gram matrix in float64, ascending."""
    least = squared.shape[-1] * torch.finfo(squared.dtype).eps * squared[..., -1:]
    return squared.where(squared > least, 0.0).sqrt()
