"""Operators with some directions projected out, which become exact null vectors."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from landscape.curvature.arguments import require_symmetric, require_whole
from landscape.curvature.operators import LinearMap, MatrixOperator, Operator, known_error, written_out
from landscape.errors import ArgumentError, kind_of
from landscape.results import Shown


class Directions(Protocol):
    """A subspace that can be projected out of vectors (n,) or (n, m)."""

    dimension: int

    def remove(self, vectors: Tensor) -> Tensor:
        """The vectors' components orthogonal to the subspace."""


class Spanned(Directions, Protocol):
    """A subspace that also has a basis small enough to write out."""

    def basis(self) -> Tensor:
        """Orthonormal columns (n, dimension)."""


class Deflated(Shown):
    """P H P with P the projector onto the complement of some directions, which become exact null vectors.

    directions: of H's rows, such as GaugeTangent and SoftmaxShift: their `dimension`, and `remove`, which projects them
    out of vectors. Raises ArgumentError for those of another block, and for what is no symmetric operator.
    """

    shown = ("shape", "dimension", "dtype", "device")

    def __init__(self, op: Operator | LinearMap, directions: Directions) -> None:
        require_symmetric(op)
        require_whole(op)
        if not callable(getattr(directions, "remove", None)):
            raise ArgumentError(
                f"the directions are {kind_of(directions)}", "give what projects them out, such as GaugeTangent(...)"
            )
        rows = sum(getattr(directions, "sizes", op.shape[:1]))
        if rows != op.shape[0]:
            raise ArgumentError(
                f"directions of {rows} numbers for an operator of {op.shape[0]} rows", "make both of the same block"
            )
        self.op, self.directions = op, directions
        self.shape, self.dtype, self.device = op.shape, op.dtype, op.device
        self.dimension = directions.dimension
        # To project adds none to what is known of H.
        self.error = known_error(op)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        return self.directions.remove(self.op @ self.directions.remove(vectors))

    @property
    def T(self) -> Deflated:
        """The operator itself, which is symmetric."""
        return self

    def dense(self) -> Tensor:
        """The matrix, symmetric to the last bit."""
        return self.symmetric().matrix

    def symmetric(self) -> MatrixOperator:
        """The matrix, with the error of the one deflated and the rounding of what is projected out of it."""
        whole = written_out(self.op)
        half = self.directions.remove(whole.matrix)
        full = self.directions.remove(half.T.contiguous())
        # What is projected out may be much larger than what is left, and so may its rounding.
        size, n = float(whole.matrix.norm()), len(full)
        rounding = 10 * n**0.5 * torch.finfo(full.dtype).eps * size if self.dimension else 0.0
        return MatrixOperator((full + full.T) / 2, whole.error + rounding)
