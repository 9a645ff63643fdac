"""From a point to the nearest critical point: least squares on the gradient inside a trust region."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.arguments import require_count, require_positive
from landscape.curvature.checks import require_parameters
from landscape.curvature.krylov import Krylov, advance
from landscape.curvature.objective import Objective, require_objective
from landscape.curvature.operators import HessianOperator, LinearMap
from landscape.curvature.spaces import VectorSpace
from landscape.curvature.vectors import Array
from landscape.former import renamed
from landscape.results import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BASIS = 400
"""Longest Krylov basis of a step: bounds memory, n x 400 numbers."""
_CHECK_EVERY = 20
"""Products between two checks of the length of a step."""
FLAT = 1e-2
"""|H g| / (|H| |g|) below which a point that cannot be improved is gradient-flat."""
_FIRST_RADIUS = 0.05
_RESTARTS, _PATIENCE = 4, 5
_CORRECTIONS, _SHORT, _REDUCTION = 12, 100, 0.2
"""Corrections of a step: how many, their longest basis, and what one leaves of |grad| at least."""


@dataclasses.dataclass(frozen=True, repr=False)
class CriticalPoint(Curve):
    """The end of a search for a critical point.

    status: "critical" (|grad| <= tol); "gradient-flat" (the search ended at a nonzero gradient along directions of
    almost no curvature, Frye et al. 2021); "unfinished" (it was stopped, or used up its products). flatness: |H g| /
    (|H| |g|). gradient_norms, hvps (iteration,): |grad| and the products until then, at the start of this call and
    after each of its iterations; `plot` draws the one over the other.
    """

    axes: ClassVar = {"gradient_norms": ("iteration",), "hvps": ("iteration",)}
    x, y = "hvps", "gradient_norms"
    words = {"hvps": "Hessian-vector products", "gradient_norms": "gradient norm"}

    params: dict[str, Tensor]
    status: str
    grad_norm: float
    flatness: float
    iterations: int
    num_products: int
    gradient_norms: Array
    hvps: Array

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw |grad| over the products, on a log scale; by default on new axes. Returns them."""
        ax = super().plot(ax)
        ax.set_yscale("log")
        return ax


@dataclasses.dataclass
class SearchState:
    """The state of a search between two steps, complete for an exact resume.

    params: the point; radius: of the trust region; largest: the one to restart with; krylov_radius: that for which the
    Krylov space of the point was made, NaN where none was; first, at_restart: |grad| at the start and at the last
    restart; norm: the largest |H| seen; stalled: steps in a row that gained little; restarts: those that did.
    """

    params: dict[str, Tensor]
    radius: float
    largest: float
    krylov_radius: float
    first: float
    at_restart: float
    norm: float = 0.0
    stalled: int = 0
    restarts: int = 0
    iterations: int = 0
    num_products: int = 0

    @classmethod
    def begin(cls, objective: Objective, params: Mapping[str, Tensor], num_products: int = 0) -> SearchState:
        """The start of a search."""
        radius = _FIRST_RADIUS * max(_norm(params), 1.0)
        first = _norm(objective.gradient(params))
        return cls(dict(params), radius, radius, np.nan, first, first, num_products=num_products)


@renamed(max_products="max_hvps")
def find_critical_point(
    objective: Objective,
    params: Mapping[str, Tensor],
    tol: float = 1e-10,
    max_hvps: int = 60_000,
    progress: Callable[[float, int], bool] | None = None,
    hessian: Callable[[Mapping[str, Tensor]], LinearMap] | None = None,
    state: SearchState | None = None,
    save: Callable[[SearchState], None] | None = None,
) -> CriticalPoint:
    """Minimise |grad|^2 by Levenberg-Marquardt steps |grad + H s| -> min, |s| <= radius, in a Krylov space of H.

    A step that leaves the valley of small gradients is followed back into it by further steps before it is judged.
    A search that stalls is restarted with the first radius; one that stalls again without a tenth less of |grad| ends.
    progress: called with |grad| and the products so far after each step; True ends the search. hessian: the Hessian
    at given parameters, all of them in their order; by default by automatic differentiation. save: called with the
    state at the start and after each step; a search that is given such a `state` ends bit for bit as the one that saved
    it, and at once where that one had come to rest. tol: of |grad|; max_hvps: products after which the search ends.
    Raises ArgumentError and NumericsError for what `HessianOperator` refuses.
    """
    require_objective(objective)
    require_parameters(params, objective.device)
    require_positive("tol", tol)
    require_count("max_hvps", max_hvps, 0)
    search = _Search(objective, params, hessian or (lambda at: HessianOperator(objective, at)))
    at = dataclasses.replace(state) if state else SearchState.begin(objective, params)
    if save and not state:
        save(dataclasses.replace(at))
    theta = search.join(at.params)
    g = search.gradient(theta)
    norm = float(g.norm())

    def space() -> _Krylov:
        return search.krylov(theta, g, min(0.1, (norm / at.first) ** 0.5), at.krylov_radius)

    # A rejected step leaves the point and its Krylov space as they were; made again, its products count once.
    krylov = None if np.isnan(at.krylov_radius) else space()
    search.num_products = at.num_products
    history = [(norm, at.num_products)]
    while norm > tol and search.num_products < max_hvps and at.restarts <= _RESTARTS:
        if krylov is None:
            at.krylov_radius = at.radius
            krylov = space()
        at.norm = max(at.norm, krylov.norm)
        s, predicted, on_boundary = krylov.step(at.radius)
        goal = norm - 0.25 * (norm - predicted)
        found, g_found, corrections = search.back(theta + s, goal, 0.5 * at.radius)
        reached = float(g_found.norm())
        at.iterations += 1
        at.stalled = at.stalled + 1 if reached > 0.93 * norm else 0
        if reached <= goal:
            theta, g, norm, krylov = found, g_found, reached, None
            at.params, at.krylov_radius = search.split(theta), np.nan
            at.radius *= 2 if on_boundary and corrections <= _CORRECTIONS // 2 else 1
        else:
            at.radius = 0.4 * float(s.norm())
        if at.stalled >= _PATIENCE:
            at.restarts += norm > 0.9 * at.at_restart
            at.stalled, at.at_restart, at.radius = 0, norm, at.largest
        at.num_products = search.num_products
        history.append((norm, at.num_products))
        if save:
            save(dataclasses.replace(at))
        if progress and progress(norm, at.num_products):
            break
    Hg = search.operator(theta) @ g
    flatness = float(Hg.norm()) / (norm * at.norm) if norm > 0 and at.norm > 0 else 0.0
    is_flat = at.restarts > _RESTARTS and flatness <= FLAT
    status = "critical" if norm <= tol else "gradient-flat" if is_flat else "unfinished"
    norms, hvps = map(np.array, zip(*history, strict=True))
    point = search.split(theta)
    return CriticalPoint(point, status, norm, flatness, at.iterations, search.num_products, norms, hvps)


def _norm(pieces: Mapping[str, Tensor]) -> float:
    return float(torch.cat([p.detach().reshape(-1) for p in pieces.values()]).norm())


class _Search:
    """The objective as functions of one flat vector, with a count of products."""

    def __init__(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        hessian: Callable[[Mapping[str, Tensor]], LinearMap],
    ) -> None:
        self.objective, self.shapes = objective, {n: p.shape for n, p in params.items()}
        self.hessian = hessian
        self.num_products = 0

    def join(self, params: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([params[n].detach().reshape(-1) for n in self.shapes]).to(self.objective.dtype)

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        pieces = theta.split([shape.numel() for shape in self.shapes.values()])
        return {n: piece.view(shape) for (n, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def gradient(self, theta: Tensor) -> Tensor:
        gradient = self.objective.gradient(self.split(theta))
        return torch.cat([gradient[n].reshape(-1) for n in self.shapes])

    def operator(self, theta: Tensor) -> LinearMap:
        return self.hessian(self.split(theta))

    def krylov(self, theta: Tensor, g: Tensor, rtol: float, radius: float, longest: int = BASIS) -> _Krylov:
        space = _Krylov(self.operator(theta), g, rtol, radius, longest)
        self.num_products += space.num_products
        return space

    def back(self, theta: Tensor, goal: float, radius: float) -> tuple[Tensor, Tensor, int]:
        """Take short steps until |grad| reaches the goal or stops falling; returns point, gradient, number of steps.

        Each step reduces only part of |grad| and therefore moves along stiff directions, which keeps the gain of the
        preceding step along soft ones.
        """
        g = self.gradient(theta)
        failures = 0
        for corrections in range(_CORRECTIONS):
            norm = float(g.norm())
            if norm <= goal or failures == 2 or not np.isfinite(norm):
                return theta, g, corrections
            reduction = max(_REDUCTION, 0.7 * goal / norm)
            theta = theta + self.krylov(theta, g, reduction, radius, _SHORT).step(radius, reduction)[0]
            g = self.gradient(theta)
            failures += float(g.norm()) > 0.9 * norm
        return theta, g, _CORRECTIONS


class _Krylov:
    """A Krylov basis of (H, g), grown until a step inside the radius brings |g + H s| to rtol |g|."""

    def __init__(self, op: LinearMap, g: Tensor, rtol: float, radius: float, longest: int) -> None:
        krylov = Krylov(VectorSpace(op), min(longest, len(g)))
        krylov.lead(g[:, None])
        self.beta = float(g.norm())
        while True:
            advance(op, [krylov])
            m = krylov.filled
            last = krylov.exhausted or m == krylov.columns
            if last or m % _CHECK_EVERY == 0:
                self.V, self.T = krylov.basis[:, :m], np.vstack([krylov.T[:m, :m], krylov.coupling])
                self.svd = np.linalg.svd(self.T, full_matrices=False)
                if last or self.step(radius)[1] <= rtol * self.beta:
                    break
        self.num_products = m
        self.norm = float(self.svd[1][0])

    def step(self, radius: float, reduction: float = 0.0) -> tuple[Tensor, float, bool]:
        """The s that minimises |g + H s| with |s| <= radius, that minimum, and whether the radius held it back.

        With a reduction, the shortest s that brings it to reduction |g|, if the radius allows that.
        """
        U, sigma, Vt = self.svd
        c = U[0] * self.beta
        kept = sigma > 1e-13 * sigma[0]

        def damped(mu: float) -> Array:
            y: Array = -Vt[kept].T @ (sigma[kept] * c[kept] / (sigma[kept] ** 2 + mu))
            return y

        def left(y: Array) -> float:
            residual = self.T @ y
            residual[0] += self.beta
            return float(np.linalg.norm(residual))

        # With the damping the step shrinks and what is left grows: bisect its logarithm.
        low, high = -40.0, 2 * np.log10(sigma[0]) + 20
        y = damped(0.0)
        on_boundary = bool(np.linalg.norm(y) > radius)
        if on_boundary or reduction:
            for _ in range(60):
                middle = (low + high) / 2
                y = damped(10**middle)
                too_long = np.linalg.norm(y) > radius
                enough = left(y) <= reduction * self.beta
                low, high = (middle, high) if too_long or enough else (low, middle)
            y = damped(10**high)
        return self.V @ torch.from_numpy(y).to(self.V), left(y), on_boundary
