"""Eigenvectors tracked from one checkpoint to the next, and preconditioned Hessians."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.operators import LinearMap, Product
from landscape.curvature.vectors import Array, to_array
from landscape.errors import ArgumentError, kind_of
from landscape.results import Curve


@dataclasses.dataclass(frozen=True, repr=False)
class Track(Curve):
    """Overlaps of the eigenvectors at one point with those at the previous point, for each end of the spectrum.

    subspace_overlap (end,): |V_before^T V|_F^2 / k, 1 for the same subspace, k/n for unrelated ones.
    previous_rank (end, k): the previous rank of each eigenvector, by the matching of largest total overlap;
    previous_overlap (end, k): |<v_before, v>| of that match. crossings (end,): pairs whose order has changed.
    """

    axes = {
        "previous_overlap": ("end", "rank"),
        "previous_rank": ("end", "rank"),
        "subspace_overlap": ("end",),
        "crossings": ("end",),
    }
    x, y, by = "rank", "previous_overlap", "end"

    subspace_overlap: Array
    previous_rank: NDArray[np.int64]
    previous_overlap: Array
    crossings: NDArray[np.int64]


def track(before: Tensor, vectors: Tensor) -> Track:
    """Match eigenvectors (end, n, k) with those of the previous point, tensors of the same shape.

    An overlap is only as good as the gap: within a cluster of equal eigenvalues the vectors are arbitrary, while the
    subspace overlap of the whole cluster is not. Raises ArgumentError for other shapes.
    """
    from scipy.optimize import linear_sum_assignment

    hint = "give those of the same block with the same k: `vectors` of two results of eigsh"
    if not isinstance(before, Tensor) or not isinstance(vectors, Tensor):
        raise ArgumentError(f"eigenvectors are {kind_of(before)} before and {kind_of(vectors)} now", hint)
    if before.shape != vectors.shape or before.ndim != 3:
        raise ArgumentError(f"eigenvectors {tuple(before.shape)} before and {tuple(vectors.shape)} now", hint)
    overlaps = to_array((before.mT @ vectors).abs())
    ends, _, k = overlaps.shape
    rank, best = np.zeros((ends, k), np.int64), np.zeros((ends, k))
    for end, overlap in enumerate(overlaps):
        was, now = linear_sum_assignment(overlap, maximize=True)
        rank[end, now], best[end, now] = was, overlap[was, now]
    order = np.triu(rank[:, :, None] > rank[:, None, :], 1)
    return Track((overlaps**2).sum((1, 2)) / k, rank, best, order.sum((1, 2)))


def scaled(op: LinearMap, diagonal: Tensor) -> Product:
    """D^(1/2) H D^(1/2) for a positive diagonal D: similar to D H, the matrix of one preconditioned step."""
    root = diagonal.sqrt()[:, None]
    return Product.square(lambda vectors: root * (op @ (root * vectors)), len(root), op)
