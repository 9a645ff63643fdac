"""Random vectors, what products with them say of a norm, and arrays out of tensors."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.arguments import require_seed

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
