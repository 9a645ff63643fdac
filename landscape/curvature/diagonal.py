"""Diagonals: exact where the operator is small, by XDiag or Hutchinson's estimator where it is large."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from landscape.curvature.checks import require_choice
from landscape.curvature.operators import LinearOperator, Sound, require_symmetric
from landscape.curvature.trace import exact_diagonal, is_exact, lacking, student
from landscape.curvature.vectors import Array, seeded, signs, to_array
from landscape.errors import ArgumentError
from landscape.results import Curve

DiagonalMethod = Literal["auto", "exact", "xdiag", "hutchinson"]


@dataclasses.dataclass(frozen=True, repr=False)
class Diagonal(Curve):
    """The diagonal of an operator, each element with its standard error and a 95 % confidence interval of its own.

    Of n estimated elements about n / 20 lie outside of their intervals. If every element was computed, the standard
    errors are 0, and the intervals are what the error of the products leaves open.

    Attributes:
        value, standard_error, low, high: (row,).
        num_products: Hessian-vector products.
        shapes: of the parameters by name, if the operator's rows are named.
    """

    axes = dict.fromkeys(("value", "standard_error", "low", "high"), ("row",))
    x, y, spread = "row", "value", ("low", "high")
    words = {"value": "diagonal element"}

    value: Array
    standard_error: Array
    low: Array
    high: Array
    num_products: int
    shapes: Mapping[str, torch.Size]

    def by_name(self, field: str = "value") -> dict[str, Tensor]:
        """A field as tensors of the parameters' shapes, by name.

        Raises ArgumentError for a diagonal whose rows have no names, and for a field that has no rows.
        """
        if not self.shapes:
            raise ArgumentError("the rows of this diagonal have no names", f"use .{field}, or a HessianOperator")
        require_choice("field", field, tuple(self.axes))
        pieces = torch.from_numpy(getattr(self, field)).split([shape.numel() for shape in self.shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}


def diagonal(op: LinearOperator, method: DiagonalMethod = "auto", probes: int = 30, seed: int = 0) -> Diagonal:
    """The diagonal of a symmetric operator; up to 256 rows element by element.

    XDiag (Epperly, Tropp & Webber, arXiv 2301.07825): half of the products sketch the range, and the other half give
    its exact share. Each random vector estimates the rest by all others. The standard error is the jackknife's, which
    is too large on average (Efron & Stein 1981).
    Hutchinson's estimator (Bekas, Kokiopoulou & Saad 2007): the mean of w * (H w) over vectors w of random signs.

    Args:
        op: the operator (n, n).
        method: "exact", by n products; "xdiag"; "hutchinson"; or "auto": exact up to 256 rows, XDiag beyond.
        probes: products in all, unless exact.
        seed: of the random vectors.

    Returns:
        Each element with its standard error and a 95 % interval by Student's t. XDiag is far better where the spectrum
        decays. Hutchinson's error is the norm of the rest of the row, divided by the root of the number of vectors:
        it is better where the spectrum is flat or the matrix nearly diagonal.

    Raises:
        ArgumentError: for an operator that is not symmetric, an unknown method and fewer than 6 probes.
    """
    require_symmetric(op)
    require_choice("method", method, get_args(DiagonalMethod))
    shapes = {name: op.shapes[name] for name in op.rows}
    n = op.shape[0]
    if is_exact(method, n, probes, seed):
        value, reach = exact_diagonal(op)
        return Diagonal(value, 0 * value, value - reach, value + reach, n, shapes)
    count = probes if method == "hutchinson" else probes // 2
    omega = signs(n, count, seeded(seed)).to(op.device, op.dtype)
    sound = Sound(op)
    image = sound @ omega
    if method == "hutchinson":
        each = (omega * image).double()
        mean, error, products = each.mean(1), each.std(1) / count**0.5, count
    else:
        mean, error = _xdiag(sound, omega, image)
        products = 2 * count
    value, standard_error = to_array(mean), to_array(error)
    rounding = 10 * torch.finfo(op.dtype).eps * float(image.norm(dim=0).max())
    width = student(count) * standard_error + rounding + op.error
    return Diagonal(value, standard_error, value - width, value + width, products, shapes)


def _xdiag(op: LinearOperator, omega: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
    """The diagonal (n,) and its standard error from the images of m vectors of signs (n, m).

    The vector i estimates it with the projector P onto the images of all others, as diag(P H) + w_i * (1 - P) H w_i.
    """
    m = omega.shape[1]
    Q, R = torch.linalg.qr(image)
    S = lacking(R.double().cpu()).to(Q)
    # Without the vector i, the projector lacks u_i u_i^T; without i and j the plane of u_i and u_j.
    U, V, reach = Q @ S, op @ Q, (S * R).sum(0)
    known, V = (Q * V).sum(1, keepdim=True), V @ S
    alone, omega = U * V, omega * reach
    mean = (known - alone + omega * U).mean(1).double()
    cosines = S.T @ S
    left_out = torch.empty_like(omega, dtype=torch.float64)
    for j in range(m):
        i = [k for k in range(m) if k != j]
        c, u, v = cosines[j, i], U[:, j : j + 1], V[:, j : j + 1]
        sine = (1 - c.square()).clamp_min(torch.finfo(omega.dtype).eps)
        plane = alone[:, i] + u * v - c * (U[:, i] * v + u * V[:, i])
        left_out[:, j] = (known + (omega[:, i] * (U[:, i] - c * u) - plane) / sine).mean(1)
    return mean, ((m - 1) / m * (left_out - left_out.mean(1, keepdim=True)).square().sum(1)).sqrt()
