"""Influence functions: what single training samples do to a test loss or to the parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from landscape.curvature.checks import require_not_negative, require_tensor
from landscape.curvature.objective import Objective, differentiable, gradients
from landscape.curvature.operators import LinearOperator, ObjectiveOperator, tangent
from landscape.curvature.solve import solve
from landscape.curvature.vectors import Array, to_array
from landscape.errors import ArgumentError, NumericsError, kind_of
from landscape.results import Curve


@dataclasses.dataclass(frozen=True, repr=False)
class Influence(Curve):
    """By how much each training sample, left out, would change something.

    Attributes:
        values: (sample,), in the order of the data.
        residual: of the inverse product that they come from, relative; see `Solution`.
        converged: whether that is as small as was asked for.
        num_products: Hessian-vector products.
    """

    axes: ClassVar[Mapping[str, tuple[str, ...]]] = {"values": ("sample",)}
    x, y = "sample", "values"

    values: Array
    residual: float
    converged: bool
    num_products: int


def influence(
    op: ObjectiveOperator,
    of: Objective | Mapping[str, Tensor],
    damping: float = 0.0,
    preconditioner: LinearOperator | Mapping[str, Tensor] | Tensor | None = None,
    rel_tol: float = 1e-6,
    max_hvps: int = 1000,
) -> Influence:
    """What leaving out one training sample would change, to first order, for every sample by one inverse product.

    It is g^T (A + damping)^(-1) g_i / c of sample i: g is the gradient of the test loss, g_i that of the sample's own
    loss, c what the objective divides by. Without the sample the minimum moves by (A + damping)^(-1) g_i / c, where c
    and the L2 term stay as they are. A sample is a row of the outputs, with all of its tokens; its outputs must not
    depend on other samples.

    Args:
        op: the curvature at the trained parameters: a `HessianOperator` at a minimum; its Gauss-Newton part or a
            `FisherOperator` elsewhere. A block of it holds the other parameters fixed.
        of: the test objective, whose parameters are those of `op`; or a direction of the same names and shapes, along
            which the parameters' change is measured.
        damping: added to the curvature, which has to be positive definite.
        preconditioner, rel_tol, max_hvps: as in `solve`.

    Returns:
        The change of the test loss, or along the direction, for each training sample; on one of several ranks, for
        those of its own. Above 0: without the sample the test loss would be higher.

    Raises:
        ArgumentError: for another operator, a loss of (model, batch), and a direction that does not fit.
        NumericsError: where the curvature is not positive definite.

    Source: Koh & Liang, arXiv 1703.04730, eq. 2.
    """
    if not isinstance(op, ObjectiveOperator):
        raise ArgumentError(
            f"the curvature is {kind_of(op)}", "give a HessianOperator or FisherOperator; a shift of it is damping="
        )
    require_not_negative("damping", damping)
    # A loss of (model, batch) is refused here, not after all the products.
    next(op.objective.chunks())[0](op.params)
    if isinstance(of, Objective):
        of = of.gradient(op.params)
    if not isinstance(of, Mapping):
        raise ArgumentError(f"the influence on {kind_of(of)}", "give an Objective, or a direction by parameter name")
    pieces = []
    for name in op.rows:
        require_tensor(f"the direction of {name!r}", of.get(name), "is")
        if of[name].shape != op.params[name].shape:
            raise ArgumentError(
                f"the direction of {name!r} has the shape {tuple(of[name].shape)}",
                f"give that of the parameter, {tuple(op.params[name].shape)}",
            )
        pieces.append(of[name].detach().reshape(-1).to(op.device, op.dtype))
    try:
        solution = solve(op.shift(damping), torch.cat(pieces), preconditioner, rel_tol, max_hvps)
    except NumericsError as error:
        raise NumericsError(
            str(error), "give a damping= above the most negative eigenvalue, or the Gauss-Newton part of the Hessian"
        ) from error
    values = to_array(_slopes(op, solution.values))
    return Influence(values, solution.residual, solution.converged, solution.num_products)


@differentiable
def _slopes(op: ObjectiveOperator, direction: Tensor) -> Tensor:
    """The slope of each sample's share of the objective along a direction (n,) of the rows of an operator (sample,)."""
    slopes, cols = [], [op.params[name] for name in op.rows]
    with op.objective.at(op.params):
        for outputs_of, loss in op.objective.chunks():
            outputs = outputs_of(op.params)
            leaf = outputs.detach().requires_grad_()
            (slope,) = gradients(loss(leaf), [leaf])
            moved = slope * tangent(outputs, cols)(direction, False)
            slopes.append(moved.reshape(moved.shape[0] if moved.ndim else 1, -1).sum(1))
    return torch.cat(slopes)
