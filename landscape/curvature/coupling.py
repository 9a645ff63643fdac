"""The coupling of two parameter blocks: coupling ratios (F0), coupling strength, saddle bound (F14)."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.lanczos import eigsh
from landscape.curvature.operators import Operator


@dataclasses.dataclass(frozen=True)
class CouplingResult:
    """Coupling ratios kappa_1 >= kappa_2 >= ... of two blocks, and how many exceed 1.

    index equals the saddle index of the joint block at the same tolerance (F0); tolerance is the shift tau of
    both diagonal blocks, absolute.
    """

    ratios: NDArray[np.float64]
    index: int
    tolerance: float


def coupling(H_11: Tensor, H_12: Tensor, H_22: Tensor, tolerance: float) -> CouplingResult | None:
    """Singular values of K = (H_11 + tau)^(-1/2) H_12 (H_22 + tau)^(-1/2), by two Cholesky factorisations.

    H_11 (m, m), H_12 (m, n), H_22 (n, n). None where a shifted diagonal block is not positive definite: its own
    negative curvature then leaves K undefined (never with ReLU and a convex loss, F8).
    """
    factors = []
    for block in (H_11, H_22):
        shifted = block.clone()
        shifted.diagonal().add_(tolerance)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if int(failed) != 0:
            return None
        factors.append(factor)
    K = torch.linalg.solve_triangular(factors[0], H_12, upper=False)
    K = torch.linalg.solve_triangular(factors[1], K.T, upper=False).T
    ratios: NDArray[np.float64] = torch.linalg.svdvals(K).cpu().numpy()
    return CouplingResult(ratios, int((ratios > 1).sum()), tolerance)


def coupling_strength(H_12: Operator, norm_1: float, norm_2: float) -> float:
    """|H_12|_2 / sqrt(|H_11|_2 |H_22|_2), to 1e-6; NaN where a diagonal block is zero."""
    diagonal = norm_1 * norm_2
    return spectral_norm(H_12) / diagonal**0.5 if diagonal > 0 else float("nan")


def spectral_norm(op: Operator) -> float:
    """The largest singular value of an operator, by Lanczos on the smaller of A A^T and A^T A."""
    gram = _Gram(op) if op.shape[0] <= op.shape[1] else _Gram(op.T)
    return float(eigsh(gram, 1, which="highest", method="lanczos", tol=1e-6).values[0, 0].clip(0.0) ** 0.5)


class _Gram:
    """A A^T as an operator."""

    def __init__(self, op: Operator) -> None:
        self.op, self.transposed = op, op.T
        self.shape, self.dtype, self.device = (op.shape[0], op.shape[0]), op.dtype, op.device

    def __matmul__(self, vectors: Tensor) -> Tensor:
        return self.op @ (self.transposed @ vectors)


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
