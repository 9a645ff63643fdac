"""Eigenvectors of a block tracked from the previous checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from landscape.files.schema import Field, counted
from landscape.measure.quantities.quantity import Checkpoint, Quantity, Row

if TYPE_CHECKING:
    from torch import Tensor


def compute(at: Checkpoint, block: str) -> Row:
    """Overlap and crossings of a block's eigenvectors with those at the previous checkpoint."""
    return tracked(at.before.get(block), at.eigen(block).vectors, at.config.k)


def tracked(before: Tensor | None, vectors: Tensor, k: int) -> Row:
    """The same from the eigenvectors alone; missing without those at the previous checkpoint."""
    from landscape.curvature.eigsh import track

    rank, overlap = np.full((2, k), -1), np.full((2, k), np.nan)
    row: Row = {"subspace_overlap": [np.nan, np.nan], "crossings": [-1, -1]}
    if before is not None and before.shape == vectors.shape:
        found = track(before, vectors)
        rank[:, : vectors.shape[2]], overlap[:, : vectors.shape[2]] = found.previous_rank, found.previous_overlap
        row = {"subspace_overlap": found.subspace_overlap, "crossings": found.crossings}
    return row | {"previous_rank": rank, "previous_overlap": overlap}


FIELDS = (
    Field(
        "subspace_overlap",
        ("block", "end"),
        "f8",
        "overlap of the eigenvectors' span with that of the row before",
        formula="|Q_before^T Q|_F^2 / k; NaN in the first row",
    ),
    counted(
        "previous_rank", ("block", "end", "rank"), "rank of the same eigenvector in the row before; missing (-1): none"
    ),
    Field("previous_overlap", ("block", "end", "rank"), "f8", "overlap with it", formula="|<v_before, v>|"),
    counted(
        "crossings",
        ("block", "end"),
        "pairs of eigenvectors that changed their order since the row before; missing (-1): none",
    ),
)
TRACKING = Quantity(FIELDS, compute)
