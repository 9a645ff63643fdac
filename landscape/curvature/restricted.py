"""Some rows and columns of an operator, by its own products."""

from __future__ import annotations

from torch import Tensor

from landscape.curvature.operators import MatrixOperator, Operator, assembled, known_error


class Restricted:
    """The rows and columns of an operator at some positions; None: all of them.

    A product costs one of the whole operator.
    """

    def __init__(self, op: Operator, rows: Tensor | None, cols: Tensor | None) -> None:
        self.op, self.dtype, self.device = op, op.dtype, op.device
        self._is_diagonal = rows is cols and op.T is op
        self._rows, self._cols = (p if p is None else p.to(op.device) for p in (rows, cols))
        n, m = (whole if p is None else len(p) for whole, p in zip(op.shape, (self._rows, self._cols), strict=True))
        self.shape, self.error = (n, m), known_error(op)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        if self._cols is not None:
            whole = vectors.new_zeros(self.op.shape[1], *vectors.shape[1:])
            vectors = whole.index_copy_(0, self._cols, vectors)
        found = self.op @ vectors
        return found if self._rows is None else found[self._rows]

    @property
    def T(self) -> Restricted:
        """The transposed operator."""
        return self if self._is_diagonal else Restricted(self.op.T, self._cols, self._rows)

    def dense(self) -> Tensor:
        """The matrix, product by product, symmetrised if it is a diagonal block."""
        return assembled(self, self._is_diagonal).matrix

    def symmetric(self) -> MatrixOperator:
        """A diagonal block as a matrix, with the measured error of its products."""
        return assembled(self, True)
