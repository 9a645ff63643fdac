"""The coupling of two parameter blocks: coupling ratios (F0), coupling strength, masses, angles."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.arguments import require_count, require_pair, require_tensor, require_vectors
from landscape.curvature.inertia import FAILURE, TAU_DENSE, TAU_LANCZOS, absolute
from landscape.curvature.lanczos import Method, eigsh, is_dense, operator_norm
from landscape.curvature.operators import (
    MEASURED,
    PROBES,
    MatrixOperator,
    Operator,
    Product,
    coupling_error,
    known_error,
    matrix_of,
    product_error,
    written_out,
)
from landscape.curvature.pencil import leading_ratios, upper_bounds, whitened
from landscape.curvature.solve import Cholesky, ConjugateGradients, Solver
from landscape.curvature.sound import require_finite
from landscape.curvature.vectors import Array, gaussian, probe_bound, to_array
from landscape.errors import ArgumentError, NumericsError
from landscape.results import Curve

_PROBES = 4
_LARGE = 512
"""Order from which an SVD takes much longer than the eigenvalues of a Gram matrix."""


@dataclasses.dataclass(frozen=True, repr=False)
class CouplingResult(Curve):
    """Coupling ratios kappa_1 >= kappa_2 >= ... of two blocks, and how many exceed 1.

    errors: bounds on the error of each as the ratio of its rank; NaN where none is known. distances: a true ratio,
    perhaps of another rank, or zero where the blocks differ in size, is as near as that; matrix-free, rounding enters
    as an estimate with a margin, not as a proved bound, which matters at tau near 1e-12 of the norm. They assume of
    diagonal blocks that are no matrices that these have no eigenvalue below 0: one that is just above -tau can make
    distances, not the ratios' being lower bounds, too small.
    dense: every ratio, with distances equal to errors;
    index_lower <= saddle index of the joint block <= index_upper at the same tolerance (F0), equal where no error can
    change it. lanczos: the leading k; errors are known, but with probability 1e-6, where both diagonal blocks are
    matrices; each ratio is at most the true one of its rank, but for errors of products; index_upper is the smaller
    order, or the sum of the orders of those diagonal blocks that are no matrices, in which conjugate gradients may
    pass negative curvature by. tolerance: the shift tau of both diagonal blocks, absolute.
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
    H_11: Operator,
    H_12: Operator,
    H_22: Operator,
    abs_tau: float | None = None,
    k: int = 10,
    method: Method = "auto",
    rtol: float = 1e-3,
    seed: int = 0,
    max_hvps: int = 3000,
    v0: Tensor | None = None,
) -> CouplingResult:
    """Singular values of K = (H_11 + tau)^(-1/2) H_12 (H_22 + tau)^(-1/2) (F0).

    H_11 (m, m), H_12 (m, n), H_22 (n, n). abs_tau: tau itself; default 1e-8 (dense) or 1e-3 (matrix-free) of the
    joint block's norm. dense (auto: up to 8000 rows in all): every one, by Cholesky factorisations. lanczos: the
    leading k to `rtol`, by conjugate gradients inside. v0: vectors (m + n, j) to begin with, such as the lowest
    eigenvectors of the joint block, where the largest ratios often are. The blocks' errors, as a
    MatrixOperator states them or as their products show them, enter the bounds. Raises NumericsError where a shifted
    diagonal block is not positive definite beyond its error and rounding, or, if it is no matrix, where conjugate
    gradients meet that: its own negative curvature then leaves K undefined (never with ReLU and a convex loss, F8);
    ArgumentError for shapes that do not belong together.
    """
    require_pair(H_11, H_12, H_22, abs_tau)
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
        first, middle, second = written_out(H_11), MatrixOperator(matrix_of(H_12), between), written_out(H_22)
        if tolerance is None:
            tolerance = absolute(None, TAU_DENSE, norm, 4 * max(first.error, second.error, between))
        return _dense(first, middle, second, tolerance, k)
    if tolerance is None:
        tolerance = TAU_LANCZOS * norm
    products = 0 if isinstance(H_12, MatrixOperator) else MEASURED + PROBES + _PROBES
    between += _rounding(H_12, seed)
    solvers: list[Solver] = []
    for H in (H_11, H_22):
        if isinstance(H, MatrixOperator):
            solvers.append(Cholesky(H.symmetric(), tolerance))
        else:
            solvers.append(ConjugateGradients(H, tolerance, max_hvps, product_error(H, seed)))
            products += MEASURED + _PROBES
        solvers[-1].error += _rounding(H, seed)
    error, room = _room(solvers)
    A, C = solvers
    ratios, distances, vectors, used = leading_ratios(A, H_12, C, k, rtol, seed, max_hvps, v0)
    products += used
    moved = _moved(ratios, solvers, between)
    # Residuals are measured in the inverse of blocks that are in error themselves.
    distances = distances * (1 + error / room) + moved
    errors = np.full(len(ratios), np.nan)
    if isinstance(A, Cholesky) and isinstance(C, Cholesky):
        blocks, left = (A, H_12, C), max_hvps - products
        upper, used = upper_bounds(blocks, vectors, ratios, rtol, FAILURE, seed, left)
        products += used
        if upper is not None:
            upper = np.maximum(upper, ratios)
            errors = upper - ratios + _moved(upper, solvers, between)
    lower = int((ratios - moved > 1).sum())
    # Conjugate gradients may never meet a block's negative curvature. By Haynsworth's additivity the index is at most
    # the orders of the blocks that no factorisation proves positive definite; that of the smaller one if none is left.
    unproved = sum(solver.shape[0] for solver in solvers if not isinstance(solver, Cholesky))
    highest = unproved or min(m, n)
    return CouplingResult(ratios, errors, distances, lower, highest, tolerance, products, "lanczos")


def _rounding(op: Operator, seed: int) -> float:
    """What rounding adds to the error of products and of sums over them: 30 eps |A|_F, by `_PROBES` random products."""
    if isinstance(op, MatrixOperator):
        norm = float(op.matrix.norm())
    else:
        X = gaussian(op.shape[1], _PROBES, seed).to(op.device, op.dtype)
        norm = float((op @ X).norm()) / _PROBES**0.5
    return 30 * torch.finfo(op.dtype).eps * norm


def _dense(
    H_11: MatrixOperator, H_12: MatrixOperator, H_22: MatrixOperator, tolerance: float, k: int
) -> CouplingResult:
    """Every ratio, with bounds of all that parts K as computed from the true one.

    Large ones come from the eigenvalues of K K^T, much sooner than from an SVD, wherever that adds no more to the
    errors than those of the blocks do.

    Rounding in K moves no singular value by more than |K - L_1^(-1) H_12 L_2^(-T)| (Weyl), which is bounded by
    probes; nor does that in the SVD. For errors of the blocks see `_moved`.
    """
    first, second = (Cholesky(H, tolerance) for H in (H_11, H_22))
    K = torch.linalg.solve_triangular(first.factor, H_12.matrix, upper=False)
    K = torch.linalg.solve_triangular(second.factor, K.T, upper=False).T
    X = gaussian(K.shape[1], 8).to(K)
    apart = probe_bound(K @ X - whitened(first, H_12, second) @ X)
    solvers = (first, second)
    if min(K.shape) >= _LARGE:
        ratios, rounding = _by_squares(K)
        matters = ratios > 0.5 * min(ratios[min(k, len(ratios)) - 1], 1)
        if (rounding <= _moved(ratios, solvers, H_12.error))[matters].all():
            return _counted(ratios, rounding + apart, solvers, H_12.error, tolerance)
    ratios = to_array(torch.linalg.svdvals(K))
    rounding = np.full(len(ratios), max(K.shape) * torch.finfo(K.dtype).eps * ratios[0])
    return _counted(ratios, rounding + apart, solvers, H_12.error, tolerance)


def _by_squares(K: Tensor) -> tuple[Array, Array]:
    """Singular values by the Gram matrix, and how far rounding in that may have moved each."""
    wide = K if K.shape[0] <= K.shape[1] else K.T
    gram = wide @ wide.T
    X = gaussian(len(gram), 8).to(K)
    squares = to_array(torch.linalg.eigvalsh(gram).flip(0))
    error = probe_bound(gram @ X - wide @ (wide.T @ X)) + len(gram) * torch.finfo(K.dtype).eps * abs(squares[0])
    ratios = np.sqrt(squares.clip(0))
    return ratios, np.maximum(np.sqrt(squares.clip(0) + error) - ratios, ratios - np.sqrt((squares - error).clip(0)))


def _counted(
    ratios: Array, rounding: Array, solvers: Sequence[Solver], between: float, tolerance: float
) -> CouplingResult:
    """The result of ratios that rounding may have moved."""
    errors = rounding + _moved(ratios + rounding, solvers, between)
    lower, upper = (int((ratios + s * errors > 1).sum()) for s in (-1, 1))
    return CouplingResult(ratios, errors, errors, lower, upper, tolerance, 0, "dense")


def _moved(ratios: Array, solvers: Sequence[Solver], between: float) -> Array:
    """How far errors of the diagonal blocks, as they are solved with, and of the block between them move each ratio.

    The ratios are the positive eigenvalues of the pencil M - kappa N with M = [[0, H_12], [H_21, 0]] and N the shifted
    diagonal blocks; by the minimax principle, errors dM and dN move one by at most
    (|dM| + kappa |dN|) / (lambda_min(N) - |dN|). Raises NumericsError where |dN| >= lambda_min(N).
    """
    error, room = _room(solvers)
    moved: Array = (between + ratios * error) / room
    return moved


def _room(solvers: Sequence[Solver]) -> tuple[float, float]:
    """|dN| and lambda_min(N) - |dN| of `_moved`."""
    error = max(solver.error for solver in solvers)
    room = min(solver.floor for solver in solvers) - error
    if not room > 0:
        raise NumericsError(
            f"a diagonal block, known to {error:.1e}, may have eigenvalues below -tau: coupling ratios are undefined",
            f"take a larger tolerance, above {2 * (solvers[0].shift - room):.1e}",
        )
    return error, room


def joint(H_11: Operator, H_12: Operator, H_22: Operator) -> Product:
    """The joint block [[H_11, H_12], [H_12^T, H_22]] of two blocks, with the errors that they state."""
    H_21 = H_12.T
    error = max(known_error(H_11), known_error(H_22)) + known_error(H_12)

    def apply(vectors: Tensor) -> Tensor:
        u, v = vectors.split(list(H_12.shape))
        return torch.cat([H_11 @ u + H_12 @ v, H_21 @ u + H_22 @ v])

    n = sum(H_12.shape)
    return Product(apply, (n, n), H_12.dtype, H_12.device, error)


def coupling_strength(H_12: Operator, norm_1: float, norm_2: float) -> float:
    """|H_12|_2 / sqrt(|H_11|_2 |H_22|_2), to 1e-6; NaN where a diagonal block is zero."""
    # Roots first: the product of two small norms may be 0.
    diagonal = norm_1**0.5 * norm_2**0.5
    return spectral_norm(H_12) / diagonal if diagonal > 0 else float("nan")


def spectral_norm(op: Operator) -> float:
    """The largest singular value of an operator, by Lanczos on the smaller of A A^T and A^T A."""
    A = op if op.shape[0] <= op.shape[1] else op.T
    transposed = A.T
    # A power of two about the norm, which is exact to divide by, keeps the square in range.
    size = float((transposed @ gaussian(A.shape[0], 1).to(A.device, A.dtype)).abs().max())
    require_finite(size)
    scale = 2.0 ** math.frexp(size)[1] if size else 1.0
    gram = Product.square(lambda vectors: A @ ((transposed @ vectors) / scale) / scale, A.shape[0], A)
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
