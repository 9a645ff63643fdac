"""Stochastic Lanczos quadrature: spectral densities, and eigenvalue counts with intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.checks import require_count, require_positive
from landscape.curvature.eigsh import Method, is_dense
from landscape.curvature.krylov import Lanczos, advance
from landscape.curvature.operators import LinearOperator, Sound, require_symmetric
from landscape.curvature.vectors import Array, gaussian, inner, require_range, seeded, to_array
from landscape.errors import ArgumentError
from landscape.results import Curve, Interval

_BASIS_BYTES = 1 << 29
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, repr=False)
class Count(Interval):
    """How many eigenvalues lie below a point: an estimate, its standard error and a 95 % confidence interval."""

    interval = ("value", "low", "high")

    value: float
    standard_error: float
    low: int
    high: int

    def within(self, lower: int, upper: int) -> Count:
        """The same of a count known to be in [lower, upper], which is the interval where the two do not meet."""
        low, high = max(self.low, lower), min(self.high, upper)
        if low > high:
            low, high = lower, upper
        return Count(min(max(self.value, lower), upper), self.standard_error, low, high)


@dataclasses.dataclass(frozen=True)
class Quadrature:
    """Gauss quadratures of the spectral measures of Gaussian probes z: sum_j weight_j f(node_j) ~ z^T f(H) z.

    nodes (probe, step), ascending; weights (probe, step), summing to |z|^2; left_over (probe,): the most that the
    residual of a Ritz vector can be, 0 where the rule is the measure itself and infinite where the Krylov space was not
    exhausted; n: order of the operator; shorter: the rules of one step fewer, None where all spaces were exhausted;
    jacobi: the tridiagonal matrix of each rule.
    """

    nodes: Array
    weights: Array
    left_over: Array
    n: int
    num_products: int
    shorter: Quadrature | None = None
    jacobi: tuple[Array, ...] = ()

    def radau(self, at: float) -> tuple[Array, Array]:
        """Nodes and weights (probe, step) of Gauss-Radau rules with a node `at`, below the nodes of the Gauss rules.

        Of functions whose derivatives of odd order are positive they integrate no more than the measure does, if no
        eigenvalue is below `at`, and the Gauss rules no less than it does if those of even order are negative (Golub &
        Meurant 2010, chapter 6). Rules of exhausted Krylov spaces are the measure itself.
        """
        rules = []
        for T, mass, left_over in zip(self.jacobi, self.weights.sum(1), self.left_over, strict=True):
            if np.isinf(left_over):
                last = np.eye(len(T))[-1]
                below, coupled = T[:-1, :-1] - at * np.eye(len(T) - 1), T[-1, :-1]
                T = T + (at + coupled @ np.linalg.solve(below, coupled) - T[-1, -1]) * np.outer(last, last)
            rules.append(_gauss(T, mass, self.nodes.shape[1]))
        nodes, weights = np.array(rules).swapaxes(0, 1)
        return nodes, weights

    @property
    def norm(self) -> float:
        """max |node|, a lower bound of |H|."""
        return float(np.abs(self.nodes).max())

    def density(self, grid: Array, width: float) -> Smoothed:
        """The density smoothed by a Gaussian of standard deviation `width`, of mass 1 for each probe."""
        shares = self.weights / self.weights.sum(1, keepdims=True)
        each = np.stack([smooth(x, w, grid, width) for x, w in zip(self.nodes, shares, strict=True)])
        return Smoothed(each, each.mean(0) if self.shorter is None else self.shorter.density(grid, width).mean)

    def trace(self) -> tuple[float, float]:
        """The trace and its standard error over probes (Hutchinson's estimator)."""
        each = (self.nodes * self.weights).sum(1)
        return float(each.mean()), float(each.std(ddof=1) / len(each) ** 0.5)

    def count_below(self, x: float) -> Count:
        """Eigenvalues below x, with an interval that holds at 95 % whatever the spectrum.

        z^T P z of a projector of rank m is chi-squared with m degrees of freedom for Gaussian z, and the sum over
        probes with m * probes; the Chebyshev-Markov-Stieltjes inequalities, and residuals where the Krylov space was
        exhausted to rounding, bracket it by the quadratures. The interval so covers at any number of probes and steps.
        """
        from scipy.special import gammainc, gammaincc

        probes = len(self.nodes)
        rules = zip(self.nodes, self.weights, self.left_over, strict=True)
        mass = np.array([_mass_below(*rule, x) for rule in rules]).sum(0)
        lowest, estimate, highest = mass
        degrees = probes * np.arange(self.n + 1)
        tail = (1 - CONFIDENCE) / 2
        fits_low = gammaincc(degrees / 2, lowest / 2) >= tail if lowest > 0 else degrees >= 0
        fits_high = (gammainc(degrees / 2, highest / 2) >= tail) | (degrees == 0)
        value = min(float(estimate) / probes, float(self.n))
        low = int(np.argmax(fits_low)) if fits_low.any() else self.n
        return Count(value, (2 * value / probes) ** 0.5, low, int(np.flatnonzero(fits_high).max()))


def quadrature(op: LinearOperator, probes: int = 8, steps: int = 80, seed: int = 0) -> Quadrature:
    """Lanczos from `probes` Gaussian vectors, `steps` products each, partially reorthogonalised."""
    require_symmetric(op)
    op = Sound(op)
    require_count("probes", probes)
    if probes < 2:
        raise ArgumentError(f"{probes} probe: a standard error takes at least 2", "give more probes, such as 8")
    require_count("steps", steps)
    n = op.shape[0]
    steps = min(steps, n)
    together = max(1, min(probes, _BASIS_BYTES // (8 * n * steps))) if op.device.type == "cuda" else 1
    generator = seeded(seed)
    rules, shorter, left_over, jacobi = [], [], [], []
    for start in range(0, probes, together):
        z = gaussian(n, min(together, probes - start), generator).to(op.device, op.dtype)
        masses = inner(z, z).diagonal().tolist()
        for run, mass in zip(_lockstep(op, z, steps), masses, strict=True):
            T = run.T[: run.filled, : run.filled].copy()
            jacobi.append(T)
            left_over.append(_left_over(run))
            rules.append(_gauss(T, mass, steps))
            m = len(T) - (len(T) > 1 and not run.exhausted)
            shorter.append(_gauss(T[:m, :m], mass, steps))
    (nodes, weights), (fewer, shares) = (np.array(rule).swapaxes(0, 1) for rule in (rules, shorter))
    most, products = np.array(left_over), sum(map(len, jacobi))
    fewer_steps = None if np.isfinite(most).all() else Quadrature(fewer, shares, most, n, products)
    return Quadrature(nodes, weights, most, n, products, fewer_steps, tuple(jacobi))


@dataclasses.dataclass(frozen=True)
class Smoothed:
    """A smoothed density on a grid: each (probe, point), one row where it is known; shorter (point,): the mean of
    quadratures of one step fewer.
    """

    each: Array
    shorter: Array

    @classmethod
    def known(cls, density: Array) -> Smoothed:
        """The density of known eigenvalues."""
        return cls(density[None], density)

    @property
    def mean(self) -> Array:
        """The estimate."""
        mean: Array = self.each.mean(0)
        return mean

    @property
    def standard_error(self) -> Array:
        """Standard error of the mean: over probes, and what one step fewer changes; 0 for known eigenvalues.

        Where the steps do not resolve a spectrum, all probes miss the same. Far fewer steps than 1 / bandwidth miss
        more than this shows.
        """
        probes = len(self.each)
        if probes < 2:
            return np.zeros(self.each.shape[1])
        error: Array = np.hypot(self.each.std(0, ddof=1) / probes**0.5, self.mean - self.shorter)
        return error


@dataclasses.dataclass(frozen=True, repr=False)
class SpectralDensity(Curve):
    """A smoothed spectral density, for display only: do not read an index from it.

    Attributes:
        grid, density: (point,).
        standard_error: (point,); over probes, and what one step fewer changes. 0 where every eigenvalue is known.
        width: standard deviation of the Gaussian.
        num_products: Hessian-vector products.
    """

    axes = {"density": ("point",), "grid": ("point",), "standard_error": ("point",)}
    x, y, spread = "grid", "density", "standard_error"
    words = {"grid": "eigenvalue", "density": "spectral density"}

    grid: Array
    density: Array
    standard_error: Array
    width: float
    num_products: int


def spectral_density(
    op: LinearOperator,
    bandwidth: float = 1e-2,
    points: int = 512,
    probes: int = 8,
    steps: int = 80,
    method: Method = "auto",
    seed: int = 0,
) -> SpectralDensity:
    """The density of the eigenvalues of a symmetric operator, smoothed by a Gaussian.

    Features narrower than about |H| / steps are not resolved. Stochastic Lanczos quadrature: Ghorbani et al., arXiv
    1901.10159.

    Args:
        op: the operator (n, n).
        bandwidth: standard deviation of the Gaussian, relative to |H|.
        points: of the grid.
        probes: Gaussian vectors of the quadrature.
        steps: products for each probe.
        method: "dense", from every eigenvalue; "lanczos"; or "auto", which is dense up to 8000 rows.
        seed: of the probes.

    Returns:
        The density on a grid, with its standard error.

    Raises:
        ArgumentError: for an operator that is not symmetric, and for invalid numbers.
    """
    require_symmetric(op)
    require_positive("bandwidth", bandwidth)
    require_count("points", points, 2)
    if is_dense(method, op.shape[0]):
        values = to_array(torch.linalg.eigvalsh(op.symmetric().double().matrix))
        require_range(float(np.abs(values).max()), op.dtype)
        grid, width = density_grid(np.abs(values).max(), bandwidth, points)
        return SpectralDensity(grid, density_of(values, grid, width), np.zeros(points), width, 0)
    rule = quadrature(op, probes, steps, seed)
    grid, width = density_grid(rule.norm, bandwidth, points)
    smoothed = rule.density(grid, width)
    return SpectralDensity(grid, smoothed.mean, smoothed.standard_error, width, rule.num_products)


def density_grid(norm: float, bandwidth: float, points: int) -> tuple[Array, float]:
    """`points` eigenvalues that span [-norm, norm] and the tails of the smoothing, and the smoothing's width."""
    width = bandwidth * norm if norm > 0 else bandwidth
    reach = norm + 4 * width
    return np.linspace(-reach, reach, points), width


def density_of(values: Array, grid: Array, width: float) -> Array:
    """The smoothed density of known eigenvalues."""
    return smooth(values, np.full(len(values), 1 / len(values)), grid, width)


def smooth(nodes: Array, weights: Array, grid: Array, width: float) -> Array:
    """sum_j weight_j N(grid; node_j, width^2)."""
    result = np.zeros(len(grid))
    for start in range(0, len(nodes), 1024):
        part = slice(start, start + 1024)
        away = (grid[:, None] - nodes[None, part]) / width
        result += np.exp(-0.5 * away**2) @ weights[part]
    normalised: Array = result / (width * (2 * np.pi) ** 0.5)
    return normalised


def jensen_shannon(p: Array, q: Array) -> float:
    """Jensen-Shannon distance (base 2, 0 to 1) of two densities on one grid: the heterogeneity of arXiv 2402.16788.

    p, q (point,): of any positive sum. Raises ArgumentError for numbers that are negative or not finite, and for two
    lengths.
    """
    from scipy.special import rel_entr

    p, q = _densities(p, q)
    # Tails that underflow in the mean would have infinite logarithms.
    p, q = (np.where(x > 1e-200, x, 0.0) for x in (p, q))
    middle = (p + q) / 2
    divergence = float((rel_entr(p, middle) + rel_entr(q, middle)).sum()) / (2 * np.log(2))
    # Rounding can make the distance of equal densities slightly negative.
    return float(max(divergence, 0.0) ** 0.5)


def _densities(p: Any, q: Any) -> tuple[Array, Array]:
    """Two densities, each divided by its sum. Raises ArgumentError for what are none on one grid."""
    try:
        densities = [np.asarray(x, dtype=np.float64) for x in (p, q)]
    except (TypeError, ValueError, RuntimeError):
        densities = []
    if (
        not densities
        or any(x.ndim != 1 or not (np.isfinite(x) & (x >= 0)).all() or not x.any() for x in densities)
        or len(densities[0]) != len(densities[1])
    ):
        raise ArgumentError(
            "not two densities of one length, of finite numbers that are not negative, nor all 0",
            "give `density` of two results on one grid",
        )
    return densities[0] / densities[0].sum(), densities[1] / densities[1].sum()


def jensen_shannon_error(p: Smoothed, q: Smoothed) -> float:
    """Half the width of a 95 % interval about the Jensen-Shannon distance of two estimated densities; 0 if known.

    The distance is one of a Hilbert space (Fuglede & Topsoe 2004): independent noise, whose square is that of the
    probes' distances from one another, and what the steps do not resolve, about half of what one step fewer changes,
    add their squares to its square. To this bias come Student's t times the jackknife's standard error over the
    probes, and what one step fewer does to the distance itself.
    """
    from scipy.special import stdtrit

    if p is q:
        return 0.0
    distance = jensen_shannon(p.mean, q.mean)
    squared, variance, changed, probes = 0.0, 0.0, 0.0, 2
    for one, other in ((p, q), (q, p)):
        squared += (jensen_shannon(one.mean, one.shorter) / 2) ** 2
        changed += abs(jensen_shannon(one.shorter, other.mean) - distance)
        if (count := len(one.each)) > 1:
            rest = [np.delete(one.each, i, 0).mean(0) for i in range(count)]
            noise = [jensen_shannon(x, y) ** 2 for x, y in zip(one.each, rest, strict=True)]
            squared += (count - 1) / count**2 * float(np.mean(noise))
            variance += (count - 1) * float(np.var([jensen_shannon(x, other.mean) for x in rest]))
            probes = max(probes, count)
    bias = distance - max(distance**2 - squared, 0.0) ** 0.5
    return float(bias + stdtrit(probes - 1, (1 + CONFIDENCE) / 2) * variance**0.5 + changed)


def distances(densities: Sequence[Smoothed]) -> tuple[Array, Array]:
    """Jensen-Shannon distances (m, m) of m densities on one grid, and their errors."""
    m = len(densities)
    pairs = [(p, q) for p in densities for q in densities]
    distance = np.array([jensen_shannon(p.mean, q.mean) for p, q in pairs]).reshape(m, m)
    return distance, np.array([jensen_shannon_error(p, q) for p, q in pairs]).reshape(m, m)


def _lockstep(op: LinearOperator, z: Tensor, steps: int) -> list[Lanczos]:
    """Lanczos runs from the columns of z, `steps` products each unless exhausted before, which share the products."""
    runs = [Lanczos(op, steps) for _ in range(z.shape[1])]
    for run, probe in zip(runs, z.split(1, dim=1), strict=True):
        run.lead(probe)
    while going := [run for run in runs if run.filled < steps and not run.exhausted]:
        advance(op, going)
    return runs


def _gauss(T: Array, mass: float, length: int) -> tuple[Array, Array]:
    """Nodes and weights (length,) of the rule with the Jacobi matrix T, for the measure of a start of |z|^2 = mass."""
    theta, S = np.linalg.eigh(T)
    # Rules of one length: the rest are copies of the highest node, without weight.
    missing = (0, length - len(T))
    return np.pad(theta, missing, mode="edge"), np.pad(mass * S[0] ** 2, missing)


def _left_over(run: Lanczos) -> float:
    """The most that the residual of a Ritz vector can be: an exhausted space is invariant to rounding only."""
    if run.filled == run.order:
        return 0.0
    return run.rounding * run.scale + run.lost if run.exhausted else np.inf


def _mass_below(nodes: Array, weights: Array, left_over: float, x: float) -> tuple[float, float, float]:
    """Spectral mass of z below x: a lower bound, the quadrature's own value, an upper bound.

    By Chebyshev, Markov and Stieltjes; or by residuals, where these are small: z is the sum of sqrt(w) y over its Ritz
    vectors y, and as (H - node) y = r, no more than |r| / |node - x| of one lies beyond x.
    """
    i = int((nodes < x).sum())
    cumulative = np.concatenate([[0.0], np.cumsum(weights)])
    low, estimate, high = cumulative[max(i - 1, 0)], cumulative[i], cumulative[min(i + 1, len(weights))]
    if left_over < np.inf:
        away = np.abs(nodes - x)
        # A node at x itself may lie on either side, as a whole.
        shares = np.sqrt(weights) * np.divide(left_over, away, out=np.ones_like(away), where=away > left_over)
        lost, gained = shares[:i].sum(), shares[i:].sum()
        kept = max(0.0, estimate - lost**2)
        low = max(low, kept - 2 * kept**0.5 * gained + gained**2 if gained**2 < kept else 0.0)
        high = min(high, estimate + 2 * estimate**0.5 * gained + gained**2)
    return low, estimate, high
