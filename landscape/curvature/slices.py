"""The objective along directions and on planes, without rescaling or smoothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.checks import chosen, require_tensor
from landscape.curvature.objective import Objective, differentiable, gradients, require_objective
from landscape.curvature.vectors import Array, to_array
from landscape.errors import ArgumentError
from landscape.results import Curve


@dataclasses.dataclass(frozen=True, repr=False)
class Slice(Curve):
    """The objective along unit directions: L(theta + t v).

    t (point,); loss (direction, point); slope and curvature (direction,): the first and second derivative at t = 0,
    by automatic differentiation, so that loss ~ value + slope t + curvature t^2 / 2.
    """

    axes = {"loss": ("direction", "point"), "t": ("point",), "slope": ("direction",), "curvature": ("direction",)}
    x, y, by = "t", "loss", "direction"

    t: Array
    loss: Array
    value: float
    slope: Array
    curvature: Array


def slice_lines(
    objective: Objective, params: Mapping[str, Tensor], block: Sequence[str], directions: Tensor, t: Array
) -> Slice:
    """The objective along unit vectors.

    Args:
        objective: the objective.
        params: the point.
        block: names of parameters.
        directions: unit vectors (n, m) over these.
        t: distances (point,).

    Returns:
        The objective along each direction.

    Raises:
        ArgumentError: for directions that are not unit vectors, to 1e-4, in the objective's precision, and for a t that
            is not finite.
    """
    lengths = _lengths(objective, params, block, directions)
    if not (np.abs(lengths - 1) <= 1e-4).all():
        raise ArgumentError(
            f"directions of lengths {lengths.min():.4g} to {lengths.max():.4g}: unit vectors are needed",
            "divide them by directions.norm(dim=0)",
        )
    t = _distances("t", t)
    moved = [_split(params, block, v) for v in directions.T]
    loss = [[objective.value(_shift(params, (x, step))) for x in t] for step in moved]
    gradient = objective.gradient(params)
    flat = torch.cat([gradient[n].reshape(-1) for n in block])
    curvature = np.array([_curvature(objective, params, step) for step in moved])
    return Slice(t, np.array(loss), objective.value(params), to_array(directions.T @ flat), curvature)


def slice_plane(
    objective: Objective,
    params: Mapping[str, Tensor],
    block: Sequence[str],
    plane: Tensor,
    t: Array,
    t_second: Array | None = None,
) -> Array:
    """The objective on the plane of two directions.

    Args:
        objective: the objective.
        params: the point.
        block: names of parameters.
        plane: directions (n, 2) over these, such as eigenvectors or those of `random_plane` and `pca_plane`.
        t: steps (column,) along the first direction, in units of its length.
        t_second: steps (row,) along the second; default: those along the first.

    Returns:
        loss[i, j] at t[j] along the first direction and t_second[i] along the second.

    Raises:
        ArgumentError: for directions that are 0 or not finite or in another precision than the objective, and for steps
            that are not finite.
    """
    lengths = _lengths(objective, params, block, plane)
    if plane.shape[1] != 2:
        raise ArgumentError(f"a plane of {plane.shape[1]} directions", "give two, (n, 2)")
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise ArgumentError(
            f"directions of lengths {lengths[0]:.4g} and {lengths[1]:.4g} span no plane",
            "give two that are finite and not 0",
        )
    columns = _distances("t", t)
    rows = columns if t_second is None else _distances("t_second", t_second)
    first, second = (_split(params, block, v) for v in plane.T)
    return np.array([[objective.value(_shift(params, (x, first), (y, second))) for x in columns] for y in rows])


@differentiable
def _curvature(objective: Objective, params: Mapping[str, Tensor], step: Mapping[str, Tensor]) -> float:
    """The second derivative by t of L(theta + t v) at 0."""
    # Copies, as autograd keeps no inference tensor.
    params, step = ({n: p.detach().clone() for n, p in tensors.items()} for tensors in (params, step))
    t = next(iter(step.values())).new_zeros(()).requires_grad_()
    at = _shift(params, (t, step))
    total = 0.0
    for term in objective.terms():
        (slope,) = gradients(term(at), [t], create_graph=True)
        total += float(gradients(slope, [t], keep=True)[0])
    return total


def _lengths(objective: Any, params: Mapping[str, Tensor], block: Any, directions: Any) -> Array:
    """The lengths of directions. Raises ArgumentError for what is no objective, block of it, or directions."""
    require_objective(objective)
    require_tensor("directions", directions)
    # A loss that draws random numbers would be noise on every picture.
    objective.require_sound(params)
    n = sum(params[name].numel() for name in chosen(block, params))
    if directions.ndim != 2 or len(directions) != n:
        raise ArgumentError(
            f"directions {tuple(directions.shape)} for a block of {n} parameters", f"give a tensor ({n}, m)"
        )
    if directions.dtype != objective.dtype:
        raise ArgumentError(
            f"directions are {directions.dtype} in an objective of {objective.dtype}",
            f"give directions.to({objective.dtype})",
        )
    return to_array(directions.norm(dim=0))


def _distances(name: str, t: Any) -> Array:
    """t as an array. Raises ArgumentError for what is no list of finite numbers."""
    try:
        at = np.asarray(t, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        at = np.array(np.nan)
    if at.ndim != 1 or not np.isfinite(at).all():
        raise ArgumentError(f"{name} is not a list of finite numbers", "give one, such as np.linspace(-1, 1, 41)")
    return at


def _split(params: Mapping[str, Tensor], block: Sequence[str], vector: Tensor) -> dict[str, Tensor]:
    pieces = vector.split([params[n].numel() for n in block])
    return {n: piece.view_as(params[n]) for n, piece in zip(block, pieces, strict=True)}


def _shift(params: Mapping[str, Tensor], *steps: tuple[float | Tensor, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    moved = dict(params)
    for length, step in steps:
        for name, piece in step.items():
            moved[name] = moved[name] + length * piece
    return moved
