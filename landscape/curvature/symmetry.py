"""How far a matrix is from its transpose, and the mean of the two, tile by tile."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from landscape.curvature.sound import require_finite

_TILE = 1024
"""Rows of a tile."""


def asymmetry(matrix: Tensor) -> float:
    """|M - M^T|_F. Raises NumericsError for a matrix that is not finite."""
    found = sum((1 if i == j else 2) * float((upper - lower.T).norm()) ** 2 for i, j, upper, lower in _tiles(matrix))
    require_finite(found)
    return float(found**0.5)


def symmetrised(matrix: Tensor) -> Tensor:
    """(M + M^T) / 2 in place of M."""
    for _, _, upper, lower in _tiles(matrix):
        mean = (upper + lower.T) / 2
        upper.copy_(mean)
        lower.copy_(mean.T)
    return matrix


def _tiles(matrix: Tensor) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Tiles on and above the diagonal with their mirror images, because reading a large transpose is slow."""
    for i in range(0, len(matrix), _TILE):
        for j in range(i, len(matrix), _TILE):
            yield i, j, matrix[i : i + _TILE, j : j + _TILE], matrix[j : j + _TILE, i : i + _TILE]
