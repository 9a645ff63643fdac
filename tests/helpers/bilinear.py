"""Bilinear least squares, whose critical points and spectra are known."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator

M, K, N = 4, 3, 5


def bilinear(Y: Tensor, weight_decay: float = 0.0) -> Objective:
    """f(W, E) = 1/2 |W E - Y|_F^2 (+ weight_decay/2 |theta|^2), as one sample."""
    half_square = lambda out, target: 0.5 * (out - target).square().flatten(1).sum(1)  # noqa: E731
    model = lambda P, x: (P["W"] @ P["E"])[None]  # noqa: E731
    return Objective(model, torch.zeros(1, 1), Y[None], loss=half_square, weight_decay=weight_decay)


def target(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Y with singular values 3, 2, 1.2, 0.4 and its factors."""
    generator = torch.Generator().manual_seed(seed)
    U = torch.linalg.qr(torch.randn(M, M, generator=generator, dtype=torch.float64))[0]
    V = torch.linalg.qr(torch.randn(N, N, generator=generator, dtype=torch.float64))[0][:, :M]
    s = torch.tensor([3.0, 2.0, 1.2, 0.4], dtype=torch.float64)
    return U @ torch.diag(s) @ V.T, U, s, V


def spectrum(objective: Objective, W: Tensor, E: Tensor) -> np.ndarray:
    H = HessianOperator(objective, {"W": W, "E": E}).dense()
    return torch.linalg.eigvalsh(H).numpy()


def balanced(S: tuple[int, ...], shrink: float = 0.0) -> tuple[Tensor, Tensor, Tensor, np.ndarray]:
    """Y, W, E of the balanced critical point that keeps the singular directions S, and Y's singular values."""
    Y, U, s, V = target()
    kept = list(S)
    root = torch.diag((s[kept] - shrink).sqrt())
    Q = torch.linalg.qr(torch.randn(K, K, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    Q = Q[: len(kept)]
    return Y, U[:, kept] @ root @ Q, Q.T @ root @ V[:, kept].T, s.numpy()


SUBSETS = [S for r in range(K + 1) for S in itertools.combinations(range(M), r)]
