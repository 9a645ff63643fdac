"""Index curves: how many eigenvalues lie below -tau, over ten decades of tau."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from landscape.curvature.checks import require_count
from landscape.curvature.density import Quadrature, quadrature
from landscape.curvature.eigsh import EigenResult, Method, eigsh, is_dense, operator_norm
from landscape.curvature.inertia import Inertia, between, bracket, counted, least, require_bound
from landscape.curvature.operators import MEASURED, LinearOperator, MatrixOperator, product_error, require_symmetric
from landscape.curvature.vectors import Array
from landscape.results import Curve, best_known

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TAUS = tuple(float(f"1e-{decade}") for decade in range(11))
"""The tolerances of a curve, relative to |H|."""
_ORDER = (0, 10, 5, 2, 8, 1, 3, 4, 6, 7, 9)
"""In which they are factorised: the ends first, then middles, so that nothing is counted between equal counts."""

Counts = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, repr=False)
class IndexCurve(Curve):
    """How many eigenvalues lie below -tau |H|, from tau = 1 down to 1e-10.

    Attributes:
        tau: (tau,) relative to |H|.
        lower, upper: (tau,) bounds on the count.
        estimate, estimate_low, estimate_high: (tau,) stochastic count with its 95 % interval, within the bounds; NaN
            where the bounds meet and where none was made.
        operator_norm: |H|.
        failure_probability: that one of the upper bounds fails; 0 where all are proved.
        num_products: Hessian-vector products.
    """

    axes = dict.fromkeys(("lower", "upper", "estimate", "estimate_low", "estimate_high", "tau"), ("tau",))
    x, y, spread = "tau", "index", ("low", "high")
    words = {"tau": "τ / |H|", "index": "eigenvalues below −τ"}

    tau: Array
    lower: Counts
    upper: Counts
    estimate: Array
    estimate_low: Array
    estimate_high: Array
    operator_norm: float
    failure_probability: float = 0.0
    num_products: int = 0

    def facts(self) -> Iterator[tuple[str, object]]:
        """A count for each tau, and the single numbers."""
        bounds = zip(self.lower, self.upper, self.estimate, self.estimate_low, self.estimate_high, strict=True)
        for tau, (lower, upper, estimate, low, high) in zip(self.tau, bounds, strict=True):
            about = "" if np.isnan(estimate) else f", about {estimate:.0f} ({low:.0f} to {high:.0f})"
            yield f"below -{tau:.0e} |H|", f"{lower}" if lower == upper else f"{lower} to {upper}{about}"
        yield from ((name, getattr(self, name)) for name in ("operator_norm", "failure_probability", "num_products"))

    def to_dataframe(self) -> pd.DataFrame:
        """A row for each tau; `index`, from `low` to `high`, is the best that is known."""
        return best_known(super().to_dataframe())

    def plot(self, ax: Axes | None = None, **style: Any) -> Axes:
        """Draw the curve on matplotlib axes, by default new ones, in a style of `Axes.plot`; returns the axes."""
        ax = super().plot(ax, **style)
        ax.set_xscale("log")
        return ax


def index_curve(
    op: LinearOperator, method: Method = "auto", seed: int = 0, upper: int | None = None, max_hvps: int = 3000
) -> IndexCurve:
    """The number of eigenvalues below -tau of a symmetric operator, over ten decades of tau (cf. `saddle_index`).

    An index depends on its tolerance: in a wide net one at a tiny tau says little more than that there is a gradient.
    No tau is refused: within the error of H the bounds are wider.

    Args:
        op: the operator (n, n).
        method: "dense" counts by LDL^T factorisations in float64, at most one for each tau; "lanczos" gives a lower
            bound and a stochastic estimate; "auto" is dense up to 8000 rows.
        seed: of the random vectors.
        upper: a bound on the index from theory, such as d rank(G) (F14).
        max_hvps: largest number of products of the search for a lower bound; the estimate takes 640 more.

    Returns:
        The curve, with bounds and estimates.

    Raises:
        NumericsError: if more eigenvalues than `upper` are negative.
    """
    require_symmetric(op)
    if upper is not None:
        require_count("upper", upper, 0)
    n = op.shape[0]
    if is_dense(method, n):
        H = op.symmetric().double()
        norm = operator_norm(H, seed)
        known = [] if upper is None else [_at_smallest_tau(H, norm)]
        return by_factorisations(H, norm, known, upper)
    eigen = eigsh(op, 10, method="lanczos", seed=seed, max_hvps=max_hvps)
    error = product_error(op, seed) + 10 * n**0.5 * torch.finfo(op.dtype).eps * eigen.operator_norm
    rule = quadrature(op, seed=seed)
    curve = by_products(eigen, error, rule, most=upper)
    return dataclasses.replace(curve, num_products=eigen.num_products + MEASURED + rule.num_products)


def _at_smallest_tau(H: MatrixOperator, norm: float) -> Inertia:
    """The index at the smallest tolerance, which shows whether a bound from theory holds."""
    tolerance = TAUS[-1] * norm
    lower, upper, _ = bracket(H.matrix, tolerance, least(H.matrix, norm, H.error), H.error)
    return between(H.shape[0], tolerance, lower, upper)


def by_spectrum(eigen: EigenResult, error: float, most: int | None = None) -> IndexCurve:
    """The curve of a block with all eigenvalues computed, each within `error` of a true one."""
    bounds = _Bounds(len(eigen.ritz), eigen.operator_norm, most)
    for tolerance in bounds.at:
        bounds.narrow(tolerance, *counted(eigen.ritz, tolerance, error))
    return bounds.curve()


def by_factorisations(
    H: MatrixOperator, norm: float, known: Iterable[Inertia] = (), most: int | None = None
) -> IndexCurve:
    """The curve of a dense block by L D L^T at each tolerance at which the counts of others leave it open."""
    bounds = _Bounds(len(H.matrix), norm, most)
    for one in known:
        bounds.narrow(one.tolerance, one.lower, one.upper, one.failure_probability)
    if norm == H.error == 0:
        bounds.narrow(0.0, 0, 0)
    rho = least(H.matrix, norm, H.error)
    for i in _ORDER:
        if i in bounds.open:
            lower, upper, _ = bracket(H.matrix, bounds.at[i], rho, H.error)
            bounds.narrow(bounds.at[i], lower, upper)
    return bounds.curve()


def by_products(
    eigen: EigenResult,
    error: float,
    rule: Quadrature | None = None,
    known: Iterable[Inertia] = (),
    most: int | None = None,
) -> IndexCurve:
    """The curve of an operator too large to factor.

    Ritz values bound it from below. Above the depth of the lowest eigenvalue it is 0, except with
    `hidden_failure_probability`. What is still open is estimated by `rule`.
    known: indices at some tolerances, proved ones first; error: of the products, in norm.
    """
    bounds = _Bounds(eigen.vectors.shape[1], eigen.operator_norm, most)
    for tolerance in bounds.at:
        bounds.narrow(tolerance, counted(eigen.ritz, tolerance, error)[0], bounds.n)
    for one in known:
        bounds.narrow(one.tolerance, one.lower, one.upper, one.failure_probability)
    depth = max(0.0, float(eigen.hidden[0] - eigen.values[0, 0]) + error)
    bounds.narrow(depth, 0, 0, eigen.hidden_failure_probability)
    return bounds.curve(rule, error)


class _Bounds:
    """Bounds on the index at each tolerance, which every count narrows: the index falls as the tolerance grows."""

    def __init__(self, n: int, norm: float, most: int | None) -> None:
        self.n, self.norm, self.at = n, norm, norm * np.array(TAUS)
        self.most = n if most is None else min(n, most)
        self.lower, self.upper = np.zeros(len(TAUS), np.int64), np.full(len(TAUS), self.most, np.int64)
        self.failure_probability = 0.0

    @property
    def open(self) -> Counts:
        """Where the bounds do not meet."""
        return np.flatnonzero(self.lower < self.upper)

    def narrow(self, tolerance: float, lower: int, upper: int, failure_probability: float = 0.0) -> None:
        """Take bounds at one tolerance; failure_probability: of the upper one."""
        raised = np.where(self.at <= tolerance, np.maximum(self.lower, lower), self.lower)
        lowered = np.where(self.at >= tolerance, np.minimum(self.upper, upper), self.upper)
        require_bound(self.most, int(raised.max()), tolerance)
        self.lower = raised
        # A random bound below a proved one has failed, and says nothing.
        if (lowered < self.upper).any() and (lowered >= self.lower).all():
            self.upper, self.failure_probability = lowered, self.failure_probability + failure_probability

    def curve(self, rule: Quadrature | None = None, error: float = 0.0) -> IndexCurve:
        """What is known, with the estimates of a quadrature of products in error where the bounds do not meet."""
        estimate = np.full((3, len(TAUS)), np.nan)
        for i in self.open if rule else ():
            assert rule
            low, middle, high = (rule.count_below(side - self.at[i]) for side in (-error, 0.0, error))
            count = dataclasses.replace(middle, low=low.low, high=high.high)
            count = count.within(int(self.lower[i]), int(self.upper[i]))
            estimate[:, i] = count.value, count.low, count.high
        return IndexCurve(
            np.array(TAUS),
            self.lower,
            self.upper,
            estimate[0],
            estimate[1],
            estimate[2],
            self.norm,
            self.failure_probability,
        )
