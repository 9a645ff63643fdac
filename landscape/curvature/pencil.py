"""The leading coupling ratios without matrices: a Davidson method for the pencil of two blocks, and upper bounds."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.complement import unseen
from landscape.curvature.operators import MEASURED, PROBES, Operator, Product, coupling_error
from landscape.curvature.solve import Cholesky, Solver
from landscape.curvature.vectors import Array, gaussian, seeded, to_array

Blocks = tuple[Cholesky, Operator, Cholesky]
INNER_TOL = 0.2
"""Relative residual of the inner solves: they only steer the search, and enter the error bars.

More exact ones find less for the same number of products.
"""
_GUARD = 2
_SMALL = 1e-6
"""Ratios below this share of the largest are found to its precision."""


def leading_ratios(
    A: Solver, B: Operator, C: Solver, k: int, tol: float, seed: int, max_products: int, v0: Tensor | None
) -> tuple[Array, Array, Tensor, int]:
    """The k largest singular values of A^(-1/2) B C^(-1/2), their errors, right vectors, and the products spent.

    Rayleigh-Ritz on orthonormal bases U and V with the Gram matrices that their products show, so that every value is
    at most the true one; they grow by A^(-1) and C^(-1) applied to the residuals r_1 = B v - kappa A u and
    r_2 = B^T u - kappa C v. Each value is within sqrt((|r_1|^2 in A^(-1) + |r_2|^2 in C^(-1)) / 2) of a true one. That
    norm is bounded through the inner residuals, for A and C above their floors: proved by a factorisation, or else the
    shift, as where the blocks are semidefinite. All this holds for exact products: for their errors and rounding see
    `coupling`. v0: joint vectors (m + n, j) whose parts the bases begin with.
    """
    transposed = B.T
    k = min(k, *B.shape)
    width = min(k + _GUARD, *B.shape)
    generator = seeded(seed)
    random = gaussian(B.shape[1], width, generator).to(B.device, B.dtype)
    first, second = (random.new_zeros(n, 0) for n in B.shape) if v0 is None else v0.split(list(B.shape))
    U, V = _Basis(A, first), _Basis(C, second)
    V.grow(random)
    BV = B @ V.vectors
    U.grow(A.solve(BV[:, -width:], INNER_TOL)[0])
    # For a coupling of low rank the other ratios are zeros, found like the rest.
    U.grow(gaussian(B.shape[0], max(width - U.vectors.shape[1], 0), generator).to(V.vectors))
    coupled = V.vectors.shape[1]
    while True:
        white_u, white_v = U.whitening(), V.whitening()
        left, kappa, right = torch.linalg.svd(white_u.T @ (U.vectors.T @ BV) @ white_v, full_matrices=False)
        count = min(width, len(kappa))
        kappa = kappa[:count]
        u, v = white_u @ left[:, :count], white_v @ right[:count].T
        r_1 = BV @ v - kappa * (U.images @ u)
        r_2 = transposed @ (U.vectors @ u) - kappa * (V.images @ v)
        coupled += count
        squared, corrections = torch.zeros_like(kappa), []
        for solver, residual in ((A, r_1), (C, r_2)):
            w, left_over = solver.solve(residual, INNER_TOL)
            squared += ((residual * w).sum(0) + left_over.square() / solver.floor) / 2
            corrections.append(w)
        errors = squared.clamp(min=0).sqrt()
        open_ = torch.nonzero(errors > tol * kappa.clamp(min=_SMALL * float(kappa[0])))[:, 0]
        products = coupled + A.num_products + C.num_products
        vectors = V.vectors @ v
        done = not bool((open_ < k).any()) or products >= max_products
        if done or U.grow(corrections[0][:, open_]) + V.grow(corrections[1][:, open_]) == 0:
            return to_array(kappa[:k]), to_array(errors[:k]), vectors, products
        fresh = V.vectors[:, BV.shape[1] :]
        BV = torch.cat([BV, B @ fresh], dim=1)
        coupled += fresh.shape[1]


def whitened(A: Cholesky, B: Operator, C: Cholesky) -> Product:
    """K = L_1^(-1) B L_2^(-T) of two factorised blocks, whose singular values are the coupling ratios."""

    def apply(vectors: Tensor) -> Tensor:
        right = torch.linalg.solve_triangular(C.factor.mT, vectors, upper=True)
        found: Tensor = torch.linalg.solve_triangular(A.factor, B @ right, upper=False)
        return found

    return Product(apply, B.shape, B.dtype, B.device)


def upper_bounds(
    blocks: Blocks, vectors: Tensor, ratios: Array, tol: float, failure: float, seed: int, max_products: int
) -> tuple[Array | None, int]:
    """Upper bounds of the leading ratios, except with probability `failure`, and the products spent.

    vectors: right vectors found, of which Q = L_2^T vectors is a basis. A random Lanczos run shows |K y| <= s for unit
    y orthogonal to Q, with s just above the last ratio found (Kuczynski & Wozniakowski 1992); None if it does not.
    Then as many squares of ratios exceed mu > s^2 as eigenvalues of T + R^T R / (mu - s^2) do, at most, with
    T = Q^T K^T K Q and R = (1 - Q Q^T) K^T K Q (Haynsworth).
    """
    A, B, C = blocks
    K, transposed = whitened(A, B, C), whitened(C, B.T, A)
    Q = torch.linalg.qr(C.factor.mT @ vectors)[0]
    minus_gram = Product.square(lambda y: -(transposed @ (K @ y)), K.shape[1], K)
    s = max((1 + tol) * float(ratios[-1]), _SMALL * float(ratios[0])) ** 2
    apart = 10 * coupling_error(K, transposed, seed)
    is_shown, steps = unseen(minus_gram, Q, s, failure, (max_products - 2 * Q.shape[1] - MEASURED - PROBES) // 2, seed)
    products = MEASURED + PROBES + 2 * steps
    if not is_shown:
        return None, products
    image = -(minus_gram @ Q)
    T = Q.T @ image
    R = image - Q @ T
    T, squared = (to_array((X + X.T) / 2) for X in (T, R.T @ R))
    rounding = 10 * len(Q) ** 0.5 * torch.finfo(Q.dtype).eps * float(ratios[0]) ** 2
    theta, reach = np.linalg.eigvalsh(T)[::-1], float(np.linalg.eigvalsh(squared)[-1].clip(0)) ** 0.5
    found = np.empty(len(ratios))
    for i in range(len(ratios)):
        low = max(theta[i], s)
        high = low + reach
        for _ in range(50):
            middle = (low + high) / 2
            more = middle > s and (np.linalg.eigvalsh(T + squared / (middle - s)) > middle).sum() <= i
            low, high = (low, middle) if more else (middle, high)
        found[i] = (high + rounding) ** 0.5 + apart
    return found, products + 2 * Q.shape[1]


class _Basis:
    """Orthonormal vectors and their images by a solver's operator.

    Orthonormal in the plain inner product: there, rounding does not depend on how ill-conditioned the operator is, so
    that no vector is taken for new twice.
    """

    def __init__(self, solver: Solver, start: Tensor) -> None:
        self.solver = solver
        self.vectors, self.images = start[:, :0], start[:, :0]
        self.grow(start)

    def grow(self, x: Tensor) -> int:
        """Add what of x is new beyond rounding; returns how many vectors that is."""
        new = torch.finfo(x.dtype).eps ** 0.5
        x = x[:, x.norm(dim=0) > 0]
        for _ in range(3):
            x = x / x.norm(dim=0)
            x = x - self.vectors @ (self.vectors.T @ x)
            left, s, right = torch.linalg.svd(x, full_matrices=False)
            # The nearest orthonormal columns: of equal singular values, rounding alone would choose the vectors.
            x = left @ right if (s > new).all() else left[:, s > new]
        self.vectors = torch.cat([self.vectors, x], dim=1)
        self.images = torch.cat([self.images, self.solver @ x], dim=1)
        return x.shape[1]

    def whitening(self) -> Tensor:
        """W with W^T G W = 1 for the Gram matrix G of the vectors in the operator's inner product.

        Eigenvalues of G below the operator's floor are rounding; to raise them to it is true, and lowers the ratios.
        """
        gram = self.vectors.T @ self.images
        s, R = torch.linalg.eigh((gram + gram.T) / 2)
        white: Tensor = R / s.clamp(min=self.solver.floor).sqrt()
        return white
