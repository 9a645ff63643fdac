"""Linear systems with a positive definite shifted block H + tau: by factorisation, or matrix-free."""

from __future__ import annotations

import functools
from typing import cast

import torch
from torch import Tensor

from landscape.curvature.ends import inverse
from landscape.curvature.lanczos import eigsh
from landscape.curvature.operators import LinearMap, MatrixOperator
from landscape.curvature.sound import require_range
from landscape.curvature.vectors import column_norms, gaussian, probe_bound
from landscape.errors import NumericsError

_ITERATIONS = 1000
"""Most steps of conjugate gradients for one right-hand side."""


class Cholesky:
    """L L^T = H + tau for a dense H. Raises NumericsError unless it is positive definite."""

    def __init__(self, H: MatrixOperator, shift: float) -> None:
        self.matrix, self.shift, self.shape = H.matrix, shift, H.shape
        self.num_products = 0
        require_range(float((H.matrix.diagonal() + shift).abs().max()), H.dtype)
        factor = shifted_factor(self.matrix, shift)
        _require_positive(factor is not None, shift)
        self.factor = cast(Tensor, factor)
        self._rounding = _backward_error(self.matrix, shift, self.factor)
        self.error = H.error + self._rounding

    @functools.cached_property
    def floor(self) -> float:
        """Proved by a factorisation of its own, of H + tau - floor."""
        floor = 0.97 / eigsh(inverse(self.factor), 1, which="highest", method="lanczos", rtol=1e-2).operator_norm
        for _ in range(4):
            factor = shifted_factor(self.matrix, self.shift - floor)
            if factor is not None:
                return floor - self._rounding - _backward_error(self.matrix, self.shift - floor, factor)
            floor /= 2
        return 0.0

    def __matmul__(self, vectors: Tensor) -> Tensor:
        return self.matrix @ vectors + self.shift * vectors

    def solve(self, right: Tensor, tol: float) -> tuple[Tensor, Tensor]:
        """x for each column, exact to rounding, and |right - (H + tau) x| (m,)."""
        x = inverse(self.factor) @ right
        return x, column_norms(right - self @ x)


class ConjugateGradients:
    """H + tau for a matrix-free H without negative curvature, by at most about `max_products` products in all.

    error: of the products of H. floor: the shift, on trust that H is semidefinite. `solve` raises NumericsError where
    it meets negative curvature.
    """

    def __init__(self, op: LinearMap, shift: float, max_products: int | None = None, error: float = 0.0) -> None:
        self.op, self.shift, self.floor, self.error, self.shape = op, shift, shift, error, op.shape
        self.max_products, self.num_products = max_products, 0

    def __matmul__(self, vectors: Tensor) -> Tensor:
        self.num_products += vectors.shape[1]
        return self.op @ vectors + self.shift * vectors

    def solve(self, right: Tensor, tol: float) -> tuple[Tensor, Tensor]:
        """x with |right - (H + tau) x| <= tol |right| for each column, and these residual norms (m,).

        Converged columns cost no further products.
        """
        x, left_over = torch.zeros_like(right), column_norms(right)
        limit = tol * left_over
        open_ = torch.nonzero(left_over > limit)[:, 0]
        # Open columns alone are kept at hand: picking them from all at every step would take as long as the products.
        residual, squared = right[:, open_], left_over[open_].square()
        solution, direction = torch.zeros_like(residual), residual.clone()
        for _ in range(_ITERATIONS):
            is_spent = self.max_products is not None and self.num_products >= self.max_products
            if is_spent or len(open_) == 0:
                break
            image = self @ direction
            curvature = (direction * image).sum(0)
            _require_positive(bool((curvature > 0).all()), self.shift)
            step = squared / curvature
            solution.addcmul_(step, direction)
            residual.addcmul_(step, image, value=-1)
            now = residual.square().sum(0)
            direction.mul_(now / squared).add_(residual)
            squared, left_over[open_] = now, now.sqrt()
            go_on = left_over[open_] > limit[open_]
            if not bool(go_on.all()):
                x[:, open_] = solution
                open_, squared = open_[go_on], squared[go_on]
                solution, residual, direction = (v[:, go_on] for v in (solution, residual, direction))
        x[:, open_] = solution
        return x, left_over


Solver = Cholesky | ConjugateGradients
"""H + tau: products, and approximate solutions with their residuals.

error: how far it may be, in norm, from the true H + tau; floor: a lower bound of its own spectrum.
"""


def shifted_factor(matrix: Tensor, shift: float) -> Tensor | None:
    """The Cholesky factor of H + shift; None unless it is positive definite."""
    # LAPACK takes columns: the transpose of a copy by rows can be factorised in place.
    factor = matrix.clone(memory_format=torch.contiguous_format).mT
    factor.diagonal().add_(shift)
    failed = torch.empty((), dtype=torch.int32, device=matrix.device)
    torch.linalg.cholesky_ex(factor, out=(factor, failed))
    return factor if int(failed) == 0 else None


def _backward_error(matrix: Tensor, shift: float, factor: Tensor) -> float:
    """A bound of |L L^T - (H + shift)| in norm, from eight Gaussian probes."""
    X = gaussian(len(matrix), 8).to(matrix)
    return probe_bound(factor @ (factor.T @ X) - matrix @ X - shift * X)


def _require_positive(is_positive: bool, shift: float) -> None:
    if not is_positive:
        raise NumericsError(
            f"a diagonal block has eigenvalues below -tau = {-shift:.3g}, so that coupling ratios are undefined",
            "take a larger tolerance, or look at the saddle index of the joint block alone",
        )
