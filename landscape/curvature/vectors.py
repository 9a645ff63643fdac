"""Blocks of vectors: orthogonal bases, subspaces, symmetric matrices to the last bit, and rows that are sound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.arguments import require_seed
from landscape.errors import NumericsError

Array = NDArray[np.float64]


def to_array(x: Tensor) -> Array:
    """The numbers of a tensor on any device, in double precision."""
    found: Array = x.double().cpu().numpy()
    return found


def seeded(seed: int, stream: int = 0) -> torch.Generator:
    """Random numbers on the CPU, others for each stream of a seed. Raises ArgumentError for what is no seed."""
    require_seed(seed)
    return torch.Generator().manual_seed((int(seed) + stream) % (1 << 64))


_PIECE = 1 << 16
"""Rows that are drawn at a time: torch draws them as it draws all at once, sixteen numbers after sixteen."""


def gaussian(n: int, m: int, seed: int | torch.Generator = 0, rows: slice | None = None) -> Tensor:
    """Gaussian vectors (n, m) in float64 on the CPU: the same in every precision and on every device.

    rows: all that is returned of them. The other rows are drawn, too, and forgotten.
    """
    generator = seed if isinstance(seed, torch.Generator) else seeded(seed)
    begin, end, _ = (rows or slice(None)).indices(n)
    found = torch.empty(max(0, end - begin), m, dtype=torch.float64)
    starts = [*range(0, max(1, n - _PIECE + 1), _PIECE), n]
    for start, stop in zip(starts, starts[1:], strict=False):
        piece = torch.randn(stop - start, m, generator=generator, dtype=torch.float64)
        first, last = max(start, begin), min(stop, end)
        if first < last:
            found[first - begin : last - begin] = piece[first - start : last - start]
    return found


def column_norms(vectors: Tensor) -> Tensor:
    """Euclidean norm of each column of (n, m).

    torch's own norm adds up one float32 after the other: it is off by 0.5 % for columns of ten million numbers.
    """
    return torch.stack([column.square().sum() for column in vectors.T]).sqrt()


def probe_bound(images: Tensor) -> float:
    """A bound of an operator's norm from its products with Gaussian probes (n, m).

    With eight probes, the factor 10 makes an underestimate less likely than 1e-7, even of an operator of rank one.
    """
    return 10 * float(images.norm()) / float(images.shape[1] ** 0.5)


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


class Sound:
    """A linear map whose products are checked: finite, and with squares inside the range of the precision."""

    def __init__(self, op: Any) -> None:
        self.op, self.shape, self.dtype, self.device = op, op.shape, op.dtype, op.device
        self.space, self._largest = space_of(op), 0.0

    def __matmul__(self, vectors: Tensor) -> Tensor:
        image: Tensor = self.op @ vectors
        size = self.space.largest(image)
        require_finite(size)
        # Images of null vectors are small: the largest image so far gives the size of the operator.
        self._largest = max(self._largest, size)
        require_range(self._largest, self.dtype)
        return image


def require_finite(size: float) -> None:
    """Raise NumericsError for a size that is NaN or infinite."""
    if not np.isfinite(size):
        raise NumericsError(
            "the Hessian is not finite: its products hold NaN or infinity", "look for NaN in parameters, data and loss"
        )


def require_range(norm: float, dtype: torch.dtype) -> None:
    """Raise NumericsError for a norm that is not finite, or whose square overflows or underflows."""
    precision = torch.finfo(dtype)
    require_finite(norm)
    smallest, largest = precision.tiny**0.5 / precision.eps, precision.max**0.5 * precision.eps
    if norm != 0 and not smallest <= norm <= largest:
        raise NumericsError(
            f"the Hessian has the size {norm:.1e}: in {str(dtype).removeprefix('torch.')} only {smallest:.0e} to "
            f"{largest:.0e} can be squared without losing digits",
            "multiply the loss by a constant: every eigenvalue is multiplied by it",
        )


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
