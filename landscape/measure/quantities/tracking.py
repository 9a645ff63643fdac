"""Eigenvectors of a block tracked from the step before, once both steps are measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from landscape.files.schema import Field, counted
from landscape.measure.quantities.quantity import Row

if TYPE_CHECKING:
    from torch import Tensor


def tracked(before: Tensor | None, vectors: Tensor | None, k: int) -> Row:
    """Overlap and crossings of a block's eigenvectors with those at the step before; missing without either."""
    from landscape.curvature.eigsh import track

    rank, overlap = np.full((2, k), -1), np.full((2, k), np.nan)
    row: Row = {"subspace_overlap": [np.nan, np.nan], "crossings": [-1, -1]}
    if before is not None and vectors is not None and before.shape == vectors.shape:
        match = track(before, vectors)
        rank[:, : vectors.shape[2]], overlap[:, : vectors.shape[2]] = match.previous_rank, match.previous_overlap
        row = {"subspace_overlap": match.subspace_overlap, "crossings": match.crossings}
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
