"""Eigenvalues at the ends of a spectrum, dense, by Lanczos or by shift and invert, with bounds on what is missed."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.checks import require_choice, require_count, require_positive, require_vectors
from landscape.curvature.krylov import (
    ENDS,
    HIDDEN,
    HIDDEN_FAILURE,
    RandomRun,
    Search,
    Which,
    kuczynski_wozniakowski,
)
from landscape.curvature.operators import (
    MEASURED,
    UNDERFLOW,
    FunctionOperator,
    LinearOperator,
    MatrixOperator,
    Sound,
    product_error,
    require_symmetric,
)
from landscape.curvature.rounding import RUNS, rounding_change
from landscape.curvature.solve import conjugate_gradients
from landscape.curvature.vectors import (
    Array,
    column_norms,
    gaussian,
    inner,
    probe_bound,
    require_range,
    seeded,
    to_array,
)
from landscape.errors import ArgumentError, NumericsError, kind_of
from landscape.results import Curve

Method = Literal["auto", "dense", "lanczos"]
DENSE_LIMIT = 8000
SMALL = 256
"""Order up to which all eigenvectors are as fast as a few."""
_NORM_PRODUCTS = 3000
"""Products after which a norm is taken as it is: noise as large as the tolerance leaves residuals that never fall."""


@dataclasses.dataclass(frozen=True, repr=False)
class EigenResult(Curve):
    """Extreme eigenpairs of a symmetric operator, outermost first.

    `end` has one entry for "lowest" or "highest", and two, lowest and highest, for "both".

    Attributes:
        values: eigenvalues (end, k).
        vectors: unit eigenvectors (end, n, k).
        residuals: |Hv - lambda v|_2 (end, k), recomputed at the end. Matrix-free they include what rounding may have
            changed in Hv.
        converged: (end, k); whether the residual is small enough, and a random search of the complement of all vectors
            converged and showed no pair that belongs among them.
        num_products: Hessian-vector products.
        method: "dense" or "lanczos".
        ritz: every eigenvalue if dense, else every eigenvalue of the last projection, ascending.
        operator_norm: max |ritz|.
        orthonormality: max |V^T V - I| of the vectors.
        tol: the relative residual that counted as converged.
        hidden: (end,); the i-th value is within this of the i-th eigenvalue, copies counted, except with probability
            hidden_failure_probability. 0 if dense; infinite if max_hvps left none for the complement. Where converged
            in float64 it is at most 1e-3 |H|, or 10 tol |H| if that is larger.
        hidden_failure_probability: probability that `hidden` fails.
        error: of an assembled matrix; eigenvalues are right to residual + error.
        which: the ends.
    """

    axes = {
        "values": ("end", "rank"),
        "vectors": ("end", "row", "rank"),
        "residuals": ("end", "rank"),
        "converged": ("end", "rank"),
        "hidden": ("end",),
        "ritz": ("ritz_rank",),
    }
    x, y, by, spread = "rank", "values", "end", "residuals"
    words = {"values": "eigenvalue"}

    values: Array
    vectors: Tensor
    residuals: Array
    converged: NDArray[np.bool_]
    num_products: int
    method: str
    ritz: Array
    operator_norm: float
    orthonormality: float
    tol: float
    hidden: Array
    hidden_failure_probability: float
    error: float = 0.0
    which: Which = "both"

    def _labels(self) -> Mapping[str, Sequence[str]]:
        return {"end": list(ENDS[self.which])}

    def clusters(self, end: int, gap: float = 1e-6) -> list[tuple[float, int]]:
        """Eigenvalues of one end with their multiplicities, outermost first.

        Args:
            end: row in `values`.
            gap: eigenvalues further apart than gap |H| are in different clusters.

        Returns:
            The mean and the multiplicity of each cluster; the last one may continue beyond the k values.
        """
        values = self.values[end]
        cuts = np.flatnonzero(np.abs(np.diff(values)) > gap * self.operator_norm) + 1
        return [(float(group.mean()), len(group)) for group in np.split(values, cuts)]


def eigsh(
    op: LinearOperator,
    k: int,
    which: Which = "both",
    method: Method = "auto",
    rtol: float = 1e-6,
    seed: int = 0,
    v0: Tensor | None = None,
    max_hvps: int = 3000,
) -> EigenResult:
    """The k lowest and/or k highest eigenvalues of a symmetric operator, by thick-restart Lanczos or as a dense matrix.

    Args:
        op: the operator (n, n).
        k: eigenvalues at each end, at most n.
        which: "both", "lowest" or "highest".
        method: "dense", "lanczos" or "auto", which is dense up to 8000 rows.
        rtol: a pair is converged once its residual is at most rtol |H|, at least 10 sqrt(n) eps |H|, and a search of
            the complement of all vectors shows no other pair among the k.
        seed: of the random start.
        v0: where to start instead: vectors (n, m), or the vectors (end, n, m) of a neighbouring checkpoint.
        max_hvps: products after which the search ends and reports what has converged.

    Returns:
        Eigenpairs with residuals, and a bound on what may have been missed.

    Raises:
        ArgumentError: for an operator that is rectangular or an off-diagonal block.
    """
    require_symmetric(op)
    require_count("k", k)
    require_choice("which", which, get_args(Which))
    require_positive("rtol", rtol)
    require_count("max_hvps", max_hvps, 0)
    if v0 is not None:
        require_vectors("v0", v0, op.shape[0], "end")
    n = op.shape[0]
    k = min(k, n)
    tol = _reachable(rtol, op)
    if is_dense(method, n):
        H = op.symmetric().double()
        ritz, low, high = _dense(H.matrix, k)
        require_range(float(np.abs(ritz).max()), op.dtype)
        return _result(H, which, k, tol, ritz, low, high, error=H.error)
    is_matrix, op = isinstance(op, MatrixOperator), Sound(op)
    search = Search(op, k, which, tol, seed, max_hvps)
    low, high = search.run(v0)
    return _result(op, which, k, tol, search.krylov.theta, low, high, search, op.error, is_matrix)


def _reachable(rtol: float, op: LinearOperator) -> float:
    """A relative residual, or the smallest that rounding in products leaves."""
    return float(max(rtol, 10 * op.shape[0] ** 0.5 * torch.finfo(op.dtype).eps))


@dataclasses.dataclass(frozen=True)
class Glimpse:
    """The k eigenpairs at each end as a search for the outermost leaves them, and what its random start tells.

    `hidden` is that of the outermost pair, the only one that may count as converged. error: of the products, in norm,
    which the residuals include; nodes, weights (step,): the Gauss quadrature of the start's spectral measure.
    """

    eigen: EigenResult
    error: float
    nodes: Array
    weights: Array


def glimpse(
    op: LinearOperator, k: int, rtol: float, seed: int, max_hvps: int, matrix: MatrixOperator | None = None
) -> Glimpse:
    """Look at both ends of a spectrum for as few products as show the outermost eigenvalues (cf. `eigsh`).

    matrix: the same operator assembled, whose error is known; that of products is measured without it.
    """
    n = op.shape[0]
    error = product_error(op, seed) if matrix is None else matrix.error
    k, tol, op = min(k, n), _reachable(rtol, op), Sound(op)
    search = Search(op, k, "both", tol, seed, max_hvps, sought=1)
    low, high = search.run(None)
    assert search.rule
    eigen = _result(matrix or op, "both", k, tol, search.krylov.theta, low, high, search, rounding=error)
    spent = eigen.num_products + (MEASURED if matrix is None else 0)
    return Glimpse(dataclasses.replace(eigen, num_products=spent), error, *search.rule)


def leading(op: LinearOperator, k: int, rtol: float, seed: int, max_hvps: int) -> EigenResult:
    """The k highest eigenpairs of an operator, whose error the caller adds to their residuals (cf. `eigsh`)."""
    k, tol, op = min(k, op.shape[0]), _reachable(rtol, op), Sound(op)
    search = Search(op, k, "highest", tol, seed, max_hvps)
    low, high = search.run(None)
    return _result(op, "highest", k, tol, search.krylov.theta, low, high, search, rounding=0.0)


def operator_norm(op: LinearOperator, seed: int = 0) -> float:
    """max |lambda|, from one random vector: the largest |Ritz value| once its residual is at most 1e-3 times it.

    At most a tenth too small, except with probability 1e-6, for any spectrum, but for rounding below float64.
    """
    run = RandomRun(Sound(op), None, seeded(seed))
    for last in run.projections(_NORM_PRODUCTS):
        top = int(np.abs(run.theta).argmax())
        norm = float(abs(run.theta[top]))
        # Both ends are no wider apart than twice the norm. Below float64 rounding prevents the other bound.
        missed = kuczynski_wozniakowski(run.order, run.num_products, 0.05)
        low, high = (run.reach(end, HIDDEN_FAILURE / 2) for end in ("lowest", "highest"))
        most = max(low - run.theta[0], high + run.theta[-1])
        is_shown = most <= 1.1 * norm or missed <= HIDDEN_FAILURE / 2
        if last or (run.residuals()[top] <= 1e-3 * norm and is_shown):
            break
    return norm


def is_dense(method: Method, n: int) -> bool:
    """Whether an operator of order n is written out. Raises ArgumentError for an unknown method."""
    require_choice("method", method, get_args(Method))
    return method == "dense" or (method == "auto" and n <= DENSE_LIMIT)


def _dense(matrix: Tensor, k: int) -> tuple[Array, Tensor, Tensor]:
    """All eigenvalues, and the k lowest and k highest eigenvectors, outermost first."""
    n = len(matrix)
    if matrix.dtype == torch.float64 and not matrix.is_cuda and n > SMALL and 4 * k < n:
        # Numbers too large to square are refused later.
        with contextlib.suppress(RuntimeError, ValueError):
            return _tridiagonal_ends(matrix, k)
    values, vectors = torch.linalg.eigh(matrix)
    return to_array(values), vectors[:, :k], vectors[:, n - k :].flip(1)


def _tridiagonal_ends(matrix: Tensor, k: int) -> tuple[Array, Tensor, Tensor]:
    """All eigenvalues of a symmetric matrix, ascending, and its k lowest and k highest eigenvectors, from one form.

    Vectors are (n, k), outermost first. float64, on the CPU. Raises ValueError where LAPACK fails.
    """
    from scipy.linalg import eigh_tridiagonal, lapack

    n = len(matrix)
    work = int(lapack.dsytrd_lwork(n, lower=1)[0])
    form, diagonal, beside, scales, _ = lapack.dsytrd(matrix.clone().numpy().T, lower=1, lwork=work, overwrite_a=1)
    values, failed = lapack.dsterf(diagonal, beside)
    if failed:
        raise ValueError(f"dsterf: {failed} eigenvalues did not converge")
    # Reflectors below the diagonal, the first of them acting on row 1 and below.
    reflectors, ends = np.asfortranarray(form[1:, :-1]), []
    for first in (0, n - k):
        wanted = {"select": "i", "select_range": (first, first + k - 1)}
        vectors = np.asfortranarray(eigh_tridiagonal(diagonal, beside, lapack_driver="stebz", **wanted)[1])
        vectors[1:] = lapack.dormqr("L", "N", reflectors, scales, vectors[1:], lwork=64 * k)[0]
        ends.append(torch.from_numpy(vectors))
    return values, ends[0], ends[1].flip(1)


def _result(
    op: LinearOperator,
    which: Which,
    k: int,
    tol: float,
    ritz: Array,
    low: Tensor,
    high: Tensor,
    search: Search | None = None,
    error: float = 0.0,
    is_matrix: bool = False,
    rounding: float | None = None,
) -> EigenResult:
    """Rayleigh quotients and true residuals of the vectors found; without a search the matrix was factorised.

    rounding: the error of products where it is known; it is measured otherwise.
    """
    names = ENDS[which]
    ends = [{"lowest": low, "highest": high}[name] for name in names]
    values, residuals, defects = [], [], []
    norm, is_known = max(abs(ritz[0]), abs(ritz[-1])), rounding is not None
    for vectors in ends:
        image, gram = op @ vectors, inner(vectors, vectors)
        theta = inner(vectors, image).diagonal() / gram.diagonal()
        residual = column_norms(image - vectors * theta)
        if rounding is not None:
            residual = residual + rounding
        elif search is not None and not is_matrix:
            residual = residual + rounding_change(op.__matmul__, vectors, image, 0).to(residual)
        residuals.append(residual)
        values.append(theta)
        defects.append((gram - torch.eye(k).to(gram)).abs().max())
    residual_norms = to_array(torch.stack(residuals))
    converged, hidden = residual_norms + error <= max(tol * norm, UNDERFLOW), np.zeros(len(ends))
    if search is not None:
        converged &= np.array([[name in search.searched] for name in names])
        if search.failure:
            converged[:, search.sought :] = False
        # Weyl: the projection on the vectors and on their complement differs from H by their residuals.
        hidden += [search.beyond[name] for name in names]
        hidden += np.linalg.norm(residual_norms[:, : search.sought]) if search.failure else 0.0
    return EigenResult(
        values=to_array(torch.stack(values)),
        vectors=torch.stack(ends),
        residuals=residual_norms,
        converged=converged,
        num_products=search.products + (1 if is_known else 1 + RUNS) * len(ends) * k if search else 0,
        method="lanczos" if search else "dense",
        ritz=ritz,
        operator_norm=float(norm),
        orthonormality=float(torch.stack(defects).max()),
        tol=tol,
        hidden=hidden,
        hidden_failure_probability=search.failure if search else 0.0,
        error=error,
        which=which,
    )


@dataclasses.dataclass(frozen=True, repr=False)
class Track(Curve):
    """Overlaps of the eigenvectors at one point with those at the previous point, for each end of the spectrum.

    subspace_overlap (end,): |V_before^T V|_F^2 / k, 1 for the same subspace, k/n for unrelated ones.
    previous_rank (end, k): the previous rank of each eigenvector, by the matching of largest total overlap;
    previous_overlap (end, k): |<v_before, v>| of that match. crossings (end,): pairs whose order has changed.
    """

    axes = {
        "previous_overlap": ("end", "rank"),
        "previous_rank": ("end", "rank"),
        "subspace_overlap": ("end",),
        "crossings": ("end",),
    }
    x, y, by = "rank", "previous_overlap", "end"

    subspace_overlap: Array
    previous_rank: NDArray[np.int64]
    previous_overlap: Array
    crossings: NDArray[np.int64]


def track(before: Tensor, vectors: Tensor) -> Track:
    """Match eigenvectors with those of the previous point.

    Within a cluster of equal eigenvalues the vectors are arbitrary; the overlap of the cluster's subspace is not.

    Args:
        before, vectors: tensors (end, n, k) of one shape.

    Returns:
        The previous rank of each vector, the overlaps and the crossings.

    Raises:
        ArgumentError: for different shapes.
    """
    from scipy.optimize import linear_sum_assignment

    hint = "give those of the same block with the same k: `vectors` of two results of eigsh"
    if not isinstance(before, Tensor) or not isinstance(vectors, Tensor):
        raise ArgumentError(f"eigenvectors are {kind_of(before)} before and {kind_of(vectors)} now", hint)
    if before.shape != vectors.shape or before.ndim != 3:
        raise ArgumentError(f"eigenvectors {tuple(before.shape)} before and {tuple(vectors.shape)} now", hint)
    overlaps = to_array((before.mT @ vectors).abs())
    ends, _, k = overlaps.shape
    rank, best = np.zeros((ends, k), np.int64), np.zeros((ends, k))
    for end, overlap in enumerate(overlaps):
        was, now = linear_sum_assignment(overlap, maximize=True)
        rank[end, now], best[end, now] = was, overlap[was, now]
    order = np.triu(rank[:, :, None] > rank[:, None, :], 1)
    return Track((overlaps**2).sum((1, 2)) / k, rank, best, order.sum((1, 2)))


_ITERATIONS = 1000
"""Most steps of conjugate gradients for one right-hand side."""


class Shifted(LinearOperator):
    """H + tau: products, and approximate solutions with their residuals.

    error: how far it may be, in norm, from the true H + tau; num_products: spent so far.
    """

    tau: float
    num_products: int = 0

    @property
    @abc.abstractmethod
    def floor(self) -> float:
        """A lower bound of its own spectrum."""

    @abc.abstractmethod
    def solve(self, right: Tensor, tol: float) -> tuple[Tensor, Tensor]:
        """x with |right - (H + tau) x| <= tol |right| for each column, and these residual norms (m,)."""


_FLOOR_STEPS = 100
"""Steps towards the lowest eigenvalue of a factorised block, of which a second factorisation is the proof."""


class Cholesky(Shifted):
    """L L^T = H + tau for a dense H. Raises NumericsError unless it is positive definite."""

    def __init__(self, H: MatrixOperator, shift: float) -> None:
        self.matrix, self.tau, self.shape, self.dtype, self.device = H.matrix, shift, H.shape, H.dtype, H.device
        require_range(float((H.matrix.diagonal() + shift).abs().max()), H.dtype)
        factor = shifted_factor(self.matrix, shift)
        _require_positive(factor is not None, shift)
        self.factor = cast(Tensor, factor)
        self._rounding = _backward_error(self.matrix, shift, self.factor)
        self.error = H.error + self._rounding

    @functools.cached_property
    def floor(self) -> float:
        """Proved by a factorisation of its own, of H + tau - floor."""
        run = RandomRun(inverse(self.factor), None, seeded(0), partial=True)
        for last in run.projections(_FLOOR_STEPS):
            if last or run.residuals()[-1] <= 0.03 * run.theta[-1]:
                break
        floor = 0.95 / float(run.theta[-1])
        for _ in range(4):
            factor = shifted_factor(self.matrix, self.tau - floor)
            if factor is not None:
                return floor - self._rounding - _backward_error(self.matrix, self.tau - floor, factor)
            floor /= 2
        return 0.0

    def _matmat(self, vectors: Tensor) -> Tensor:
        return self.matrix @ vectors + self.tau * vectors

    def solve(self, right: Tensor, tol: float) -> tuple[Tensor, Tensor]:
        """Exact to rounding."""
        x = inverse(self.factor) @ right
        return x, column_norms(right - self @ x)


class ConjugateGradients(Shifted):
    """H + tau for a matrix-free H without negative curvature, by at most about `max_hvps` products in all.

    error: of the products of H. floor: the shift, on trust that H is semidefinite. `solve` raises NumericsError where
    it meets negative curvature.
    """

    def __init__(self, op: LinearOperator, shift: float, max_hvps: int | None = None, error: float = 0.0) -> None:
        self.op, self.tau, self.max_hvps, self.error = op, shift, max_hvps, error
        self.shape, self.dtype, self.device = op.shape, op.dtype, op.device

    @property
    def floor(self) -> float:
        return self.tau

    def _matmat(self, vectors: Tensor) -> Tensor:
        self.num_products += vectors.shape[1]
        return self.op @ vectors + self.tau * vectors

    def solve(self, right: Tensor, tol: float) -> tuple[Tensor, Tensor]:
        """Converged columns cost no further products."""
        steps = itertools.count()

        def is_spent() -> bool:
            return next(steps) >= _ITERATIONS or (self.max_hvps is not None and self.num_products >= self.max_hvps)

        def require(direction: Tensor, image: Tensor, curvature: Tensor) -> None:
            _require_positive(bool((curvature > 0).all()), self.tau)

        return conjugate_gradients(self, right, tol * column_norms(right), require, None, is_spent)


def inverse(factor: Tensor) -> FunctionOperator:
    """The inverse of L L^T."""

    def apply(vectors: Tensor) -> Tensor:
        # torch.cholesky_solve would copy the whole factor at every call.
        half = torch.linalg.solve_triangular(factor, vectors, upper=False)
        solved: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
        return solved

    return FunctionOperator(apply, (len(factor), len(factor)), factor)


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


_CLOSE = 3e-4
"""Residual of the estimate of the lowest eigenvalue, relative to the spectrum's width.

At three times as much, estimates are often further above it than the first distance: a second factorisation, and three
times as many solves from a shift so far away, take longer than all products of the estimate.
"""
_AWAY = (1e-4, 1e-3, 3e-2)
"""Distances of the shift below the estimate, relative to |H|, one after the other until the matrix is definite."""
_MOST = 600
"""Solves after which the inverse is given up."""


def shifted_ends(op: LinearOperator, H: MatrixOperator, k: int, rtol: float, seed: int, max_hvps: int) -> EigenResult:
    """The k lowest and k highest eigenpairs of H, with which `op` multiplies in less time (cf. `eigsh`).

    The highest take few products. The lowest are often clusters, which take thousands of products; they are the highest
    of (H - s)^-1 with s just below the spectrum, which take a Cholesky factorisation and some hundred solves. Values
    and residuals are those of products. `hidden` allows for what the search in the inverse may have missed and for the
    rounding of solves. Where a pair does not converge, both ends are found by products.
    """
    high = eigsh(op, k, "highest", "lanczos", rtol, seed, max_hvps=max_hvps)
    run = _lowest(op, seed, max_hvps)
    spent = high.num_products + run.num_products
    if below := _inverse(H.matrix, run):
        inverted, shift = below
        low = eigsh(inverted, k, "highest", "lanczos", 0.1 * rtol, seed, max_hvps=_MOST)
        vectors = low.vectors[0]
        image = op @ vectors
        values = (vectors * image).sum(0)
        residual = to_array(
            column_norms(image - vectors * values) + rounding_change(op.__matmul__, vectors, image, seed)
        )
        spent += (1 + RUNS) * vectors.shape[1]
        norm = max(high.operator_norm, float(values.abs().max()))
        # Products and the assembled matrix differ by the error of that.
        hidden = _hidden(H.matrix, shift, inverted, low, to_array(values)) + H.error
        converged = low.converged[0] & (residual <= high.tol * norm)
        if converged.all() and hidden <= max(10 * high.tol, HIDDEN) * norm:
            return dataclasses.replace(
                high,
                values=np.stack([to_array(values), high.values[0]]),
                vectors=torch.stack([vectors, high.vectors[0]]),
                residuals=np.stack([residual, high.residuals[0]]),
                converged=np.stack([converged, high.converged[0]]),
                num_products=spent,
                ritz=np.union1d(to_array(values), high.ritz),
                operator_norm=norm,
                orthonormality=max(low.orthonormality, high.orthonormality),
                hidden=np.array([hidden, high.hidden[0]]),
                which="both",
                hidden_failure_probability=max(low.hidden_failure_probability, high.hidden_failure_probability),
            )
    by_products = eigsh(op, k, "both", "lanczos", rtol, seed, max_hvps=max_hvps)
    return dataclasses.replace(by_products, num_products=by_products.num_products + spent)


def _lowest(op: LinearOperator, seed: int, max_hvps: int) -> RandomRun:
    """A run whose first Ritz value is near the lowest eigenvalue, and above it."""
    run = RandomRun(Sound(op), None, seeded(seed), partial=True)
    for last in run.projections(max_hvps):
        if last or run.residuals()[0] <= _CLOSE * (run.theta[-1] - run.theta[0]):
            break
    return run


def _inverse(matrix: Tensor, run: RandomRun) -> tuple[FunctionOperator, float] | None:
    """The inverse of H - s with s below the spectrum; None if none of a few s is."""
    for away in _AWAY:
        shift = float(run.theta[0]) - away * float(np.abs(run.theta).max())
        if (factor := shifted_factor(matrix, -shift)) is not None:
            return inverse(factor), shift
    return None


def _hidden(matrix: Tensor, shift: float, inverted: LinearOperator, eigen: EigenResult, values: Array) -> float:
    """How far the i-th of `values` may be from the i-th lowest eigenvalue of the matrix; infinity if that is unknown.

    With A = H - s, positive definite, and B as the inverse is applied, |A B - 1| <= r < 1 is measured by probes. Then
    |A^-1| <= |B| / (1 - r), and eigenvalues of B are within r |A^-1| of those of A^-1 (Weyl).
    """
    X = gaussian(len(matrix), 8).to(matrix)
    solved = inverted @ X
    r = probe_bound(matrix @ solved - shift * solved - X)
    inverses, missed = eigen.values[0], float(eigen.hidden[0])
    apart = missed + r / (1 - r) * (inverses[0] + missed) if r < 1 else np.inf
    if not apart < inverses[-1]:
        return float("inf")
    return float(max(np.abs(shift + 1 / (inverses + sign * apart) - values).max() for sign in (-1, 1)))


ACCEPTED = 1e-3
"""Largest failure probability of an upper bound."""
GATHERED = 0.25
"""Share of the tolerance beyond which directions are gathered, and equally the gap to all others."""
_FEWEST_STEPS, _MAX_STEPS = 10, 400
_EACH = 8
"""Typical products per gathered direction; more if there are many."""
_PER_PRODUCT = 64
"""Gathered directions against which one step is orthogonalised at about the cost of one product."""
_BASIS_BYTES = 5 << 28
_EXACT = 1e-8
"""Error of products, relative to the tolerance, up to which a run of them is one of exact products, to rounding."""
_WIDTH = 0.01
"""Share of the spectrum's width that a run may miss at an end without its being known."""


@dataclasses.dataclass(frozen=True)
class Bounds:
    """lower <= index; index <= upper except with probability failure_probability, or upper is None."""

    lower: int
    upper: int | None
    failure_probability: float
    num_products: int


def index_bounds(
    op: LinearOperator,
    eigen: EigenResult,
    tolerance: float,
    error: float,
    failure: float,
    max_hvps: int,
    seed: int,
    expected: float = 0.0,
) -> Bounds:
    """Bounds of the number of eigenvalues below -tolerance, for products that are right to `error` in norm.

    Directions Q are gathered until a random Lanczos run in their complement shows, except with a probability bounded
    after Kuczynski & Wozniakowski (1992), that H is above -tolerance + gamma there. By Haynsworth's inertia
    additivity the index is then at most that of Q^T H Q + tolerance - R^T R / gamma with R = (1 - Q Q^T) H Q; by
    Cauchy's interlacing it is at least that of Q^T H Q + tolerance. Without such a run within `max_hvps` there
    is no upper bound; a step in the complement of many directions counts as several of these, and each direction that
    the last run found takes one more. expected: estimated number of directions to gather; a search that exceeds
    `max_hvps` is not started.
    """
    n = op.shape[0]
    Q = eigen.vectors[0][:, torch.as_tensor(eigen.values[0] < -GATHERED * tolerance)]
    generator = seeded(seed, 1)
    columns = max(64, _BASIS_BYTES // (8 * n))
    runs, products, spent, chance = 0, 0, 0.0, 1.0
    while True:
        left = max_hvps - spent - Q.shape[1]
        steps = min(_MAX_STEPS, columns - Q.shape[1], int(left / _step_cost(Q.shape[1])))
        missing = expected - Q.shape[1]
        hopeless = _EACH * missing * _step_cost(Q.shape[1] + missing / 2) > left
        if Q.shape[1] == n:
            chance = 0.0
        if steps < _FEWEST_STEPS or Q.shape[1] == n or hopeless:
            break
        steps = min(steps, n - Q.shape[1])
        is_exact = error <= _EXACT * tolerance
        runs += 1
        # Any of the runs may fail: the shares 1/2, 1/6, 1/12 and so on sum to 1.
        share = 1 / (runs * (runs + 1))
        fresh, chance, used = _run(op, Q, tolerance, error, share * failure, steps, generator, is_exact)
        chance = min(1.0, chance / share)
        products += used
        spent += used * _step_cost(Q.shape[1])
        if chance <= ACCEPTED or fresh.shape[1] == 0:
            break
        Q = torch.linalg.qr(torch.cat([Q, fresh], dim=1))[0]
    proved = chance <= ACCEPTED
    if Q.shape[1] == 0:
        return Bounds(0, 0 if proved else None, chance if proved else 0.0, products)
    image = op @ Q
    A = Q.T @ image
    R = image - Q @ A
    lower = _negative(A, -tolerance - error)
    upper = _negative(A - R.T @ R / (GATHERED * tolerance), -tolerance + error) if proved else None
    return Bounds(lower, upper, chance if proved else 0.0, products + Q.shape[1])


def _step_cost(gathered: float) -> float:
    """Products that a step in the complement of so many directions counts as."""
    return 1 + gathered / _PER_PRODUCT


def _run(
    op: LinearOperator,
    Q: Tensor,
    tolerance: float,
    error: float,
    failure: float,
    steps: int,
    generator: torch.Generator,
    is_exact: bool = False,
) -> tuple[Tensor, float, int]:
    """One Lanczos run: Ritz vectors to gather, the probability of a missed one, products used."""
    run = RandomRun(op, Q, generator, columns=steps, partial=is_exact)
    limit = (1 - GATHERED) * tolerance - error
    for last in run.projections(steps):
        # The projection of H is known but for what partial reorthogonalisation left out.
        chance = _chance(run, limit - run.lost, is_exact)
        if last or chance <= failure:
            break
    worth = np.flatnonzero(run.theta < -GATHERED * tolerance)
    return run.vectors(worth), chance, run.num_products


def _chance(run: RandomRun, limit: float, is_exact: bool) -> float:
    """Probability of a missed eigenvalue below -limit.

    Where products are right to rounding the run's own polynomial says it, in a fraction of the steps that the bound
    for all spectra takes. That one needs the width of the spectrum too, which it shows to be seen but for _WIDTH at an
    end.
    """
    lowest, highest = run.theta[0], run.theta[-1]
    if lowest <= -limit:
        return 1.0
    if is_exact or run.exhausted:
        # To rounding, which hides directions that the start vector has little of, unless the basis is all there is.
        return run.missed("lowest", lowest + limit)
    if lowest == highest:
        return 1.0  # A single step shows no width.
    width = (highest - lowest) / (1 - 2 * _WIDTH)
    missed, unseen_end = (
        kuczynski_wozniakowski(run.order, run.num_products, eps) for eps in ((lowest + limit) / width, _WIDTH)
    )
    return min(1.0, missed + 2 * unseen_end)


def _negative(matrix: Tensor, below: float) -> int:
    return int((torch.linalg.eigvalsh((matrix + matrix.T) / 2) < below).sum())
