"""Eigenvectors tracked from one checkpoint to the next, and preconditioned Hessians."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.operators import LinearMap
from landscape.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Track:
    """Overlaps of the eigenvectors at one point with those at the previous point, for each end of the spectrum.

    subspace_overlap (end,): |V_before^T V|_F^2 / k, 1 for the same subspace, k/n for unrelated ones.
    previous_rank (end, k): the previous rank of each eigenvector, by the matching of largest total overlap;
    previous_overlap (end, k): |<v_before, v>| of that match. crossings (end,): pairs whose order has changed.
    """

    subspace_overlap: NDArray[np.float64]
    previous_rank: NDArray[np.int64]
    previous_overlap: NDArray[np.float64]
    crossings: NDArray[np.int64]


def track(before: Tensor, vectors: Tensor) -> Track:
    """Match eigenvectors (end, n, k) with those of the previous point, of the same shape.

    An overlap is only as good as the gap: within a cluster of equal eigenvalues the vectors are arbitrary, while the
    subspace overlap of the whole cluster is not.
    """
    from scipy.optimize import linear_sum_assignment

    if before.shape != vectors.shape or before.ndim != 3:
        raise ArgumentError(
            f"eigenvectors {tuple(before.shape)} before and {tuple(vectors.shape)} now",
            "give those of the same block with the same k: `vectors` of two results of eigsh",
        )
    overlaps: NDArray[np.float64] = (before.mT @ vectors).abs().double().cpu().numpy()
    ends, _, k = overlaps.shape
    rank, best = np.zeros((ends, k), np.int64), np.zeros((ends, k))
    for end, overlap in enumerate(overlaps):
        was, now = linear_sum_assignment(overlap, maximize=True)
        rank[end, now], best[end, now] = was, overlap[was, now]
    order = np.triu(rank[:, :, None] > rank[:, None, :], 1)
    return Track((overlaps**2).sum((1, 2)) / k, rank, best, order.sum((1, 2)))


class Scaled:
    """D^(1/2) H D^(1/2) for a positive diagonal D: similar to D H, the matrix of one preconditioned step."""

    def __init__(self, op: LinearMap, diagonal: Tensor) -> None:
        self.op, self.root = op, diagonal.sqrt()
        self.shape, self.dtype, self.device = op.shape, op.dtype, op.device

    def __matmul__(self, vectors: Tensor) -> Tensor:
        root = self.root if vectors.ndim == 1 else self.root[:, None]
        return root * (self.op @ (root * vectors))
