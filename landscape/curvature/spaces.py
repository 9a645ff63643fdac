"""Where the vectors of the Krylov engine live: whole in one process, or some of their rows in each of several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from landscape.curvature.vectors import gaussian

_SUMMED = 1 << 12
"""Rows that BLAS on a CPU adds up in float32: over ten million it gets no more than two digits right."""


class VectorSpace:
    """Vectors of `order` numbers, as columns of tensors (rows, m): all of their rows here, those that one rank holds in
    a subclass.

    These three methods involve every rank; all else that the engine does to long vectors are linear combinations of
    columns, which each rank forms of its own rows.
    """

    def __init__(self, op: Any) -> None:
        """op: the linear map that takes these vectors."""
        self.order = self.rows = op.shape[0]
        self.dtype, self.device = op.dtype, op.device

    def randn(self, m: int, generator: torch.Generator) -> Tensor:
        """Gaussian vectors (rows, m), the same in every precision and on every device."""
        return gaussian(self.order, m, generator).to(self.device, self.dtype)

    def inner(self, X: Tensor, Y: Tensor) -> Tensor:
        """X^T Y over all rows, the same on every rank.

        For a few columns X and a tall basis Y twice as fast as Y^T X; a dot product is faster still.
        """
        if X.dtype != torch.float64 and X.device.type == "cpu":
            count, rest = divmod(len(X), _SUMMED)
            x, y = (Z[: len(X) - rest].unflatten(0, (count, _SUMMED)) for Z in (X, Y))
            parts = torch.bmm(x.mT, y).sum(0, dtype=torch.float64)
            return (parts + X[len(X) - rest :].T @ Y[len(X) - rest :]).to(X.dtype)
        return X[:, 0].dot(Y[:, 0]).view(1, 1) if X.shape[1] == Y.shape[1] == 1 else X.T @ Y

    def largest(self, X: Tensor) -> float:
        """max |X| over all rows, the same on every rank; 0 without entries, not finite if an entry is not."""
        return float(X.abs().amax()) if X.numel() else 0.0


def space_of(op: Any) -> VectorSpace:
    """The space of a linear map's vectors: the one that it names as `space`; else they are whole."""
    found: VectorSpace = getattr(op, "space", None) or VectorSpace(op)
    return found
