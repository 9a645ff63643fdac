"""How two blocks are coupled: ratios, strengths, the index of the joint block, and the excess over both."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.checks import require_count, require_not_negative, require_tensor, require_vectors
from landscape.curvature.density import quadrature
from landscape.curvature.eigsh import (
    Cholesky,
    ConjugateGradients,
    Method,
    Shifted,
    eigsh,
    is_dense,
    leading,
    operator_norm,
)
from landscape.curvature.inertia import TAU_DENSE, TAU_LANCZOS, Inertia, absolute, bracketed, certified
from landscape.curvature.krylov import TINY
from landscape.curvature.objective import Objective, Parameters, differentiable, gradients
from landscape.curvature.operators import (
    MEASURED,
    PROBES,
    FunctionOperator,
    LinearOperator,
    MatrixOperator,
    coupling_error,
    product_error,
    require_operator,
    require_symmetric,
)
from landscape.curvature.vectors import Array, gaussian, probe_bound, require_finite, seeded, to_array
from landscape.errors import ArgumentError, NumericsError
from landscape.results import Curve, Interval

INNER_TOL = 0.2
"""Relative residual of the inner solves: they only steer the search, and enter the error bars.

More exact ones find less for the same number of products.
"""
_GUARD = 2
_SMALL = 1e-6
"""Ratios below this share of the largest are found to its precision."""


def leading_ratios(
    A: Shifted, B: LinearOperator, C: Shifted, k: int, tol: float, seed: int, max_hvps: int, v0: Tensor | None
) -> tuple[Array, Array, int]:
    """The k largest singular values of A^(-1/2) B C^(-1/2), their errors, and the products spent.

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
        done = not bool((open_ < k).any()) or products >= max_hvps
        if done or U.grow(corrections[0][:, open_]) + V.grow(corrections[1][:, open_]) == 0:
            return to_array(kappa[:k]), to_array(errors[:k]), products
        fresh = V.vectors[:, BV.shape[1] :]
        BV = torch.cat([BV, B @ fresh], dim=1)
        coupled += fresh.shape[1]


def whitened(A: Cholesky, B: LinearOperator, C: Cholesky) -> FunctionOperator:
    """K = L_1^(-1) B L_2^(-T) of two factorised blocks, whose singular values are the coupling ratios."""

    def between(A: Cholesky, B: LinearOperator, C: Cholesky, vectors: Tensor) -> Tensor:
        right = torch.linalg.solve_triangular(C.factor.mT, vectors, upper=True)
        images: Tensor = torch.linalg.solve_triangular(A.factor, B @ right, upper=False)
        return images

    apply, transposed = (functools.partial(between, *blocks) for blocks in ((A, B, C), (C, B.T, A)))
    return FunctionOperator(apply, B.shape, B, transposed=transposed)


def _factorised(
    A: Cholesky, B: LinearOperator, C: Cholesky, k: int, rtol: float, seed: int, max_hvps: int
) -> tuple[Array, Array, Array, int]:
    """The k largest ratios of two factorised blocks, their distances, their upper bounds, and the products spent.

    They are the roots of the leading eigenvalues of K K^T, with the smaller order; the upper bounds hold except with
    the failure probability of `eigsh`.
    """
    K = whitened(A, B, C)
    K = K if K.shape[0] <= K.shape[1] else K.T
    transposed, order = K.T, K.shape[0]
    gram = FunctionOperator(lambda vectors: K @ (transposed @ vectors), (order, order), K)
    apart = coupling_error(K, transposed, seed)
    # Squares have twice the relative error, and what a search may hide is ten times its tolerance.
    eigen = leading(gram, k, 0.1 * rtol, seed, max_hvps // 2)
    squares, residuals = eigen.values[0].clip(0.0), eigen.residuals[0]
    ratios = np.sqrt(squares)
    # A root is no further away than the square divided by it, or than the root of the square's distance.
    distances = np.minimum(np.sqrt(residuals), residuals / np.maximum(ratios, TINY)) + 10 * apart
    products = MEASURED + PROBES + 2 * eigen.num_products
    return ratios, distances, np.sqrt(squares + eigen.hidden[0]) + 10 * apart, products


class _Basis:
    """Orthonormal vectors and their images by a solver's operator.

    Orthonormal in the plain inner product: there, rounding does not depend on how ill-conditioned the operator is, so
    that no vector counts as new twice.
    """

    def __init__(self, solver: Shifted, start: Tensor) -> None:
        self.solver = solver
        self.vectors, self.images = start[:, :0], start[:, :0]
        self.grow(start)

    def grow(self, x: Tensor) -> int:
        """Add the part of x that is new beyond rounding; returns its number of vectors."""
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


_PROBES = 4


@dataclasses.dataclass(frozen=True, repr=False)
class CouplingResult(Curve):
    """Coupling ratios kappa_1 >= kappa_2 >= ... of two blocks, and how many exceed 1.

    Attributes:
        ratios: all of them if dense, else the leading k. Matrix-free each is at most the true one of its rank.
        errors: bounds on the error of each as the ratio of its rank; NaN where none is known.
        distances: how near a true ratio is, perhaps one of another rank. If dense, the same as errors. Matrix-free they
            estimate rounding with a margin, and assume diagonal blocks without eigenvalues between -tau and 0.
        index_lower, index_upper: bounds on the saddle index of the joint block at this tolerance (F0). Matrix-free the
            upper one is the smaller order, or the order of diagonal blocks that are no matrices.
        tolerance: the shift tau of both diagonal blocks, absolute.
        num_products: Hessian-vector products.
        method: "dense" or "lanczos".
    """

    axes = {"ratios": ("rank",), "errors": ("rank",), "distances": ("rank",)}
    x, y, spread, level = "rank", "ratios", "distances", 1.0
    words = {"ratios": "coupling ratio"}

    ratios: Array
    errors: Array
    distances: Array
    index_lower: int
    index_upper: int
    tolerance: float
    num_products: int
    method: str

    @property
    def index(self) -> int:
        """The saddle index of the joint block, -1 where only a bracket is known."""
        return self.index_lower if self.index_lower == self.index_upper else -1


def coupling(
    H_11: LinearOperator,
    H_12: LinearOperator,
    H_22: LinearOperator,
    abs_tau: float | None = None,
    k: int = 10,
    method: Method = "auto",
    rtol: float = 1e-3,
    seed: int = 0,
    max_hvps: int = 3000,
    v0: Tensor | None = None,
) -> CouplingResult:
    """Singular values of K = (H_11 + tau)^(-1/2) H_12 (H_22 + tau)^(-1/2) (F0).

    Args:
        H_11: diagonal block (m, m).
        H_12: off-diagonal block (m, n).
        H_22: diagonal block (n, n).
        abs_tau: tau. Default: 1e-8 (dense) or 1e-3 (matrix-free) of the joint block's norm.
        k: number of leading ratios, if matrix-free.
        method: "dense" gives all of them by Cholesky factorisations; "lanczos" uses conjugate gradients; "auto" is
            dense up to 8000 rows in all.
        rtol: of matrix-free ratios.
        seed: of the random start.
        max_hvps: largest number of products.
        v0: vectors (m + n, j) to start from, such as the lowest eigenvectors of the joint block.

    Returns:
        The ratios with bounds, and how many exceed 1.

    Raises:
        NumericsError: where a shifted diagonal block is not positive definite beyond its error, or conjugate gradients
            meet negative curvature; K is then undefined (never with ReLU and a convex loss, F8).
        ArgumentError: for shapes that do not belong together.
    """
    _require_pair(H_11, H_12, H_22, abs_tau)
    require_count("k", k)
    require_count("max_hvps", max_hvps, 0)
    m, n = H_12.shape
    if v0 is not None:
        require_vectors("v0", v0, m + n)
        v0 = v0.to(H_12.device, H_12.dtype)
    dense = is_dense(method, m + n)
    between = coupling_error(H_12, H_12.T, seed)
    tolerance = abs_tau
    norm = operator_norm(joint(H_11, H_12, H_22), seed=seed) if tolerance is None else 0.0
    if dense:
        first, middle, second = (
            H_11.symmetric().double(),
            MatrixOperator(H_12.dense().double(), between),
            H_22.symmetric().double(),
        )
        if tolerance is None:
            tolerance = absolute(None, TAU_DENSE, norm, 4 * max(first.error, second.error, between))
        return _dense(first, middle, second, tolerance)
    if tolerance is None:
        tolerance = TAU_LANCZOS * norm
    products = 0 if isinstance(H_12, MatrixOperator) else MEASURED + PROBES + _PROBES
    between += _rounding(H_12, seed)
    solvers: list[Shifted] = []
    for H in (H_11, H_22):
        if isinstance(H, MatrixOperator):
            solvers.append(Cholesky(H.symmetric(), tolerance))
        else:
            solvers.append(ConjugateGradients(H, tolerance, max_hvps, product_error(H, seed)))
            products += MEASURED + _PROBES
        solvers[-1].error += _rounding(H, seed)
    error, room = _room(solvers)
    A, C = solvers
    if isinstance(A, Cholesky) and isinstance(C, Cholesky):
        ratios, distances, upper, used = _factorised(A, H_12, C, k, rtol, seed, max_hvps - products)
        errors = upper - ratios + _moved(upper, solvers, between)
        errors[np.isinf(errors)] = np.nan
    else:
        ratios, distances, used = leading_ratios(A, H_12, C, k, rtol, seed, max_hvps, v0)
        errors = np.full(len(ratios), np.nan)
    products += used
    moved = _moved(ratios, solvers, between)
    # Residuals are measured in the inverse of blocks that are in error themselves.
    distances = distances * (1 + error / room) + moved
    lower = int((ratios - moved > 1).sum())
    # Conjugate gradients may never meet a block's negative curvature. By Haynsworth's additivity the index is at most
    # the orders of the blocks that no factorisation proves positive definite; that of the smaller one if none is left.
    unproved = sum(solver.shape[0] for solver in solvers if not isinstance(solver, Cholesky))
    highest = unproved or min(m, n)
    return CouplingResult(ratios, errors, distances, lower, highest, tolerance, products, "lanczos")


def _require_pair(H_11: Any, H_12: Any, H_22: Any, abs_tau: Any) -> None:
    """Raise ArgumentError unless these are two diagonal blocks, what is between them, and a tolerance or None."""
    require_symmetric(H_11)
    require_operator(H_12)
    require_symmetric(H_22)
    shapes = [tuple(H.shape) for H in (H_11, H_12, H_22)]
    if shapes[1] != (shapes[0][0], shapes[2][0]):
        raise ArgumentError(
            f"blocks of shapes {', '.join(map(str, shapes))}",
            "give (m, m), (m, n), (n, n): H.block(first), H.block(first, second), H.block(second)",
        )
    if abs_tau is not None:
        require_not_negative("abs_tau", abs_tau)


def _rounding(op: LinearOperator, seed: int) -> float:
    """What rounding adds to the error of products and of sums over them: 30 eps |A|_F, by `_PROBES` random products."""
    if isinstance(op, MatrixOperator):
        norm = float(op.matrix.norm())
    else:
        X = gaussian(op.shape[1], _PROBES, seed).to(op.device, op.dtype)
        norm = float((op @ X).norm()) / _PROBES**0.5
    return 30 * torch.finfo(op.dtype).eps * norm


def _dense(H_11: MatrixOperator, H_12: MatrixOperator, H_22: MatrixOperator, tolerance: float) -> CouplingResult:
    """Every ratio, with bounds of all that parts K as computed from the true one.

    Rounding in K moves no singular value by more than |K - L_1^(-1) H_12 L_2^(-T)| (Weyl), which is bounded by
    probes; nor does that in the SVD. For errors of the blocks see `_moved`.
    """
    first, second = (Cholesky(H, tolerance) for H in (H_11, H_22))
    K = torch.linalg.solve_triangular(first.factor, H_12.matrix, upper=False)
    K = torch.linalg.solve_triangular(second.factor, K.T, upper=False).T
    X = gaussian(K.shape[1], 8).to(K)
    apart = probe_bound(K @ X - whitened(first, H_12, second) @ X)
    solvers = (first, second)
    ratios = to_array(torch.linalg.svdvals(K))
    rounding = apart + max(K.shape) * torch.finfo(K.dtype).eps * ratios[0]
    errors = rounding + _moved(ratios + rounding, solvers, H_12.error)
    lower, upper = (int((ratios + s * errors > 1).sum()) for s in (-1, 1))
    return CouplingResult(ratios, errors, errors, lower, upper, tolerance, 0, "dense")


def _moved(ratios: Array, solvers: Sequence[Shifted], between: float) -> Array:
    """How far errors of the diagonal blocks, as they are solved with, and of the block between them move each ratio.

    The ratios are the positive eigenvalues of the pencil M - kappa N with M = [[0, H_12], [H_21, 0]] and N the shifted
    diagonal blocks; by the minimax principle, errors dM and dN move one by at most
    (|dM| + kappa |dN|) / (lambda_min(N) - |dN|). Raises NumericsError where |dN| >= lambda_min(N).
    """
    error, room = _room(solvers)
    moved: Array = (between + ratios * error) / room
    return moved


def _room(solvers: Sequence[Shifted]) -> tuple[float, float]:
    """|dN| and lambda_min(N) - |dN| of `_moved`."""
    error = max(solver.error for solver in solvers)
    room = min(solver.floor for solver in solvers) - error
    if not room > 0:
        raise NumericsError(
            f"a diagonal block, known to {error:.1e}, may have eigenvalues below -tau: coupling ratios are undefined",
            f"take a larger tolerance, above {2 * (solvers[0].tau - room):.1e}",
        )
    return error, room


def joint(H_11: LinearOperator, H_12: LinearOperator, H_22: LinearOperator) -> FunctionOperator:
    """The joint block [[H_11, H_12], [H_12^T, H_22]] of two blocks, with the errors that they state."""
    H_21 = H_12.T
    error = max(H_11.error, H_22.error) + H_12.error

    def apply(vectors: Tensor) -> Tensor:
        u, v = vectors.split(list(H_12.shape))
        return torch.cat([H_11 @ u + H_12 @ v, H_21 @ u + H_22 @ v])

    n = sum(H_12.shape)
    return FunctionOperator(apply, (n, n), H_12, error)


def coupling_strength(H_12: LinearOperator, norm_1: float, norm_2: float) -> float:
    """|H_12|_2 / sqrt(|H_11|_2 |H_22|_2), to 1e-6; NaN where a diagonal block is zero."""
    # Roots first: the product of two small norms may be 0.
    diagonal = norm_1**0.5 * norm_2**0.5
    return spectral_norm(H_12) / diagonal if diagonal > 0 else float("nan")


def spectral_norm(op: LinearOperator) -> float:
    """The largest singular value of an operator, by Lanczos on the smaller of A A^T and A^T A."""
    A = op if op.shape[0] <= op.shape[1] else op.T
    transposed = A.T
    # A power of two about the norm, which is exact to divide by, keeps the square in range.
    size = float((transposed @ gaussian(A.shape[0], 1).to(A.device, A.dtype)).abs().max())
    require_finite(size)
    scale = 2.0 ** math.frexp(size)[1] if size else 1.0
    order = A.shape[0]
    gram = FunctionOperator(lambda vectors: A @ ((transposed @ vectors) / scale) / scale, (order, order), A)
    return scale * float(eigsh(gram, 1, which="highest", method="lanczos", rtol=1e-6).values[0, 0].clip(0.0) ** 0.5)


def masses(vectors: Tensor, sizes: Sequence[int]) -> Array:
    """Share of each unit vector, the columns of (n, m), on consecutive parts of `sizes` rows: (part, m)."""
    shares = [piece.square().sum(0) for piece in vectors.split(list(sizes))]
    return to_array(torch.stack(shares))


def principal_angles(vectors: Tensor, sizes: Sequence[int]) -> Array:
    """Principal angles, ascending, in rad, between the span of orthonormal columns (n, m) and each part's axes.

    (part, m), for consecutive parts of `sizes` rows. 0: the part holds a direction of the subspace; pi/2: it holds
    none. A part of fewer rows than columns has only as many angles; the rest are pi/2. Raises ArgumentError for columns
    that are not orthonormal to 1e-4, and for sizes that do not sum to n.
    """
    require_tensor("vectors", vectors)
    if vectors.ndim != 2 or min(sizes, default=0) < 0 or sum(sizes) != len(vectors):
        raise ArgumentError(
            f"parts of {list(sizes)} rows of vectors {tuple(vectors.shape)}", f"give sizes that sum to {len(vectors)}"
        )
    if not bool((vectors.mT @ vectors - torch.eye(vectors.shape[1]).to(vectors)).norm() <= 1e-4):
        raise ArgumentError("the columns are not orthonormal", "give torch.linalg.qr(vectors).Q")
    m = vectors.shape[1]
    cosines = np.zeros((len(sizes), m))
    for i, piece in enumerate(vectors.split(list(sizes))):
        s = to_array(torch.linalg.svdvals(piece))
        cosines[i, : len(s)] = s
    angles: Array = np.arccos(cosines.clip(0, 1))
    return angles


_LEVELS = ("vanished", "estimated", "bracketed", "certified")


@dataclasses.dataclass(frozen=True, repr=False)
class Excess(Interval):
    """n_-(H_[1,2]) - n_-(H_11) - n_-(H_22), all of them counts below the same -tolerance.

    Attributes:
        lower, upper: bounds on the excess index.
        level: that of the least known of the three indices.
        failure_probability: probability that a bound fails.
        tolerance: tau, absolute.
        estimate, estimate_low, estimate_high: from stochastic counts, with an interval of at least 85 % confidence; NaN
            if certified.
    """

    interval = ("estimate", "lower", "upper")

    lower: int
    upper: int
    level: str
    failure_probability: float
    tolerance: float
    estimate: float = np.nan
    estimate_low: float = np.nan
    estimate_high: float = np.nan

    @property
    def index(self) -> int | None:
        """The excess index, None where only a bracket is known."""
        return self.lower if self.lower == self.upper else None


def excess_index(
    H_11: LinearOperator,
    H_12: LinearOperator,
    H_22: LinearOperator,
    abs_tau: float | None = None,
    method: Method = "auto",
    seed: int = 0,
    max_hvps: int = 3000,
) -> Excess:
    """The excess index of two blocks, whatever their own curvature.

    Args:
        H_11: diagonal block (m, m).
        H_12: off-diagonal block (m, n).
        H_22: diagonal block (n, n).
        abs_tau: tau. Default: 1e-8 (dense) or 1e-3 (matrix-free) of the joint block's norm.
        method: "dense" is certified by three LDL^T factorisations; "lanczos" gives brackets and estimates; "auto" is
            dense up to 8000 rows in all.
        seed: of the random vectors.
        max_hvps: products for each of the three blocks.

    Returns:
        The index, or bounds on it, with its level.

    Raises:
        NumericsError: if tau is not above the error of a block.
        ArgumentError: for shapes that do not belong together.
    """
    _require_pair(H_11, H_12, H_22, abs_tau)
    require_count("max_hvps", max_hvps, 0)
    m, n = H_12.shape
    dense = is_dense(method, m + n)
    blocks: list[LinearOperator] = [joint(H_11, H_12, H_22), H_11, H_22]
    if dense:
        first, second, B = H_11.symmetric().double(), H_22.symmetric().double(), H_12.dense().double()
        whole = torch.cat([torch.cat([first.matrix, B], 1), torch.cat([B.T, second.matrix], 1)])
        error = max(first.error, second.error) + coupling_error(H_12, H_12.T, seed)
        blocks = [MatrixOperator(whole, error), first, second]
    norms = [operator_norm(block, seed=seed) for block in blocks]
    tolerance = abs_tau
    if tolerance is None:
        tolerance = (TAU_DENSE if dense else TAU_LANCZOS) * norms[0]
    counted = []
    for block, norm in zip(blocks, norms, strict=True):
        if isinstance(block, MatrixOperator):
            counted.append(certified(block.matrix, tolerance, norm, block.error, negative_only=True))
        else:
            eigen = eigsh(block, 10, method="lanczos", seed=seed, max_hvps=max_hvps)
            rule = quadrature(block, seed=seed)
            counted.append(bracketed(block, eigen, rule, seed=seed, max_hvps=max_hvps, tolerance=tolerance))
    return combined(counted[0], counted[1], counted[2], (m, n))


def combined(joint: Inertia, first: Inertia, second: Inertia, sizes: tuple[int, int]) -> Excess:
    """The excess index from indices or brackets of them at one tolerance.

    sizes: m and n. The bounds use, besides the brackets, that the joint block has at least the larger index of the two,
    and at most that of either with all directions of the other (Cauchy; docs/curvature.md). Raises ArgumentError for
    different tolerances.
    """
    tolerances = [inertia.tolerance for inertia in (joint, first, second) if inertia.upper > 0]
    if tolerances and max(tolerances) > min(tolerances) * (1 + 1e-9):
        raise ArgumentError(f"indices at tolerances {tolerances}", "count all three below the same -tau, absolute")
    m, n = sizes
    a, c = min(first.upper, joint.upper), min(second.upper, joint.upper)
    lower = max(joint.lower, a, c) - a - c
    a, c = first.lower, second.lower
    upper = min(joint.upper - a - c, m - a, n - c)
    level = min((inertia.level for inertia in (joint, first, second)), key=_LEVELS.index)
    failure = min(1.0, sum(inertia.failure_probability for inertia in (joint, first, second)))
    if level == "certified":
        return Excess(lower, upper, level, failure, joint.tolerance)
    (value, low, high), *parts = map(_estimated, (joint, first, second))
    value -= sum(part[0] for part in parts)
    low, high = low - sum(part[2] for part in parts), high - sum(part[1] for part in parts)
    estimates = (float(np.clip(x, lower, upper)) for x in (value, low, high))
    return Excess(lower, upper, level, failure, joint.tolerance, *estimates)


def _estimated(inertia: Inertia) -> tuple[float, float, float]:
    """An index with its interval: exact where it is known, else as it is estimated, or the bracket."""
    if inertia.lower == inertia.upper:
        return inertia.lower, inertia.lower, inertia.lower
    if inertia.estimate is None:
        return (inertia.lower + inertia.upper) / 2, inertia.lower, inertia.upper
    return inertia.estimate.value, inertia.estimate.low, inertia.estimate.high


_CONVEXITY_HVPS = 40
_CONVEX = 1e-8


@differentiable
def require_convex(objective: Objective, params: Parameters) -> None:
    """Raise ArgumentError for a loss with negative curvature in its outputs, as they are at `params`.

    Lanczos in the space of the outputs, chunk by chunk: one forward pass and some 40 products with the loss alone,
    none for `cross_entropy` and `mse`. Negative curvature that is found is proved; some that is rare among random
    directions may be missed.
    """
    if objective.has_convex_loss:
        return
    for outputs, loss in objective.chunks():
        with torch.no_grad():
            at = outputs(params)
        curvature = _OutputHessian(loss, at)
        eigen = eigsh(curvature, 1, "lowest", "lanczos", max_hvps=_CONVEXITY_HVPS)
        lowest = float(eigen.values[0, 0])
        if lowest < -_CONVEX * eigen.operator_norm:
            raise ArgumentError(
                f"the loss is not convex in the outputs: curvature {lowest:.2e} beside {eigen.operator_norm:.2e}",
                "its Gauss-Newton matrix has negative curvature of its own; look at the excess index instead",
            )


class _OutputHessian(LinearOperator):
    """d2 loss / d outputs2 of a chunk."""

    def __init__(self, loss: Callable[[Tensor], Tensor], outputs: Tensor) -> None:
        self._at = outputs.detach().requires_grad_()
        (self._slope,) = gradients(loss(self._at), [self._at], create_graph=True)
        self.shape, self.dtype, self.device = (outputs.numel(), outputs.numel()), outputs.dtype, outputs.device

    def _matmat(self, vectors: Tensor) -> Tensor:
        images = [gradients(self._slope, [self._at], v.view_as(self._at), keep=True)[0] for v in vectors.T.contiguous()]
        return torch.stack([image.reshape(-1) for image in images], 1)
