"""Counts of negative, zero and positive eigenvalues, with what makes them certain."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.checks import require_count, require_positive
from landscape.curvature.density import Count, Quadrature, quadrature
from landscape.curvature.eigsh import (
    GATHERED,
    EigenResult,
    Glimpse,
    Method,
    eigsh,
    index_bounds,
    is_dense,
    operator_norm,
)
from landscape.curvature.operators import (
    MEASURED,
    UNDERFLOW,
    Deflated,
    LinearOperator,
    MatrixOperator,
    Spanned,
    product_error,
    require_symmetric,
)
from landscape.curvature.vectors import Array, gaussian, probe_bound, to_array
from landscape.errors import NumericsError
from landscape.results import Interval


class ShiftedLDL:
    """matrix = (H - s I) / scale as LAPACK factorises it (Bunch and Kaufman's pivots).

    scale: a power of two near the largest entry, so that squares of solutions neither overflow nor underflow.
    """

    def __init__(self, H: Tensor, shift: float) -> None:
        size = max(map(abs, map(float, H.aminmax()))) if len(H) else 0.0
        self.scale = math.ldexp(1.0, math.frexp(size)[1] - 1) if 0 < size < math.inf else 1.0
        self.matrix = H / self.scale
        self.matrix.diagonal().sub_(shift / self.scale)
        self._LD, self._pivots, _ = torch.linalg.ldl_factor_ex(self.matrix)

    @functools.cached_property
    def negative(self) -> int:
        """Negative eigenvalues of D."""
        diagonal, below = (to_array(self._LD.diagonal(offset)) for offset in (0, -1))
        # A pivot of order two is marked in both of its places.
        first = np.flatnonzero(self._pivots.cpu().numpy() < 0)[::2]
        single = np.ones(len(diagonal), bool)
        single[first] = single[first + 1] = False
        pairs = np.stack([[diagonal[first], below[first]], [below[first], diagonal[first + 1]]]).transpose(2, 0, 1)
        return int((diagonal[single] < 0).sum() + (np.linalg.eigvalsh(pairs) < 0).sum())

    def solve(self, right: Tensor) -> Tensor:
        """Solutions (n, m) of matrix X = right; not finite where a pivot is exactly singular."""
        solved: Tensor = torch.linalg.ldl_solve(self._LD, self._pivots, right.contiguous())
        return solved


TAU_DENSE, TAU_LANCZOS = 1e-8, 1e-3
FAILURE = 1e-6
"""Target failure probability of the upper bound of a matrix-free bracket."""


@dataclasses.dataclass(frozen=True, repr=False)
class Inertia(Interval):
    """Counts of eigenvalues below -tolerance, within it and above it.

    Attributes:
        negative, zero, positive: the counts; -1 where only a bracket is known.
        lower, upper: bounds on the saddle index.
        tolerance: tau, absolute.
        level: "certified": no matrix within `error` has another index; "bracketed": only the bracket is known;
            "estimated": the upper bound is the order, and `estimate` says more; "vanished": the block is 0 in float64,
            where it may have underflowed.
        error: of the matrix or its products, in norm.
        failure_probability: of the upper bound; 0 where it is proved.
        estimate: the stochastic count with its 95 % interval, within the bracket; None if certified.
        num_products: Hessian-vector products.
    """

    interval = ("negative", "lower", "upper")

    negative: int
    zero: int
    positive: int
    lower: int
    upper: int
    tolerance: float
    level: str
    error: float = 0.0
    failure_probability: float = 0.0
    estimate: Count | None = None
    num_products: int = 0


def saddle_index(
    op: LinearOperator,
    rel_tau: float | None = None,
    method: Method = "auto",
    seed: int = 0,
    upper: int | None = None,
    max_hvps: int = 3000,
) -> Inertia:
    """The inertia of a symmetric operator: how many eigenvalues lie below -tau, within it and above it.

    Args:
        op: the operator (n, n).
        rel_tau: tau relative to |H|. Default: 1e-8 (dense) or 1e-3 (matrix-free), or twice what the error of H allows.
        method: "dense" is certified by LDL^T factorisations in float64; "lanczos" gives a bracket or an estimate;
            "auto" is dense up to 8000 rows.
        seed: of the random vectors.
        upper: a bound on the index from theory, such as d rank(G) (F14).
        max_hvps: largest number of products.

    Returns:
        The counts with their level, bracket and tolerance.

    Raises:
        NumericsError: if tau is not above the error of H, with the smallest valid one; and if more eigenvalues than
            `upper` lie below -tau.
    """
    require_symmetric(op)
    if rel_tau is not None:
        require_positive("rel_tau", rel_tau)
    if upper is not None:
        require_count("upper", upper, 0)
    if is_dense(method, op.shape[0]):
        H = op.symmetric().double()
        norm = operator_norm(H, seed=seed)
        inertia = certified(H.matrix, absolute(rel_tau, TAU_DENSE, norm, least(H.matrix, norm, H.error)), norm, H.error)
        require_bound(upper, inertia.lower, inertia.tolerance)
        return inertia
    eigen = eigsh(op, 10, method="lanczos", seed=seed, max_hvps=max_hvps)
    return bracketed(op, eigen, quadrature(op, seed=seed), rel_tau, seed, upper, max_hvps)


def absolute(rel_tau: float | None, default: float, norm: float, least: float) -> float:
    """The tolerance of an index; by default such a share of |H|, or twice the least that the error of H allows."""
    if rel_tau is not None:
        return rel_tau * norm
    # Beyond |H| itself no tolerance says anything; it is refused.
    return max(default * norm, min(2 * least, norm))


def least(matrix: Tensor, norm: float, error: float) -> float:
    """The least tolerance that can be certified by factorisations."""
    return 2 * error + 10 * len(matrix) * torch.finfo(matrix.dtype).eps * norm


def certified(
    matrix: Tensor,
    tolerance: float,
    norm: float,
    error: float = 0.0,
    negative_only: bool = False,
    factored: ShiftedLDL | None = None,
) -> Inertia:
    """Inertia by Sylvester's law: negative pivots of L D L^T = H - s I at s = -tolerance and +tolerance.

    Certified is an index that no matrix within `error` of this one changes (failing with probability < 1e-7). Where an
    eigenvalue is too near -tolerance for that, counts on either side, farther away than `error`, bracket it.
    negative_only skips zero and positive, which saves half the work.
    factored: H + tolerance, if known, which saves the rest.
    """
    n = len(matrix)
    if _has_vanished(norm, error, tolerance):
        return _inertia(n, 0, n, None, tolerance, "vanished", error)
    rho = least(matrix, norm, error)
    require_honest(tolerance, rho, norm)
    if norm == 0:
        return _inertia(n, 0, 0, 0, tolerance, "certified", error)
    positive = None if negative_only else n - ShiftedLDL(matrix, tolerance + rho).negative
    lower, upper, away = bracket(matrix, tolerance, rho, error, factored)
    return _inertia(n, lower, upper, positive, tolerance, "certified" if lower == upper else "bracketed", away)


def bracket(
    matrix: Tensor, tolerance: float, rho: float, error: float = 0.0, factored: ShiftedLDL | None = None
) -> tuple[int, int, float]:
    """Bounds on the number of eigenvalues below -tolerance, and how far away from it they were counted.

    rho: the least distance that outweighs the error of H and rounding (`least`); factored: H + tolerance, if known.
    """
    count = count_below(matrix, -tolerance, error, factored)
    if count is not None:
        return count, count, rho
    lower, upper = 0, len(matrix)
    for times in (1, 2, 4):
        away = times * rho
        below, above = (count_below(matrix, -tolerance + side) for side in (-away, away))
        lower = lower if below is None else max(lower, below)
        upper = upper if above is None else min(upper, above)
        if below is not None and above is not None:
            break
    return lower, upper, away


def count_below(matrix: Tensor, shift: float, error: float = 0.0, factored: ShiftedLDL | None = None) -> int | None:
    """Eigenvalues below `shift` of H and of all within `error` of it, by Sylvester's law; None where not certain.

    The computed A = L D L^T is H - s I + R. Both have the same inertia if |A^-1 R| < 1, as then no A - t R between
    them is singular; A^-1 R X = X - A^-1 (H - s I) X for eight Gaussian probes X bounds that norm. To an error of H
    the same applies with |A^-1|, of which two solves show that it is at most the root of ten times |A^-2 x| for one of
    the probes x.
    """
    factored = factored or ShiftedLDL(matrix, shift)
    A = factored.matrix
    probes = gaussian(len(A), 8).to(A)
    solved, once = factored.solve(torch.cat([A @ probes, probes], dim=1)).split(8, dim=1)
    inverse = float((10 * factored.solve(once).norm(dim=0).max()) ** 0.5)
    # The shift is subtracted with rounding.
    off = error / factored.scale + torch.finfo(A.dtype).eps * float(A.diagonal().abs().max())
    # NaN where a pivot is exactly singular: the shift is an eigenvalue to the last bit.
    return factored.negative if probe_bound(probes - solved) + off * inverse < 0.5 else None


def from_spectrum(eigen: EigenResult, tau: float | None = None, upper: int | None = None) -> Inertia:
    """The inertia of a dense block with all eigenvalues computed.

    Each is within rho = 10 * n * eps * |H| + eigen.error of a true one (Weyl, backward stability), so that counts at
    -tau -+ rho bracket the index.
    """
    ritz, norm = eigen.ritz, eigen.operator_norm
    n = len(ritz)
    if _has_vanished(norm, eigen.error, 0.0):
        return _inertia(n, 0, n, None, 0.0, "vanished", eigen.error)
    rho = 10 * n * torch.finfo(eigen.vectors.dtype).eps * norm + eigen.error
    tolerance = absolute(tau, TAU_DENSE, norm, rho)
    require_honest(tolerance, rho, norm)
    lower, highest = counted(ritz, tolerance, rho)
    level = "certified" if lower == highest else "bracketed"
    require_bound(upper, lower, tolerance)
    highest = highest if upper is None else min(highest, upper)
    return _inertia(n, lower, highest, int((ritz > tolerance).sum()), tolerance, level, rho)


def counted(ritz: Array, tolerance: float, error: float) -> tuple[int, int]:
    """How many of the true values lie below -tolerance, at least and at most, if each is within `error` of one here."""
    return int((ritz < -tolerance - error).sum()), int((ritz < -tolerance + error).sum())


def bracketed(
    op: LinearOperator,
    eigen: EigenResult,
    rule: Quadrature,
    tau: float | None = None,
    seed: int = 0,
    upper: int | None = None,
    max_hvps: int = 3000,
    tolerance: float | None = None,
    proved: Callable[[float], tuple[int, int] | None] = lambda tolerance: None,
) -> Inertia:
    """The index of an operator too large to factor, between bounds, with a stochastic estimate beside them.

    The lower bound is the index of a projection; the upper one holds except with failure_probability (`index_bounds`),
    or is `upper`, known from theory. eigen: what `eigsh` found; rule: what `quadrature` found; tolerance: instead of
    tau, absolute; proved: bounds at a tolerance, which save the search where they meet.
    """
    n, norm = op.shape[0], eigen.operator_norm
    error = product_error(op, seed)
    if _has_vanished(norm, error, tolerance or 0.0):
        return _inertia(n, 0, n, None, tolerance or 0.0, "vanished", error, products=MEASURED + rule.num_products)
    rho = error + 10 * n**0.5 * torch.finfo(op.dtype).eps * norm
    if tolerance is None:
        tolerance = absolute(tau, TAU_LANCZOS, norm, rho)
    require_honest(tolerance, rho, norm)
    if norm == 0:
        return _inertia(n, 0, 0, 0, tolerance, "bracketed", rho, products=MEASURED + rule.num_products)
    estimate, products = rule.count_below(-tolerance), MEASURED + rule.num_products
    floor, ceiling = proved(tolerance) or (0, n)
    if floor == ceiling:
        return dataclasses.replace(between(n, tolerance, floor, ceiling), error=rho, num_products=products)
    if ceiling < n:
        upper = ceiling if upper is None else min(upper, ceiling)
    expected = rule.count_below(-GATHERED * tolerance).value
    search = index_bounds(op, eigen, tolerance, rho, FAILURE, max_hvps, seed, expected)
    lower = max(counted(eigen.ritz, tolerance, rho)[0], search.lower, floor)
    require_bound(upper, lower, tolerance)
    # A random run's bound below the proved one has failed, and says nothing.
    shown = search.upper if search.upper is not None and search.upper >= lower else None
    bounds = [b for b in (shown, upper) if b is not None]
    highest = min([n, *bounds])
    failure = search.failure_probability if shown == highest else 0.0
    level = "bracketed" if bounds else "estimated"
    estimate, products = estimate.within(lower, highest), products + search.num_products
    return _inertia(n, lower, highest, None, tolerance, level, rho, failure, estimate, products)


def between(n: int, tolerance: float, lower: int, upper: int, estimate: Count | None = None) -> Inertia:
    """The inertia of an operator (n, n) from proved bounds of its index, with an estimate where they differ."""
    if lower == upper:
        return _inertia(n, lower, upper, None, tolerance, "certified", 0.0)
    inside = estimate and estimate.within(lower, upper)
    return _inertia(n, lower, upper, None, tolerance, "bracketed", 0.0, estimate=inside)


def glimpsed(
    seen: Glimpse,
    tau: float | None = None,
    upper: int | None = None,
    proved: Callable[[float], tuple[int, int] | None] = lambda tolerance: None,
) -> Inertia:
    """The index of an operator between the bounds that a glimpse of its spectrum gives, with an estimate beside them.

    The Ritz values below -tau are a lower bound; where the lowest eigenvalue is not below it, the index is 0, except
    with `hidden_failure_probability`; the estimate is the quadrature's of a single probe. upper: a bound from theory;
    proved: bounds at a tolerance.
    """
    eigen, norm = seen.eigen, seen.eigen.operator_norm
    n, dtype = eigen.vectors.shape[1], eigen.vectors.dtype
    if _has_vanished(norm, seen.error, 0.0):
        return _inertia(n, 0, n, None, 0.0, "vanished", seen.error)
    rho = seen.error + 10 * n**0.5 * torch.finfo(dtype).eps * norm
    tolerance = absolute(tau, TAU_LANCZOS, norm, rho)
    require_honest(tolerance, rho, norm)
    lower = counted(eigen.ritz, tolerance, rho)[0]
    require_bound(upper, lower, tolerance)
    is_none = lower == 0 and eigen.values[0, 0] - eigen.hidden[0] - rho >= -tolerance
    if not is_none and (known := proved(tolerance)):
        rule = Quadrature(seen.nodes[None], seen.weights[None], np.array([np.inf]), n, 0)
        estimate = rule.count_below(-tolerance)
        return dataclasses.replace(between(n, tolerance, max(lower, known[0]), known[1], estimate), error=rho)
    bounds = [*([0] if is_none else []), *([] if upper is None else [upper])]
    highest, level = min([n, *bounds]), "bracketed" if bounds else "estimated"
    failure = eigen.hidden_failure_probability if is_none and upper != 0 else 0.0
    rule = Quadrature(seen.nodes[None], seen.weights[None], np.array([np.inf]), n, 0)
    estimate = rule.count_below(-tolerance).within(lower, highest)
    return _inertia(n, lower, highest, None, tolerance, level, rho, failure, estimate)


def _has_vanished(norm: float, error: float, tolerance: float) -> bool:
    """Whether a block is 0 in float64 and may have underflowed, and the tolerance does not exceed that."""
    return norm == 0 and 0 < error <= UNDERFLOW and tolerance <= error


def require_honest(tolerance: float, error: float, norm: float) -> None:
    """Raise NumericsError for a tolerance within the error of H, and for NaN; the exact zero matrix needs none."""
    if tolerance > error or norm == error == 0:
        return
    if norm == 0:
        raise NumericsError(
            f"tau {tolerance:.1e} is below the error of the computed Hessian, {error:.1e}, which is 0 but for it",
            f"use tau >= {2 * error:.1e} absolute: the relative one is a share of |H|, which is not known",
        )
    raise NumericsError(
        f"tau {tolerance / norm:.1e} is below the error of the computed Hessian, {error / norm:.1e} relative",
        f"use tau >= {2 * error / norm:.1e} relative to |H|, {2 * error:.1e} absolute",
    )


def require_bound(upper: int | None, lower: int, tolerance: float) -> None:
    """Raise NumericsError for a bound from theory that is below what is proved."""
    if upper is not None and upper < lower:
        raise NumericsError(
            f"the upper bound given for the index is {upper}, but at least {lower} eigenvalues are below "
            f"-tau = {-tolerance:.3e}",
            "leave the bound out, or give one that holds for this operator",
        )


def _inertia(
    n: int,
    lower: int,
    upper: int,
    positive: int | None,
    tolerance: float,
    level: str,
    error: float,
    failure: float = 0.0,
    estimate: Count | None = None,
    products: int = 0,
) -> Inertia:
    known = lower == upper
    negative = lower if known else -1
    zero = n - lower - positive if known and positive is not None else -1
    above = positive if known and positive is not None else -1
    return Inertia(negative, zero, above, lower, upper, tolerance, level, error, failure, estimate, products)


def certified_outside(
    H: MatrixOperator, directions: Spanned, tolerance: float, norm: float, factored: ShiftedLDL | None = None
) -> Inertia:
    """The certified index of H on the complement of some directions; zero and positive are not counted.

    With orthonormal columns U and A = H + tolerance = L D L^T, the matrix [[A, U], [U^T, 0]] has the inertia of A and
    that of -U^T A^-1 U, and equally that of A on the complement and as many eigenvalues of either sign as U has
    columns (Haynsworth). Where probes do not prove both counts, the projected matrix is factorised.
    factored: A, if known.
    """
    if directions.dimension == 0:
        return certified(H.matrix, tolerance, norm, H.error, negative_only=True, factored=factored)
    index = _corrected(H, directions, tolerance, norm, factored) if norm else None
    if index is None:
        rest = Deflated(H, directions).symmetric()
        return certified(rest.matrix, tolerance, norm, rest.error, negative_only=True)
    return Inertia(index, -1, -1, index, index, tolerance, "certified", H.error)


def _corrected(
    H: MatrixOperator, directions: Spanned, tolerance: float, norm: float, factored: ShiftedLDL | None
) -> int | None:
    """The index by one factorisation; None where it is not certain."""
    n, U = H.shape[0], directions.basis()
    rho = 2 * H.error + 10 * n * torch.finfo(H.dtype).eps * norm
    require_honest(tolerance, rho, norm)
    if float(directions.remove(U).norm()) > 1e-12 * U.shape[1] ** 0.5:
        return None
    factored = factored or ShiftedLDL(H.matrix, -tolerance)
    # In units of its scale, as everything below.
    A, off = factored.matrix, (H.error + rho) / factored.scale
    X = gaussian(n, 8).to(A)
    Y, solved, once = factored.solve(torch.cat([U, A @ X, X], 1)).split([U.shape[1], 8, 8], 1)
    if not bool(torch.isfinite(Y).all()):
        return None
    # What parts L D L^T from A, relative to it (see count_below), and S from U^T A^-1 U.
    moved = probe_bound(X - solved)
    away = float(Y.norm()) * float((U - A @ Y).norm())
    S = U.T @ Y
    S = (S + S.T) / 2
    known = torch.linalg.eigvalsh(S)
    smallest = float(known.abs().min())
    if not 2 * away < smallest:
        # Also where S is singular, which the complement would be divided by.
        return None

    def inside(solved: Tensor) -> Tensor:
        """The inverse of A on the complement, from that of A."""
        corrected: Tensor = solved - Y @ torch.linalg.solve(S, U.T @ solved)
        return corrected

    twice = inside(factored.solve(inside(once)))
    # The nearest eigenvalue to -tolerance on the complement.
    gap = float((10 * twice.norm(dim=0).max()) ** -0.5)
    if not (moved < 0.5 and 2 * off < gap):
        return None
    return factored.negative + int((known > 0).sum()) - U.shape[1]
