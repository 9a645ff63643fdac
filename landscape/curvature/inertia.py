"""The saddle index with its tolerance, bracket and certification level (numerics.md, section 2)."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.arguments import require_count, require_positive, require_symmetric
from landscape.curvature.complement import GATHERED, index_bounds
from landscape.curvature.density import Count, Quadrature, quadrature
from landscape.curvature.lanczos import EigenResult, Method, eigsh, is_dense, operator_norm
from landscape.curvature.ldl import ShiftedLDL
from landscape.curvature.operators import LinearMap, product_error, written_out
from landscape.curvature.vectors import gaussian, probe_bound
from landscape.errors import NumericsError
from landscape.former import renamed
from landscape.results import Interval

TAU_DENSE, TAU_LANCZOS = 1e-8, 1e-3
FAILURE = 1e-6
"""Target failure probability of the upper bound of a matrix-free bracket."""


@dataclasses.dataclass(frozen=True, repr=False)
class Inertia(Interval):
    """Counts of eigenvalues below -tolerance, within it and above it.

    lower <= saddle index <= upper. level "certified": rounding cannot change the index, negative == lower == upper;
    "bracketed": only the bracket is known, and negative, zero and positive are -1 unless its ends are equal;
    "estimated": the upper bound is the order, and `estimate` says more. tolerance and error (of the
    matrix or of its products) are absolute, as norms. failure_probability: of the upper bound, 0 where it is proved.
    estimate: the stochastic count with its 95 % interval, within the bracket, None at level "certified".
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


@renamed(tau="rel_tau", max_products="max_hvps")
def saddle_index(
    op: LinearMap,
    rel_tau: float | None = None,
    method: Method = "auto",
    seed: int = 0,
    upper: int | None = None,
    max_hvps: int = 3000,
) -> Inertia:
    """The inertia of a symmetric operator.

    rel_tau: tau relative to |H|, which is known to 1e-3; default 1e-8 (dense) or 1e-3 (matrix-free). dense (auto: up
    to 8000 rows): certified, by LDL^T factorisations; lanczos: bracketed, or estimated. upper: a bound on the index
    known from theory, such as d * rank(G) (F14). Raises NumericsError if tau is not above the error of H; it names the
    smallest valid one; and if more eigenvalues than `upper` are below -tau.
    """
    require_symmetric(op)
    if rel_tau is not None:
        require_positive("rel_tau", rel_tau)
    if upper is not None:
        require_count("upper", upper, 0)
    if is_dense(method, op.shape[0]):
        H = written_out(op)
        norm = operator_norm(H, seed=seed)
        found = certified(H.matrix, (TAU_DENSE if rel_tau is None else rel_tau) * norm, norm, H.error)
        _require_bound(upper, found.lower, found.tolerance)
        return found
    eigen = eigsh(op, 10, method="lanczos", seed=seed, max_hvps=max_hvps)
    return bracketed(op, eigen, quadrature(op, seed=seed), rel_tau, seed, upper, max_hvps)


def certified(
    matrix: Tensor,
    tolerance: float,
    norm: float,
    error: float = 0.0,
    negative_only: bool = False,
    factored: ShiftedLDL | None = None,
) -> Inertia:
    """Inertia by Sylvester's law: negative pivots of L D L^T = H - s I + residual at s = -tolerance and +tolerance.

    An index is certified where no eigenvalue is as near to s as the residual and the matrix's own `error`; both
    distances are measured by probes (failing with probability < 1e-7). Where one is, counts at s -+ rho bracket it.
    negative_only skips zero and positive, which saves half the work.
    factored: H + tolerance, if known, which saves the rest.
    """
    n = len(matrix)
    rho = 2 * error + 10 * n * torch.finfo(matrix.dtype).eps * norm
    require_honest(tolerance, rho, norm)
    if norm == 0:
        return _inertia(n, 0, 0, 0, tolerance, "certified", error)
    positive = None if negative_only else n - ShiftedLDL(matrix, tolerance + rho).negative
    count, residual, gap = negative_pivots(matrix, -tolerance, factored)
    if 2 * (residual + error) < gap:
        return _inertia(n, count, count, positive, tolerance, "certified", max(rho, residual + error))
    for _ in range(3):
        require_honest(tolerance, rho, norm)
        (lower, below), (found, above) = (_count_below(matrix, -tolerance + s * rho, s * rho) for s in (-1, 1))
        needed = max(below, above) + error
        if needed <= rho:
            break
        rho = 2 * needed
    else:
        lower, found = 0, n
    return _inertia(n, lower, found, positive, tolerance, "certified" if lower == found else "bracketed", rho)


def _count_below(matrix: Tensor, shift: float, step: float) -> tuple[int, float]:
    """`negative_pivots`, at a shift moved on by `step` where it is an eigenvalue to the last bit."""
    for i in range(3):
        count, residual, _ = negative_pivots(matrix, shift + i * step)
        if np.isfinite(residual):
            return count, residual
    raise NumericsError(f"no L D L^T factorisation of H - s I at three s from {shift:.3e}", "take another tau")


def negative_pivots(matrix: Tensor, shift: float, factored: ShiftedLDL | None = None) -> tuple[int, float, float]:
    """Eigenvalues below `shift` by Sylvester's law, the residual's Frobenius norm, and a lower bound on |lambda - s|.

    The residual L D L^T - (H - s I) is applied to eight Gaussian probes X by solving for X = (H - s I) X and bounded
    by `probe_bound`. So is the distance of the nearest eigenvalue of L D L^T from 0, after two solves:
    |(L D L^T)^-2 x| is at least a tenth of the inverse square of that distance for one of the probes x.
    """
    factored = factored or ShiftedLDL(matrix, shift)
    probes = gaussian(len(matrix), 8).to(matrix)
    images = factored.matrix @ probes
    solved, once = factored.solve(torch.cat([images, probes], dim=1)).split(8, dim=1)
    if not bool(torch.isfinite(solved).all()):
        # An exactly singular pivot: the shift is an eigenvalue to the last bit.
        return 0, float("inf"), 0.0
    residual = probe_bound(images - factored.matrix @ solved)
    gap = float((10 * factored.solve(once).norm(dim=0).max()) ** -0.5)
    return factored.negative, residual * factored.scale, gap * factored.scale


def from_spectrum(eigen: EigenResult, tau: float | None = None, upper: int | None = None) -> Inertia:
    """The inertia of a dense block with all eigenvalues computed.

    Each is within rho = 10 * n * eps * |H| + eigen.error of a true one (Weyl, backward stability), so that counts at
    -tau -+ rho bracket the index.
    """
    ritz, norm = eigen.ritz, eigen.operator_norm
    n = len(ritz)
    tolerance = (TAU_DENSE if tau is None else tau) * norm
    rho = 10 * n * torch.finfo(eigen.vectors.dtype).eps * norm + eigen.error
    require_honest(tolerance, rho, norm)
    lower, found = int((ritz < -tolerance - rho).sum()), int((ritz < -tolerance + rho).sum())
    level = "certified" if lower == found else "bracketed"
    _require_bound(upper, lower, tolerance)
    found = found if upper is None else min(found, upper)
    return _inertia(n, lower, found, int((ritz > tolerance).sum()), tolerance, level, rho)


def bracketed(
    op: LinearMap,
    eigen: EigenResult,
    rule: Quadrature,
    tau: float | None = None,
    seed: int = 0,
    upper: int | None = None,
    max_products: int = 3000,
    tolerance: float | None = None,
) -> Inertia:
    """The index of an operator too large to factor, between bounds, with a stochastic estimate beside them.

    The lower bound is the index of a projection; the upper one holds except with failure_probability (`index_bounds`),
    or is `upper`, known from theory. eigen: what `eigsh` found; rule: what `quadrature` found; tolerance: instead of
    tau, absolute.
    """
    n, norm = op.shape[0], eigen.operator_norm
    if tolerance is None:
        tolerance = (TAU_LANCZOS if tau is None else tau) * norm
    rho = product_error(op, seed) + 10 * n**0.5 * torch.finfo(op.dtype).eps * norm
    require_honest(tolerance, rho, norm)
    if norm == 0:
        return _inertia(n, 0, 0, 0, tolerance, "bracketed", rho, products=4 + rule.num_products)
    expected = rule.count_below(-GATHERED * tolerance).value
    search = index_bounds(op, eigen, tolerance, rho, FAILURE, max_products, seed, expected)
    lower = max(int((eigen.ritz < -tolerance - rho).sum()), search.lower)
    _require_bound(upper, lower, tolerance)
    # A random run's bound below the proved one has failed, and says nothing.
    shown = search.upper if search.upper is not None and search.upper >= lower else None
    bounds = [b for b in (shown, upper) if b is not None]
    highest = min([n, *bounds])
    failure = search.failure_probability if shown == highest else 0.0
    level = "bracketed" if bounds else "estimated"
    estimate = rule.count_below(-tolerance).within(lower, highest)
    products = 4 + search.num_products + rule.num_products
    return _inertia(n, lower, highest, None, tolerance, level, rho, failure, estimate, products)


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


def _require_bound(upper: int | None, lower: int, tolerance: float) -> None:
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
