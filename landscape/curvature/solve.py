"""Linear systems with a shifted block H + tau, which must be positive definite: factorised, or by products alone."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from landscape.curvature.lanczos import Inverse, eigsh
from landscape.curvature.operators import LinearMap
from landscape.errors import NumericsError


class Solver(Protocol):
    """H + tau: products, and approximate solutions with their residuals."""

    shift: float
    num_products: int
    shape: tuple[int, int]

    def __matmul__(self, vectors: Tensor) -> Tensor: ...
    def solve(self, right: Tensor, tol: float) -> tuple[Tensor, Tensor]:
        """x with |right - (H + tau) x| <= tol |right| for each column, and these residual norms (m,)."""
        ...


class Cholesky:
    """H + tau for a dense H. Raises NumericsError unless it is positive definite."""

    def __init__(self, matrix: Tensor, shift: float) -> None:
        self.matrix, self.shift, self.shape = matrix, shift, (len(matrix), len(matrix))
        self.num_products = 0
        shifted = matrix.clone()
        shifted.diagonal().add_(shift)
        self.factor, failed = torch.linalg.cholesky_ex(shifted)
        _require_positive(int(failed) == 0, shift)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        return self.matrix @ vectors + self.shift * vectors

    def solve(self, right: Tensor, tol: float) -> tuple[Tensor, Tensor]:
        """x, exact to rounding."""
        x = Inverse(self.factor) @ right
        return x, (right - self @ x).norm(dim=0)

    def floor(self) -> float:
        """A lower bound of the smallest eigenvalue of H + tau, but with probability 1e-6 (`EigenResult.hidden`)."""
        top = eigsh(Inverse(self.factor), 1, which="highest", method="lanczos", tol=1e-3)
        return float(1 / (top.values[0, 0] + top.hidden[0]))


class ConjugateGradients:
    """H + tau for a matrix-free H, by at most about `max_products` products in all.

    `solve` raises NumericsError where it meets negative curvature.
    """

    def __init__(
        self, op: LinearMap, shift: float, max_products: int | None = None, max_iterations: int = 1000
    ) -> None:
        self.op, self.shift, self.shape = op, shift, op.shape
        self.max_products, self.max_iterations = max_products, max_iterations
        self.num_products = 0

    def __matmul__(self, vectors: Tensor) -> Tensor:
        self.num_products += vectors.shape[1]
        return self.op @ vectors + self.shift * vectors

    def solve(self, right: Tensor, tol: float) -> tuple[Tensor, Tensor]:
        """x for each column, with what is left of the right side; converged columns cost no further products."""
        x, residual, direction = torch.zeros_like(right), right.clone(), right.clone()
        squared = residual.square().sum(0)
        limit = tol**2 * squared
        for _ in range(self.max_iterations):
            active = squared > limit
            is_spent = self.max_products is not None and self.num_products >= self.max_products
            if is_spent or not bool(active.any()):
                break
            p = direction[:, active]
            image = self @ p
            curvature = (p * image).sum(0)
            _require_positive(bool((curvature > 0).all()), self.shift)
            step = squared[active] / curvature
            x[:, active] += step * p
            residual[:, active] -= step * image
            now = residual[:, active].square().sum(0)
            direction[:, active] = residual[:, active] + now / squared[active] * p
            squared[active] = now
        return x, squared.sqrt()


def _require_positive(is_positive: bool, shift: float) -> None:
    if not is_positive:
        raise NumericsError(
            f"a diagonal block has eigenvalues below -tau = {-shift:.3g}, so that coupling ratios are undefined",
            "take a larger tolerance, or look at the saddle index of the joint block alone",
        )
