"""From a point down into its basin: gradient descent with a step that only decreases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
from torch import Tensor

from landscape.curvature.checks import require_count, require_parameters, require_positive
from landscape.curvature.eigsh import eigsh
from landscape.curvature.objective import Objective, require_objective
from landscape.curvature.operators import HessianOperator, LinearOperator
from landscape.curvature.vectors import Array, norm
from landscape.results import Curve

SHARE, STEPS = 1e-2, 100
"""By default: stiff directions are at rest after some twenty steps; later ones follow the slope as training would."""
ARMIJO = 1e-4
"""Share of step |grad|^2 by which the objective has to fall: half of it is usual, less at the kinks of ReLU."""
ROUNDING = 1e-15
"""What of the objective may be rounding: a fall below it is not judged."""
STALLED = 1e-6
"""Share of the first step at which a descent ends: curvature does not ask for less, a kink does."""
_HVPS = 100
"""Most products for the largest eigenvalue, of which a few digits will do."""


@dataclasses.dataclass(frozen=True, repr=False)
class SettledPoint(Curve):
    """The end of a descent.

    Attributes:
        params: the point.
        status: "settled": |grad| is at most the share of what it was; "unfinished": the steps are used up, or the
            descent was stopped; "stalled": the step has shrunk to a millionth, as at a kink of ReLU, and more steps
            lead no further.
        grad_norm, start_grad_norm: norm of the gradient, here and at the start.
        value, start_value: the objective.
        distance: from the start.
        num_steps: steps made.
        step_size: the last one.
        gradient_norms, steps: |grad| and the steps until then (iteration,), at the start and after each step.
    """

    axes: ClassVar = {"gradient_norms": ("iteration",), "steps": ("iteration",)}
    x, y = "steps", "gradient_norms"
    words = {"steps": "step of the descent", "gradient_norms": "gradient norm"}

    params: dict[str, Tensor]
    status: str
    grad_norm: float
    start_grad_norm: float
    value: float
    start_value: float
    distance: float
    num_steps: int
    step_size: float
    gradient_norms: Array
    steps: Array


@dataclasses.dataclass
class DescentState:
    """The state of a descent between two steps, complete for an exact resume.

    params: the point; step_size: of the next step; first_step: of the first one; first: |grad| at the start;
    num_steps: steps made.
    """

    params: dict[str, Tensor]
    step_size: float
    first_step: float
    first: float
    num_steps: int = 0


def descend(
    objective: Objective,
    params: Mapping[str, Tensor],
    share: float = SHARE,
    max_steps: int = STEPS,
    progress: Callable[[float, int], bool] | None = None,
    hessian: Callable[[Mapping[str, Tensor]], LinearOperator] | None = None,
    state: DescentState | None = None,
    save: Callable[[DescentState], None] | None = None,
) -> SettledPoint:
    """Descend by plain gradients until |grad| is a share of what it was.

    The first step is 1 / |H|, which brings the direction of the largest curvature to rest at once, and those of
    curvature h in about |H| / h steps. It is halved, for good, whenever the objective falls by less than 1e-4 of
    step |grad|^2 (Armijo), and never raised.

    Args:
        objective: the objective.
        params: where to start.
        share: of the first |grad|, at which the descent ends.
        max_steps: steps after which it ends, those of an earlier descent included.
        progress: called with |grad| and the steps so far after each step; True ends the descent.
        hessian: the Hessian at given parameters, all of them in their order. Default: automatic differentiation.
        state: of an earlier descent, which ends bit for bit as if it had not been stopped.
        save: called with the state at the start and after each step.

    Returns:
        The point, its status, and how it was reached.

    Raises:
        LandscapeError: for what `HessianOperator` refuses.
    """
    require_objective(objective)
    require_parameters(params, objective.device)
    require_positive("share", share)
    require_count("max_steps", max_steps, 0)
    start = {n: p.detach().to(objective.dtype) for n, p in params.items()}
    if state is None:
        H = hessian(start) if hessian else HessianOperator(objective, start)
        sharpness = eigsh(H, 1, "highest", "lanczos", 1e-2, max_hvps=_HVPS).operator_norm
        step = 1 / sharpness if sharpness else 1.0
        state = DescentState(start, step, step, norm(objective.gradient(start)))
        if save:
            save(dataclasses.replace(state))
    at = dataclasses.replace(state)
    gradient, value = objective.gradient(at.params), objective.value(at.params)
    history = [(norm(gradient), at.num_steps)]
    while (size := norm(gradient)) > share * at.first and at.num_steps < max_steps:
        while True:
            trial = {n: p - at.step_size * gradient[n] for n, p in at.params.items()}
            reached = objective.value(trial)
            if value - reached >= ARMIJO * at.step_size * size**2 - ROUNDING * abs(value):
                break
            at.step_size /= 2
            if at.step_size < STALLED * at.first_step:
                break
        if at.step_size < STALLED * at.first_step:
            break
        at.params, value, gradient = trial, reached, objective.gradient(trial)
        at.num_steps += 1
        history.append((norm(gradient), at.num_steps))
        if save:
            save(dataclasses.replace(at))
        if progress and progress(*history[-1]):
            break
    status = "stalled" if at.step_size < STALLED * at.first_step else "unfinished"
    return SettledPoint(
        at.params,
        "settled" if norm(gradient) <= share * at.first else status,
        norm(gradient),
        at.first,
        value,
        objective.value(start),
        norm({n: p - start[n] for n, p in at.params.items()}),
        at.num_steps,
        at.step_size,
        *map(np.array, zip(*history, strict=True)),
    )
