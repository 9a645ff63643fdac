"""Blocks of vectors: orthogonal bases, subspaces, symmetric matrices to the last bit, and rows that are sound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.checks import require_seed
from landscape.errors import NumericsError

Array = NDArray[np.float64]


def to_array(x: Tensor) -> Array:
    """The numbers of a tensor on any device, in double precision."""
    array: Array = x.double().cpu().numpy()
    return array


def seeded(seed: int, stream: int = 0) -> torch.Generator:
    """Random numbers on the CPU, others for each stream of a seed. Raises ArgumentError for what is no seed."""
    require_seed(seed)
    return torch.Generator().manual_seed((int(seed) + stream) % (1 << 64))


def gaussian(n: int, m: int, seed: int | torch.Generator = 0) -> Tensor:
    """Gaussian vectors (n, m) in float64 on the CPU: the same in every precision and on every device."""
    generator = seed if isinstance(seed, torch.Generator) else seeded(seed)
    return torch.randn(n, m, generator=generator, dtype=torch.float64)


def signs(n: int, m: int, generator: torch.Generator) -> Tensor:
    """Random vectors (n, m) of 1 and -1, as `gaussian` makes its own."""
    return 2 * torch.randint(0, 2, (n, m), generator=generator).double() - 1


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


def inner(X: Tensor, Y: Tensor) -> Tensor:
    """X^T Y of vectors (n, m) and (n, k).

    For a few columns X and a tall basis Y twice as fast as Y^T X; a dot product is faster still.
    """
    if X.dtype != torch.float64 and X.device.type == "cpu":
        count, rest = divmod(len(X), _SUMMED)
        x, y = (Z[: len(X) - rest].unflatten(0, (count, _SUMMED)) for Z in (X, Y))
        parts = torch.bmm(x.mT, y).sum(0, dtype=torch.float64)
        return (parts + X[len(X) - rest :].T @ Y[len(X) - rest :]).to(X.dtype)
    return X[:, 0].dot(Y[:, 0]).view(1, 1) if X.shape[1] == Y.shape[1] == 1 else X.T @ Y


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
    squared = sum((1 if i == j else 2) * float((upper - lower.T).norm()) ** 2 for i, j, upper, lower in _tiles(matrix))
    require_finite(squared)
    return float(squared**0.5)


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


def norm(pieces: Mapping[str, Tensor]) -> float:
    """The norm of all numbers in tensors together."""
    return float(torch.cat([p.detach().reshape(-1) for p in pieces.values()]).norm())
