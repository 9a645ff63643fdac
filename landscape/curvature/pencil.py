"""The leading coupling ratios without matrices: a Davidson method for the pencil of two blocks."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.operators import Operator
from landscape.curvature.solve import Solver

INNER_TOL = 1e-2
"""Relative residual of the inner solves: they only steer the search, and enter the error bars."""
_GUARD = 2
_SMALL = 1e-6
"""Ratios below this share of the largest need only its precision."""
_NEW = 1e-8
"""What of a vector must lie outside a basis for it to be new: less is rounding."""


def leading_ratios(
    A: Solver, B: Operator, C: Solver, k: int, tol: float, seed: int, max_products: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """The k largest singular values of A^(-1/2) B C^(-1/2), their errors, and the products spent.

    Rayleigh-Ritz on bases U and V, orthonormal in the inner products of A and C, so that every value is at most the
    true one; they grow by A^(-1) and C^(-1) applied to the residuals r_1 = B v - kappa A u, r_2 = B^T u - kappa C v.
    Each value is within sqrt((|r_1|^2 in A^(-1) + |r_2|^2 in C^(-1)) / 2) of a true one. That norm is bounded through
    the inner residuals, for A and C above their shift, as they are where the blocks are semidefinite.
    """
    transposed = B.T
    k = min(k, *B.shape)
    width = min(k + _GUARD, *B.shape)
    generator = torch.Generator().manual_seed(seed)
    V = _Basis(C, torch.randn(B.shape[1], width, generator=generator, dtype=torch.float64).to(B.device, B.dtype))
    BV = B @ V.vectors
    U = _Basis(A, A.solve(BV, INNER_TOL)[0])
    # A coupling of low rank leaves room: its other ratios are zeros, and found like the rest.
    spare = torch.randn(B.shape[0], width - U.vectors.shape[1], generator=generator, dtype=torch.float64)
    U.grow(spare.to(V.vectors))
    coupled = V.vectors.shape[1]
    while True:
        left, kappa, right = torch.linalg.svd(U.vectors.T @ BV, full_matrices=False)
        count = min(width, len(kappa))
        kappa = kappa[:count]
        u, v = left[:, :count], right[:count].T
        r_1 = BV @ v - kappa * (U.images @ u)
        r_2 = transposed @ (U.vectors @ u) - kappa * (V.images @ v)
        coupled += count
        squared, corrections = torch.zeros_like(kappa), []
        for solver, residual in ((A, r_1), (C, r_2)):
            w, left_over = solver.solve(residual, INNER_TOL)
            squared += ((residual * w).sum(0) + left_over.square() / solver.shift) / 2
            corrections.append(w)
        errors = squared.clamp(min=0).sqrt()
        open_ = torch.nonzero(errors > tol * kappa.clamp(min=_SMALL * float(kappa[0])))[:, 0]
        products = coupled + A.num_products + C.num_products
        if not bool((open_ < k).any()) or products >= max_products:
            return kappa[:k].double().cpu().numpy(), errors[:k].double().cpu().numpy(), products
        grown = U.grow(corrections[0][:, open_]) + V.grow(corrections[1][:, open_])
        if grown == 0:
            return kappa[:k].double().cpu().numpy(), errors[:k].double().cpu().numpy(), products
        fresh = V.vectors[:, BV.shape[1] :]
        BV = torch.cat([BV, B @ fresh], dim=1)
        coupled += fresh.shape[1]


class _Basis:
    """Vectors orthonormal in the inner product of a solver's operator, with their images."""

    def __init__(self, solver: Solver, start: Tensor) -> None:
        self.solver = solver
        self.vectors, self.images = start[:, :0], start[:, :0]
        self.grow(start)

    def grow(self, x: Tensor) -> int:
        """Add what of x is new; returns how many vectors that is."""
        for _ in range(2):
            before = x.norm(dim=0)
            x = x - self.vectors @ (self.images.T @ x)
            length = x.norm(dim=0)
            x = x[:, length > _NEW * before] / length[length > _NEW * before]
        image = self.solver @ x
        for _ in range(2):
            gram = x.T @ image
            s, R = torch.linalg.eigh((gram + gram.T) / 2)
            kept = s > _NEW * s[-1:]
            scale = R[:, kept] / s[kept].sqrt()
            x, image = x @ scale, image @ scale
        self.vectors = torch.cat([self.vectors, x], dim=1)
        self.images = torch.cat([self.images, image], dim=1)
        return x.shape[1]
