"""L D L^T of a shifted matrix: its inertia, and solutions for many right-hand sides at the speed of matrix products."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.vectors import to_array

_WIDTH = 64
"""Columns of L whose interchanges are carried out one by one, before those of all later columns at once."""


class ShiftedLDL:
    """matrix = (H - s I) / scale as LAPACK factorises it (Bunch and Kaufman's pivots).

    scale: a power of two near the largest entry, so that squares of solutions neither overflow nor underflow.
    """

    def __init__(self, H: Tensor, shift: float) -> None:
        size = max(map(abs, map(float, H.aminmax()))) if len(H) else 0.0
        self.scale = math.ldexp(1.0, math.frexp(size)[1] - 1) if 0 < size < math.inf else 1.0
        self.matrix = H / self.scale
        self.matrix.diagonal().sub_(shift / self.scale)
        self._LD, self._pivots, _ = torch.linalg.ldl_factor_ex(self.matrix)

    @functools.cached_property
    def negative(self) -> int:
        """Negative eigenvalues of D."""
        diagonal, below, first = self._D
        single = np.ones(len(diagonal), bool)
        single[first] = single[first + 1] = False
        pairs = np.stack([[diagonal[first], below[first]], [below[first], diagonal[first + 1]]]).transpose(2, 0, 1)
        return int((diagonal[single] < 0).sum() + (np.linalg.eigvalsh(pairs) < 0).sum())

    def solve(self, right: Tensor) -> Tensor:
        """Solutions (n, m) of matrix X = right; not finite where a pivot is exactly singular."""
        if self._LD.is_cuda:
            solved: Tensor = torch.linalg.ldl_solve(self._LD, self._pivots, right.contiguous())
            return solved
        L, order, undo = self._ordered
        half = torch.linalg.solve_triangular(L, right[order], upper=False, unitriangular=True)
        diagonal, below, first = self._D
        d, a, b, c = (
            torch.from_numpy(part)[:, None].to(half)
            for part in (diagonal, diagonal[first], below[first], diagonal[first + 1])
        )
        pair = torch.from_numpy(first)
        # Scaled by b, which is the largest entry of its 2 x 2 pivot, nothing overflows.
        x, y = half[pair] / b, half[pair + 1] / b
        a, c = a / b, c / b
        half /= d
        half[pair], half[pair + 1] = (c * x - y) / (a * c - 1), (a * y - x) / (a * c - 1)
        whole: Tensor = torch.linalg.solve_triangular(L.mT, half, upper=True, unitriangular=True)
        return whole[undo]

    @functools.cached_property
    def _D(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
        """The diagonals of D at and below the middle, and where pivots of order two begin."""
        diagonal, below = (to_array(self._LD.diagonal(offset)).copy() for offset in (0, -1))
        # A pivot of order two is marked in both of its places.
        return diagonal, below, np.flatnonzero(self._pivots.cpu().numpy() < 0)[::2]

    @functools.cached_property
    def _ordered(self) -> tuple[Tensor, Tensor, Tensor]:
        """L with the interchanges of later columns carried out in earlier ones, the order of rows, and its inverse.

        LAPACK keeps the interchanges apart (dsyconv brings them together), for which its own solver takes the
        right-hand sides one by one.
        """
        n, first = len(self._LD), self._D[2]
        # In place: rows of the transpose are columns of L, each contiguous.
        columns = self._LD.mT.contiguous().numpy()
        columns[first, first + 1] = 0.0
        rows = np.abs(self._pivots.numpy()).astype(np.int64) - 1
        # Of a pivot of order two the second row is interchanged, and its own two columns have been.
        rows[first] = first
        ends = np.arange(n)
        ends[first + 1] = first
        starts = np.unique(ends[::_WIDTH])
        order = np.arange(n)
        for start, stop in zip(starts[::-1], [n, *starts[:0:-1]], strict=True):
            now = np.arange(n)
            for i in np.flatnonzero(rows[start:stop] != now[start:stop]) + start:
                pair = [i, rows[i]]
                now[pair] = now[pair[::-1]]
                columns[start : ends[i], pair] = columns[start : ends[i], pair[::-1]]
            columns[start:stop] = columns[start:stop][:, order]
            order = now[order]
        return torch.from_numpy(columns).mT, torch.from_numpy(order), torch.from_numpy(order.argsort())
