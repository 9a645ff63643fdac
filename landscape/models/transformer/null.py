"""Directions along which a Transformer's loss does not change, wherever in a block it starts (F17)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Part:
    """Null vectors of a matrix (row, column): left with any columns, and wide with the columns `right`.

    names: the parameters that make the matrix, one below the other or, `beside`, one beside the other. left (row, k),
    wide (row, l) and right (column, m) have orthonormal columns; left lies in the span of wide. wide None: all rows.
    """

    names: tuple[str, ...]
    left: Tensor
    wide: Tensor | None
    right: Tensor
    beside: bool = False

    @property
    def dimension(self) -> int:
        """Of the span."""
        (rows, left), (columns, right) = self.left.shape, self.right.shape
        return left * columns + ((rows if self.wide is None else self.wide.shape[1]) - left) * right

    def remove(self, matrices: Tensor) -> Tensor:
        """The components orthogonal to all of them, of matrices (row, column, m)."""
        # The two projectors commute, because left lies in the span of wide.
        found = matrices - _spanned(self.left, matrices)
        shares = torch.tensordot(found, self.right, ([1], [0]))
        if self.wide is not None:
            shares = _spanned(self.wide, shares)
        rest: Tensor = found - torch.tensordot(shares, self.right, ([2], [1])).transpose(1, 2)
        return rest


class NullVectors:
    """The span of parts of a block that share no parameter; sizes: the numbers in each parameter of the block."""

    def __init__(self, names: Sequence[str], sizes: Sequence[int], parts: Sequence[Part]) -> None:
        self.names, self.sizes, self.parts = list(names), list(sizes), list(parts)
        self.dimension = sum(part.dimension for part in parts)

    def remove(self, vectors: Tensor) -> Tensor:
        """The components orthogonal to all of them, of vectors (n,) or (n, m)."""
        pieces = dict(zip(self.names, vectors.reshape(len(vectors), -1).split(self.sizes), strict=True))
        for part in self.parts:
            axis, rows, columns = int(part.beside), len(part.left), len(part.right)
            shape = (rows, -1) if part.beside else (-1, columns)
            members = [pieces[name].reshape(*shape, pieces[name].shape[1]) for name in part.names]
            found = part.remove(torch.cat(members, dim=axis))
            for name, piece in zip(part.names, found.split([m.shape[axis] for m in members], dim=axis), strict=True):
                pieces[name] = piece.reshape(pieces[name].shape)
        return torch.cat(list(pieces.values())).reshape(vectors.shape)


def _spanned(basis: Tensor, vectors: Tensor) -> Tensor:
    """The components of vectors (row, ...) in the span of orthonormal columns."""
    found: Tensor = torch.tensordot(basis, torch.tensordot(basis, vectors, ([0], [0])), 1)
    return found
