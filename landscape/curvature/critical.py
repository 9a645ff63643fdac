"""From a point to the nearest critical point: least squares on the gradient inside a trust region."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.checks import require_count, require_parameters, require_positive
from landscape.curvature.krylov import Krylov, advance
from landscape.curvature.objective import Objective, require_objective
from landscape.curvature.operators import HessianOperator, LinearOperator
from landscape.curvature.rounding import rounding_change
from landscape.curvature.vectors import Array, gaussian, norm
from landscape.results import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BASIS = 400
"""Longest Krylov basis of a step: bounds memory, n x 400 numbers."""
_CHECK_EVERY = 20
"""Products between two checks of the length of a step."""
FLAT = 1e-2
"""|H g| / (|H| |g|) below which a point that cannot be improved is gradient-flat."""
SHRINKING = 0.9
"""Share of a Newton step that the next one may have: (k - 2) / (k - 1) where the loss is x^k, 1 or more at infinity."""
NEAR = 1e-3
"""Distance in units of |theta| at which rounding may hide a degenerate critical point: eps^(1 / (k - 1)) for x^k."""
LOST = 10
"""Times its rounding of a gradient whose Newton step is no longer measured: each component above it still counts."""
VANISHED = 1e-10
"""What of the first |grad| is left when a search whose Newton steps do not shrink is not followed any further."""
_FIRST_RADIUS = 0.05
_RESTARTS, _PATIENCE = 4, 5
_LEAST = 1e-13
"""|H| along a direction that a step may take, in units of |H|: below it is rounding."""
_CORRECTIONS, _SHORT, _REDUCTION = 12, 100, 0.2
"""Corrections of a step: how many, their longest basis, and what one leaves of |grad| at least."""


@dataclasses.dataclass(frozen=True, repr=False)
class CriticalPoint(Curve):
    """The end of a search for a critical point.

    Attributes:
        params: the point.
        status: "critical": `remaining` is at most tol |theta|, or the gradient is rounding and `remaining` small;
            "gradient-flat": the gradient lies along directions of almost no curvature (Frye et al. 2021);
            "at-infinity": the gradient vanishes, and Newton steps do not shrink; "unfinished": the search was stopped,
            or used up its products.
        grad_norm: norm of the gradient.
        remaining: distance to the critical point, as Newton steps predict it, in units of the parameters; infinite
            where they do not shrink, NaN where the search began with a gradient that is rounding.
        flatness: |H g| / (|H| |g|).
        iterations: steps of the search.
        num_products: Hessian-vector products.
        gradient_norms, hvps: |grad| and the products until then (iteration,), at the start and after each iteration.
    """

    axes: ClassVar = {"gradient_norms": ("iteration",), "hvps": ("iteration",)}
    x, y = "hvps", "gradient_norms"
    words = {"hvps": "Hessian-vector products", "gradient_norms": "gradient norm"}

    params: dict[str, Tensor]
    status: str
    grad_norm: float
    remaining: float
    flatness: float
    iterations: int
    num_products: int
    gradient_norms: Array
    hvps: Array

    def plot(self, ax: Axes | None = None, **style: Any) -> Axes:
        """Draw |grad| over the products, on a log scale.

        Args:
            ax: axes to draw on; by default new ones.
            style: of `Axes.plot`.

        Returns:
            The axes.
        """
        ax = super().plot(ax, **style)
        ax.set_yscale("log")
        return ax


@dataclasses.dataclass
class SearchState:
    """The state of a search between two steps, complete for an exact resume.

    params: the point; radius: of the trust region; largest: the one to restart with; krylov_radius: that for which the
    Krylov space of the point was made, NaN where none was; first, at_restart: |grad| at the start and at the last
    restart; norm: the largest |H| seen; newton: length of the Newton step at the point before, NaN where none was
    taken; remaining: as of a CriticalPoint; stalled: steps in a row that gained little; restarts: those that did.
    """

    params: dict[str, Tensor]
    radius: float
    largest: float
    krylov_radius: float
    first: float
    at_restart: float
    norm: float = 0.0
    newton: float = np.nan
    remaining: float = np.nan
    stalled: int = 0
    restarts: int = 0
    iterations: int = 0
    num_products: int = 0

    @classmethod
    def begin(cls, objective: Objective, params: Mapping[str, Tensor], num_products: int = 0) -> SearchState:
        """The start of a search."""
        radius = _FIRST_RADIUS * (norm(params) or 1.0)
        first = norm(objective.gradient(params))
        return cls(dict(params), radius, radius, np.nan, first, first, num_products=num_products)


def find_critical_point(
    objective: Objective,
    params: Mapping[str, Tensor],
    tol: float = 1e-10,
    max_hvps: int = 60_000,
    progress: Callable[[float, int], bool] | None = None,
    hessian: Callable[[Mapping[str, Tensor]], LinearOperator] | None = None,
    state: SearchState | None = None,
    save: Callable[[SearchState], None] | None = None,
) -> CriticalPoint:
    """Search a point where the gradient is 0, of any index, by Levenberg-Marquardt steps in a Krylov space of H.

    It minimises |grad|^2 by steps |grad + H s| -> min, |s| <= radius. A step that leaves the valley of small gradients
    is followed back into it before it is judged. A search that stalls is restarted with the first radius; one that
    stalls again without a tenth less of |grad| ends.

    |grad| has units and also vanishes at infinity, so a point is judged by its distance from where the gradient is 0.
    Newton steps s = -H^+ grad predict it: with q the ratio of one step to the one before, |s| / (1 - q) remains, and it
    counts as infinite for q >= 0.9. q is 0 at a regular critical point, 2/3 for x^4, 1 for e^-x, 3/2 for 1/x.
    Directions without curvature count as steps of length |grad| / (eps |H|), unless the gradient along them is less
    than its own rounding, which is measured. If the whole gradient is rounding, the last prediction must be at most
    1e-3 |theta|. No verdict depends on the units of the loss or of theta.

    Args:
        objective: the objective.
        params: where to start.
        tol: distance, relative to |theta|, up to which a point is critical.
        max_hvps: products after which the search ends.
        progress: called with |grad| and the products so far after each step; True ends the search.
        hessian: the Hessian at given parameters, all of them in their order. Default: automatic differentiation.
        state: of an earlier search, which ends bit for bit as if it had not been stopped.
        save: called with the state at the start and after each step.

    Returns:
        The point, its status, and how the gradient fell.

    Raises:
        LandscapeError: for what `HessianOperator` refuses.
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

    # A rejected step keeps the point and its Krylov space; a resumed search builds that again, and counts it once.
    krylov = None if np.isnan(at.krylov_radius) else space()
    search.num_products = at.num_products
    history = [(norm, at.num_products)]
    status = ""
    while not status:
        is_new, scale = krylov is None, max(at.largest / _FIRST_RADIUS, float(theta.norm()))
        if is_new and norm <= LOST * (rounding := search.rounding(theta, g)):
            status = search.vanished(theta, at.remaining, scale)
            break
        if search.num_products >= max_hvps or at.restarts > _RESTARTS:
            break
        if krylov is None:
            at.krylov_radius = at.radius
            krylov = space()
        at.norm = max(at.norm, krylov.norm)
        s, predicted, on_boundary = krylov.step(at.radius)
        if is_new:
            before, (at.newton, is_taken, unknown) = at.newton, krylov.newton(rounding)
            share = at.newton / before if before > 0 else np.nan
            at.remaining = np.inf if share >= SHRINKING else at.newton / (1 - (share if share > 0 else 0.0))
            if unknown <= LOST * rounding:
                if share < SHRINKING and at.remaining <= (tol if is_taken else NEAR) * scale:
                    status = "critical"
                elif share >= SHRINKING and at.newton > tol * scale and norm <= VANISHED * at.first:
                    status = "at-infinity"
                if status:
                    break
        goal = norm - 0.25 * (norm - predicted)
        trial, g_trial, corrections = search.back(theta + s, goal, 0.5 * at.radius)
        reached = float(g_trial.norm())
        at.iterations += 1
        is_short = on_boundary and reached <= goal and corrections <= _CORRECTIONS // 2
        # A step that its radius held back does not tell what a longer one gains.
        if reached <= 0.93 * norm or not is_short:
            at.stalled = at.stalled + 1 if reached > 0.93 * norm else 0
        if reached <= goal:
            at.remaining *= reached / norm
            at.newton = at.newton if float(s.norm()) >= 0.5 * at.newton else np.nan
            theta, g, norm, krylov = trial, g_trial, reached, None
            at.params, at.krylov_radius = search.split(theta), np.nan
            at.radius *= 2 if is_short else 1
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
    status = status or ("gradient-flat" if is_flat else "unfinished")
    norms, hvps = map(np.array, zip(*history, strict=True))
    point = search.split(theta)
    return CriticalPoint(point, status, norm, at.remaining, flatness, at.iterations, search.num_products, norms, hvps)


class _Search:
    """The objective as functions of one flat vector, with a count of products."""

    def __init__(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        hessian: Callable[[Mapping[str, Tensor]], LinearOperator],
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

    def rounding(self, theta: Tensor, g: Tensor) -> float:
        """What of |grad| may be rounding, measured."""
        again = lambda one: self.gradient(theta * one)[:, None]  # noqa: E731
        return float(rounding_change(again, torch.ones_like(theta[:1]), g[:, None], 0))

    def vanished(self, theta: Tensor, remaining: float, scale: float) -> str:
        """The status where all of the gradient is rounding, by the distance that was predicted before."""
        if not np.isnan(remaining):
            return "critical" if remaining <= NEAR * scale else "at-infinity"
        op = self.operator(theta)
        has_curvature = (op @ gaussian(op.shape[1], 1).to(theta)).any()
        return "critical" if has_curvature else "gradient-flat"

    def operator(self, theta: Tensor) -> LinearOperator:
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

    def __init__(self, op: LinearOperator, g: Tensor, rtol: float, radius: float, longest: int) -> None:
        krylov = Krylov(op, min(longest, len(g)))
        krylov.lead(g[:, None])
        self.beta = float(g.norm())
        while True:
            advance(op, [krylov])
            m = krylov.filled
            last = krylov.exhausted or m == krylov.columns
            if last or m % _CHECK_EVERY == 0:
                self.V, self.T = krylov.basis[:, :m], np.vstack([krylov.T[:m, :m], krylov.coupling])
                self.svd = np.linalg.svd(self.T, full_matrices=False)
                self.norm = float(self.svd[1][0])
                if last or self.step(radius)[1] <= rtol * self.beta:
                    break
        self.num_products = m

    def newton(self, rounding: float) -> tuple[float, bool, float]:
        """Length of the shortest s with g + H s = 0, if `step` takes most of it, and the part of |g| left open.

        Only components of g count that are more than its rounding.
        """
        U, sigma, _ = self.svd
        c = np.abs(U[0]) * self.beta
        with np.errstate(divide="ignore"):
            s = np.where(c > rounding, c, 0.0) / np.maximum(sigma, torch.finfo(self.V.dtype).eps * self.norm)
        length, kept_length = (float(np.linalg.norm(part)) for part in (s, s[sigma > _LEAST * self.norm]))
        return length, kept_length >= 0.5 * length, float(max(self.beta**2 - c @ c, 0.0)) ** 0.5

    def step(self, radius: float, reduction: float = 0.0) -> tuple[Tensor, float, bool]:
        """The s that minimises |g + H s| with |s| <= radius, that minimum, and whether the radius held it back.

        With a reduction, the shortest s that brings it to reduction |g|, if the radius allows that.
        """
        U, sigma, Vt = self.svd
        c = U[0] * self.beta
        kept = sigma > _LEAST * self.norm
        # There are none where H is zero.
        share = sigma[kept] / (self.norm or 1.0)

        def damped(mu: float) -> Array:
            y: Array = -Vt[kept].T @ (share * c[kept] / (share**2 + mu) / (self.norm or 1.0))
            return y

        def left(y: Array) -> float:
            residual = self.T @ y
            residual[0] += self.beta
            return float(np.linalg.norm(residual))

        # With the damping the step shrinks and what is left grows: bisect its logarithm.
        low, high = -40.0, 20.0
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
