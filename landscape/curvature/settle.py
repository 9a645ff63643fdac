"""From a point down into its basin: the full gradient in Adam's steps, which never climb."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.checks import require_count, require_parameters, require_positive
from landscape.curvature.objective import Objective, require_objective
from landscape.curvature.vectors import Array, norm
from landscape.results import Curve

SHARE, STEPS = 1e-2, 50
"""By default: later steps follow the slope as training would."""
FIRST = 2.5e-3
"""Length of the first step over |theta|."""
BETAS = (0.9, 0.999)
"""Adam's."""
EPS = 1e-12
"""Adam's, over the largest entry of any gradient so far."""
ROUNDING = 1e-15
"""What of the objective may be rounding: a rise below it is none."""
STALLED = 1e-6
"""Share of the first rate at which a descent ends: curvature does not ask for less, a kink does."""


@dataclasses.dataclass(frozen=True, repr=False)
class SettledPoint(Curve):
    """The end of a descent.

    Attributes:
        params: the point.
        status: "settled": |grad| is at most the share of what it was; "unfinished": the steps are used up, or the
            descent was stopped; "stalled": the rate has shrunk to a millionth, as at a kink of ReLU, and more steps
            lead no further.
        grad_norm, start_grad_norm: norm of the gradient, here and at the start.
        value, start_value: the objective.
        distance: from the start.
        num_steps: steps made.
        rate: of the last step.
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
    rate: float
    gradient_norms: Array
    steps: Array


@dataclasses.dataclass
class DescentState:
    """The state of a descent between two steps, complete for an exact resume.

    params: the point; mean, square: Adam's means of the gradient, since the rate was halved, and of its square; rate:
    of the next step; first_rate: of the first one; first: |grad| at the start; largest: entry of any gradient so far;
    num_steps: steps made; averaged: those whose gradients are in the mean.
    """

    params: dict[str, Tensor]
    mean: dict[str, Tensor]
    square: dict[str, Tensor]
    rate: float
    first_rate: float
    first: float
    largest: float = 0.0
    num_steps: int = 0
    averaged: int = 0


def descend(
    objective: Objective,
    params: Mapping[str, Tensor],
    share: float = SHARE,
    max_steps: int = STEPS,
    progress: Callable[[float, int], bool] | None = None,
    state: DescentState | None = None,
    save: Callable[[DescentState], None] | None = None,
) -> SettledPoint:
    """Descend by Adam's steps along the full gradient until |grad| is a share of what it was.

    The first step has the length 0.0025 |theta| where all entries count alike. The rate is halved, for good, whenever
    the objective would rise, from where Adam begins anew with the gradient there; it is never raised. Soft directions
    come to rest in tens of steps, for which plain gradients would take thousands.

    Args:
        objective: the objective.
        params: where to start.
        share: of the first |grad|, at which the descent ends.
        max_steps: steps after which it ends, those of an earlier descent included.
        progress: called with |grad| and the steps so far after each step; True ends the descent.
        state: of an earlier descent, which ends bit for bit as if it had not been stopped.
        save: called with the state at the start and after each step.

    Returns:
        The point, its status, and how it was reached.

    Raises:
        LandscapeError: for what `Objective.gradient` refuses.

    Source:
        Kingma and Ba 2015 (arXiv 1412.6980).
    """
    require_objective(objective)
    require_parameters(params, objective.device)
    require_positive("share", share)
    require_count("max_steps", max_steps, 0)
    start = {n: p.detach().to(objective.dtype) for n, p in params.items()}
    gradient = objective.gradient(state.params if state else start)
    if state is None:
        zeros = {n: torch.zeros_like(p) for n, p in start.items()}
        rate = FIRST * (norm(start) or 1.0) / sum(p.numel() for p in start.values()) ** 0.5
        state = DescentState(start, zeros, zeros, rate, rate, norm(gradient))
        if save:
            save(state)
    status = "unfinished"
    value, history = objective.value(state.params), [(norm(gradient), state.num_steps)]
    while history[-1][0] > share * state.first and state.num_steps < max_steps:
        if (lower := _step(objective, state, gradient, value)) is None:
            status = "stalled"
            break
        state, value = lower
        gradient = objective.gradient(state.params)
        history.append((norm(gradient), state.num_steps))
        if save:
            save(state)
        if progress and progress(*history[-1]):
            break
    return SettledPoint(
        state.params,
        "settled" if history[-1][0] <= share * state.first else status,
        history[-1][0],
        state.first,
        value,
        objective.value(start),
        norm({n: p - start[n] for n, p in state.params.items()}),
        state.num_steps,
        state.rate,
        *map(np.array, zip(*history, strict=True)),
    )


def _step(
    objective: Objective, at: DescentState, gradient: Mapping[str, Tensor], value: float
) -> tuple[DescentState, float] | None:
    """The state after one step, and the objective there; None where no step lowers it."""
    step, averaged, rate = at.num_steps + 1, at.averaged + 1, at.rate
    mean = {n: torch.lerp(gradient[n], m, BETAS[0]) for n, m in at.mean.items()}
    square = {n: torch.lerp(gradient[n].square(), s, BETAS[1]) for n, s in at.square.items()}
    largest = max(at.largest, *(float(g.abs().max()) for g in gradient.values() if g.numel()))
    scale = {n: s.sqrt() / (1 - BETAS[1] ** step) ** 0.5 + EPS * largest for n, s in square.items()}
    while rate >= STALLED * at.first_rate:
        length = rate / (1 - BETAS[0] ** averaged)
        params = {n: p - length * mean[n] / scale[n] for n, p in at.params.items()}
        if (reached := objective.value(params)) <= value + ROUNDING * abs(value):
            return DescentState(params, mean, square, rate, at.first_rate, at.first, largest, step, averaged), reached
        rate, averaged = rate / 2, 1
        mean = {n: (1 - BETAS[0]) * g for n, g in gradient.items()}
    return None
