"""Products with the inverse of an operator, by preconditioned conjugate gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from landscape.curvature.checks import require_count, require_positive, require_tensor
from landscape.curvature.operators import FunctionOperator, LinearOperator, require_names, require_symmetric
from landscape.curvature.preconditioned import Preconditioned
from landscape.curvature.vectors import column_norms
from landscape.errors import ArgumentError, NumericsError
from landscape.results import Curve


@dataclasses.dataclass(frozen=True, repr=False)
class Solution(Curve):
    """x with A x = b.

    Attributes:
        values: x, (n,) or (n, m), as b.
        residual: |b - A x| / |b|, computed from x by a product of its own; of several columns the largest.
        converged: whether that is at most `rel_tol`.
        num_products: with A.
    """

    x, y = "row", "values"

    values: Tensor
    residual: float
    converged: bool
    num_products: int

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:  # type: ignore[override]
        """Those of x, which is a vector or several."""
        return {"values": ("row", "column")[: self.values.ndim]}

    @property
    def by(self) -> str:  # type: ignore[override]
        """Several vectors are several curves."""
        return "column" if self.values.ndim > 1 else ""


def solve(
    op: LinearOperator,
    b: Tensor,
    preconditioner: LinearOperator | Mapping[str, Tensor] | Tensor | None = None,
    rel_tol: float = 1e-8,
    max_hvps: int = 1000,
) -> Solution:
    """Solve A x = b for a positive definite operator, by preconditioned conjugate gradients.

    A Hessian is positive definite at most at a minimum; its Gauss-Newton part with weight decay is one everywhere, and
    `op.shift(tau)` makes one of what has no eigenvalue below -tau.

    Args:
        op: A (n, n).
        b: right-hand sides (n,) or (n, m).
        preconditioner: an operator near the inverse of A, in any precision, such as curvlinops' of K-FAC; or a positive
            diagonal D near that of A, by parameter name or as one vector (n,).
        rel_tol: of the residual.
        max_hvps: most products with A, in all columns together.

    Returns:
        The solution with its residual.

    Raises:
        ArgumentError: for an operator that is not symmetric, and for vectors that do not fit.
        NumericsError: where conjugate gradients meet curvature that is not positive beyond its error.

    Source: Hestenes & Stiefel (1952).
    """
    require_symmetric(op)
    require_tensor("b", b, "is")
    require_positive("rel_tol", rel_tol)
    require_count("max_hvps", max_hvps)
    if b.ndim not in (1, 2) or b.shape[0] != op.shape[0] or b.numel() == 0:
        raise ArgumentError(f"b has the shape {tuple(b.shape)}", f"give ({op.shape[0]},) or ({op.shape[0]}, m)")
    if not bool(b.isfinite().all()):
        raise ArgumentError("b holds NaN or infinity", "give finite numbers")
    right = b.detach().to(op.device, op.dtype).reshape(len(b), -1)
    # Of unit size, so that no square leaves the range of the precision.
    unit = right.abs().amax(0)
    right = right / torch.where(unit > 0, unit, 1.0)
    inverse = _inverse(op, preconditioner)
    counted = _Counted(op)
    size = column_norms(right)
    size = torch.where(size > 0, size, 1.0)
    x, rest, residual = torch.zeros_like(right), right, float((column_norms(right) / size).amax())
    while residual > rel_tol and counted.num_products < max_hvps:
        # Recurrences drift: what is left over is computed anew, and solved for in its turn while that helps.
        change, _ = conjugate_gradients(
            counted,
            rest,
            rel_tol * size,
            lambda direction, image, curvature: _require_positive(op, direction, image, curvature),
            inverse,
            lambda: counted.num_products + 2 * right.shape[1] > max_hvps,
        )
        new_rest = right - counted @ (x + change)
        new_residual = float((column_norms(new_rest) / size).amax())
        if not new_residual < residual:
            break
        is_slow = new_residual > 0.5 * residual
        x, rest, residual = x + change, new_rest, new_residual
        if is_slow:
            break
    return Solution((unit * x).reshape(b.shape), residual, residual <= rel_tol, counted.num_products)


def conjugate_gradients(
    op: LinearOperator,
    right: Tensor,
    limit: Tensor,
    require: Callable[[Tensor, Tensor, Tensor], None],
    inverse: LinearOperator | None,
    is_spent: Callable[[], bool],
) -> tuple[Tensor, Tensor]:
    """x with |right - A x| <= limit (m,) for each column (n, m), and these residual norms (m,) by their recurrence.

    Converged columns cost no further products. require: raises for directions p, images A p and p^T A p that are not
    to be trusted; inverse: near that of A.
    """
    x, left_over = torch.zeros_like(right), column_norms(right)
    open_ = torch.nonzero(left_over > limit)[:, 0]
    # Open columns alone are kept at hand: picking them from all at every step would take as long as the products.
    residual = right[:, open_]
    direction = inverse @ residual if inverse else residual.clone()
    squared = (residual * direction).sum(0)
    solution = torch.zeros_like(residual)
    while len(open_) and not is_spent():
        image = op @ direction
        curvature = (direction * image).sum(0)
        require(direction, image, curvature)
        step = squared / curvature
        solution.addcmul_(step, direction)
        residual.addcmul_(step, image, value=-1)
        conditioned = inverse @ residual if inverse else residual
        now = (residual * conditioned).sum(0)
        direction.mul_(now / squared).add_(conditioned)
        squared, left_over[open_] = now, column_norms(residual) if inverse else now.sqrt()
        go_on = left_over[open_] > limit[open_]
        if not bool(go_on.all()):
            x[:, open_] = solution
            open_, squared = open_[go_on], squared[go_on]
            solution, residual, direction = (v[:, go_on] for v in (solution, residual, direction))
    x[:, open_] = solution
    return x, left_over


class _Counted(LinearOperator):
    """An operator that counts its products."""

    def __init__(self, op: LinearOperator) -> None:
        self.op, self.shape, self.dtype, self.device, self.num_products = op, op.shape, op.dtype, op.device, 0

    def _matmat(self, vectors: Tensor) -> Tensor:
        self.num_products += vectors.shape[1]
        return self.op @ vectors


def _inverse(
    op: LinearOperator, preconditioner: LinearOperator | Mapping[str, Tensor] | Tensor | None
) -> LinearOperator | None:
    if preconditioner is None:
        return None
    if not isinstance(preconditioner, LinearOperator):
        inverse = Preconditioned(op, preconditioner).scale.square()
        if not bool((inverse > 0).all()):
            raise ArgumentError(
                f"D is infinite in {int((inverse == 0).sum())} of {len(inverse)} places, where no solution would move",
                "solve in the block of the parameters that move, or give finite numbers",
            )
        return FunctionOperator(lambda vectors: inverse * vectors, op.shape, op)
    if not preconditioner.is_symmetric:
        raise ArgumentError(
            f"the preconditioner, a {type(preconditioner).__name__}, is not known to be symmetric",
            "give a symmetric one; of an inverse of curvlinops from_curvlinops(inverse, params, symmetric=True)",
        )
    if preconditioner.shape != op.shape:
        raise ArgumentError(
            f"a preconditioner of the shape {preconditioner.shape} for an operator {op.shape}",
            "give one that is near the inverse of this operator",
        )
    require_names("a preconditioner with the rows", preconditioner.rows, op.rows)
    # It need not have the operator's digits: a rough inverse will do.
    to = preconditioner.device, preconditioner.dtype
    return FunctionOperator(lambda vectors: (preconditioner @ vectors.to(*to)).to(vectors), op.shape, op)


def _require_positive(op: LinearOperator, direction: Tensor, image: Tensor, curvature: Tensor) -> None:
    squared = direction.square().sum(0)
    # By Cauchy and Schwarz, rounding of p^T A p is at most of this size.
    error = op.error * squared + torch.finfo(op.dtype).eps * squared.sqrt() * column_norms(image)
    if bool((curvature > error).all()):
        return
    worst = int((curvature - error).argmin())
    unit = float(squared[worst]) or 1.0
    raise NumericsError(
        f"the operator has the curvature {float(curvature[worst]) / unit:.3g} (± {float(error[worst]) / unit:.1e}) in "
        "some direction: conjugate gradients need a positive definite one",
        "solve with op.shift(tau), tau above the most negative eigenvalue; or take the Gauss-Newton part of the "
        "Hessian, with weight decay; and a preconditioner that is positive definite",
    )
