"""Check automatic differentiation against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from landscape.errors import ArgumentError

_MATCH = 1e-6
"""Relative difference that counts as agreement, or the root of the precision: of a whole parameter, as a norm."""
_LARGE_STEP = 1e-4
_TRIES, _STRIKES = 4, 3
_VALUE = ""
"""Key of the value itself beside the names of parameters."""
Point = dict[str, Tensor]
Value = Callable[[Mapping[str, Tensor]], Tensor]
At = Callable[[Mapping[str, Tensor]], AbstractContextManager[None]]


def require_derivatives(value: Value, params: Mapping[str, Tensor], context: At) -> None:
    """Raise ArgumentError where automatic differentiation contradicts finite differences.

    Along random lines near `params`, where no kink is hit exactly: the value's slope against the gradient, and the
    gradient's against the Hessian, parameter by parameter. Finite differences that change with their step size, because
    of kinks or rounding, do not count, and three lines have to agree. Without errors the check costs three gradients
    and a Hessian-vector product. context: around the value and what is differentiated of it.
    """
    params = {n: p.detach() for n, p in params.items()}
    size = {n: float(p.norm()) / max(p.numel(), 1) ** 0.5 for n, p in params.items()}
    typical = max(size.values()) or 1.0
    generator = torch.Generator().manual_seed(0)

    def random() -> Point:
        return {
            n: (size[n] or typical) * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p)
            for n, p in params.items()
        }

    strikes: dict[str, int] = {}
    for _ in range(_TRIES):
        beside = random()
        wrong = _disagreements(value, {n: p + 1e-3 * beside[n] for n, p in params.items()}, random(), context)
        if wrong is None:
            return
        for name in wrong:
            strikes[name] = strikes.get(name, 0) + 1
        sure = {n: difference for n, difference in wrong.items() if strikes[n] == _STRIKES}
        if sure:
            name = max(sure, key=sure.__getitem__)
            order, of = ("first", "loss") if name == _VALUE else ("second", f"gradient of {name!r}")
            raise ArgumentError(
                f"the {order} derivative by automatic differentiation is {100 * sure[name]:.3g}% off finite "
                f"differences of the {of}",
                "build model and loss from torch operations that can be differentiated twice, without detach(), "
                "straight-through estimates, half precision, @once_differentiable, torch's "
                "weight_norm, and spectral_norm in training mode; where the loss is next to 0, take landscape's "
                "cross_entropy, which keeps its digits",
            )


def _disagreements(value: Value, centre: Point, step: Point, context: At) -> dict[str, float] | None:
    """Names whose derivative along a line is certainly wrong, with the relative difference; None if all are right."""
    leaves = {n: p.detach().requires_grad_() for n, p in centre.items()}
    with context(leaves):
        at, gradient = _gradient(value, leaves, create_graph=True)
        # Entries without a gradient are constant, such as the padding row of an embedding.
        step = {n: torch.where(gradient[n] != 0, v, 0) for n, v in step.items()}
        slope = torch.stack([(g * step[n]).sum() for n, g in gradient.items()]).sum()
        exact = {_VALUE: slope.detach(), **{n: torch.zeros_like(p) for n, p in centre.items()}}
        if slope.requires_grad:
            exact |= zip(centre, torch.autograd.grad(slope, list(leaves.values()), materialize_grads=True), strict=True)
    largest = max(float(g.detach().norm()) for g in gradient.values())
    scale = {**dict.fromkeys(centre, largest), _VALUE: abs(float(at))}

    eps = torch.finfo(at.dtype).eps
    small, match = eps**0.45, max(_MATCH, eps**0.5)
    near = _differences(value, centre, step, small, context)
    off = {n: float((near[n] - exact[n]).norm()) for n in exact}
    size = {n: max(float(near[n].norm()), float(exact[n].norm())) for n in exact}
    suspects = [n for n in exact if not off[n] <= match * size[n] + 1e3 * eps / small * scale[n]]
    if not suspects:
        return None
    twice, far = (_differences(value, centre, step, h, context) for h in (2 * small, _LARGE_STEP))
    wrong = {}
    for n in suspects:
        is_steady = float((near[n] - twice[n]).norm()) <= 0.01 * off[n]
        # A small step is lost where a model rounds to float32.
        is_better_far = float((far[n] - exact[n]).norm()) <= 0.1 * off[n]
        if is_steady and not is_better_far:
            wrong[n] = off[n] / size[n]
    return wrong


def _differences(value: Value, centre: Point, step: Point, h: float, context: At) -> Point:
    """Central differences of the value and of each parameter's gradient along a step."""
    ends = []
    for t in (h, -h):
        leaves = {n: (p + t * step[n]).detach().requires_grad_() for n, p in centre.items()}
        with context(leaves):
            at, gradient = _gradient(value, leaves)
        ends.append({_VALUE: at, **gradient})
    return {n: (ends[0][n] - ends[1][n]) / (2 * h) for n in ends[0]}


def _gradient(value: Value, leaves: Point, create_graph: bool = False) -> tuple[Tensor, Point]:
    """Value and gradient by name."""
    at = value(leaves)
    found = torch.autograd.grad(at, list(leaves.values()), create_graph=create_graph, materialize_grads=True)
    return at.detach(), dict(zip(leaves, found, strict=True))
