"""The Hessian in the coordinates of a preconditioned step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from landscape.curvature.checks import require_tensor
from landscape.curvature.modules import is_dtensor
from landscape.curvature.operators import LinearOperator, require_operator
from landscape.errors import ArgumentError
from landscape.text import first_few


class Preconditioned(LinearOperator):
    """D^(-1/2) A D^(-1/2) for a positive diagonal D: the curvature that an optimiser of steps -lr D^(-1) grad meets.

    It has the eigenvalues of D^(-1) A. Everything that A has, it has: blocks, eigenvalues, index, density, trace.

    Args:
        op: A (n, n); one whose rows have names may also be an off-diagonal block.
        D: by parameter name, such as `preconditioner(optimizer, params)` gives; names that `op` does not have are left
            out. Or one vector (n,). Infinite entries, of parameters that do not move, make rows and columns of 0.

    Attributes:
        scale: D^(-1/2) of the rows (n, 1).

    Raises:
        ArgumentError: for a D that is not above 0, has other sizes, or lacks a parameter.

    Source: sharpness of Adam in these coordinates, Cohen et al., arXiv 2207.14484.
    """

    shown = ("shape", "rows", "cols", "dtype", "device")

    def __init__(self, op: LinearOperator, D: Mapping[str, Tensor] | Tensor) -> None:
        require_operator(op)
        if isinstance(D, Mapping):
            if not op.rows:
                raise ArgumentError("D by name for an operator without named parameters", "give one vector (n,)")
            lacking = [name for name in dict.fromkeys([*op.rows, *op.cols]) if name not in D]
            if lacking:
                raise ArgumentError(
                    f"D has no {first_few(list(map(repr, lacking)), 3)}", "give D of every parameter of the operator"
                )
        elif op.rows != op.cols or op.shape[0] != op.shape[1]:
            raise ArgumentError(
                f"one vector D for a {op.shape[0]} x {op.shape[1]} block of other rows than columns",
                "give D by parameter name",
            )
        self.op, self.D = op, D
        self.rows, self.cols, self.shapes = op.rows, op.cols, op.shapes
        self.shape, self.dtype, self.device = op.shape, op.dtype, op.device
        self.scale = self._scale(op.rows, op.shape[0])
        self._right = self.scale if op.rows == op.cols else self._scale(op.cols, op.shape[1])
        self.error = op.error and op.error * float(self.scale.max()) * float(self._right.max())

    def _scale(self, names: Sequence[str], n: int) -> Tensor:
        """D^(-1/2) as a column (n, 1)."""
        pieces = {name: self.D[name] for name in names} if isinstance(self.D, Mapping) else {"": self.D}
        for name, piece in pieces.items():
            what = f"D of {name!r}" if name else "D"
            require_tensor(what, piece, "is")
            if is_dtensor(piece):
                raise ArgumentError(f"{what} is sharded", "give its full_tensor(), as `preconditioner` does")
            if piece.numel() != (size := self.shapes[name].numel() if name else n):
                raise ArgumentError(f"{what} has {piece.numel()} numbers, not {size}", _ONE)
            if name and piece.ndim > 1 and piece.shape != self.shapes[name]:
                raise ArgumentError(
                    f"{what} has the shape {tuple(piece.shape)}",
                    f"give that of the parameter, {tuple(self.shapes[name])}",
                )
            if piece.dtype == torch.bool:
                raise ArgumentError(
                    f"{what} is {piece.dtype}", "give numbers; infinity for parameters that do not move"
                )
            # The inverse of a smaller number would leave the range of products.
            is_positive = piece.double() >= torch.finfo(torch.float64).tiny
            if not bool(is_positive.all()):
                bad = int((~is_positive).sum())
                raise ArgumentError(f"{what} is not above 0 in {bad} of {piece.numel()} places", _POSITIVE)
        flat = torch.cat([piece.detach().to(self.device, torch.float64).reshape(-1) for piece in pieces.values()])
        return flat.rsqrt().to(self.dtype)[:, None]

    def _matmat(self, vectors: Tensor) -> Tensor:
        return self.scale * (self.op @ (self._right * vectors))

    @property
    def is_symmetric(self) -> bool:
        return self.op.is_symmetric

    @property
    def T(self) -> LinearOperator:
        """The transposed operator."""
        return self if self.op.T is self.op else Preconditioned(self.op.T, self.D)

    def block(self, rows: Sequence[str], cols: Sequence[str] | None = None) -> LinearOperator:
        """The block that D^(-1/2) of its parameters makes of the same block of A."""
        return Preconditioned(self.op.block(rows, cols), self._by_name())

    def _by_name(self) -> Mapping[str, Tensor]:
        if isinstance(self.D, Mapping) or not self.rows:
            return self.D if isinstance(self.D, Mapping) else {}
        return dict(zip(self.rows, self.D.reshape(-1).split(self.numbers(self.rows)), strict=True))

    def in_double(self) -> Preconditioned | None:
        double = self.op.in_double()
        return Preconditioned(double, self.D) if double else None


_ONE = "give one number for each parameter"
_POSITIVE = (
    "give positive numbers, such as sqrt(v) + eps of Adam with an eps of 1e-8, and infinity for parameters that do not "
    "move"
)
