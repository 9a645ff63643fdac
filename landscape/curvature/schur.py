"""Schur complements of symmetric matrices too large for a square array, by a Cholesky factorisation in place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from landscape.curvature.vectors import gaussian, probe_bound

Span = tuple[int, int]
"""First row and the one behind the last."""
WIDTH = 512
"""Columns of a panel, at least: enough for BLAS to run at its full rate."""
PROBES = 8


@dataclasses.dataclass(frozen=True)
class Complement:
    """What is left of a symmetric matrix [[A, B^T], [B, D]] once A is eliminated: S = D - B A^-1 B^T.

    S is the exact complement of a matrix that differs from the one meant by a symmetric [[a, b^T], [b, d]]; the numbers
    bound |a|, |b| and |d|, and fail with a probability below 1e-6.
    """

    matrix: Tensor
    a: float
    b: float
    d: float


class Elimination:
    """A symmetric matrix [[A, B^T], [B, D]] of which A, positive definite, is eliminated in place.

    Rows go from 0 to `order`. Those before `first` are eliminated one span after the other by `eliminate`, without ever
    being stored; those before `last` by `finish`; the rest is left. Of the stored rows the lower triangle is kept, in
    panels of whole columns. Every elimination is also carried out on Gaussian vectors, so that `finish` can compare the
    factors with products by the matrix that was meant.

    Args:
        first, last, order: see above.
        width: columns of a panel are a multiple of it.
        like: precision and device.
        progress: called with the share of the work that is done.
    """

    def __init__(
        self, first: int, last: int, order: int, width: int, like: Tensor, progress: Callable[[float], object]
    ) -> None:
        self.first, self.last, self.order, self._progress = first, last, order, progress
        step = width * -(-WIDTH // width)
        starts = [*range(first, last, step), *range(last, order, step)]
        ends = [*starts[1:], order]
        self._spans = list(zip(starts, ends, strict=True))
        self._panels = {start: like.new_zeros(order - start, end - start) for start, end in self._spans}
        # Of the eliminated rows and of the others, which have errors of their own.
        both = gaussian(order, 2 * PROBES).to(like)
        both[last:, :PROBES] = 0
        both[:last, PROBES:] = 0
        self.probes, self._images = both, torch.zeros_like(both)

    def add(self, rows: Span, cols: Span, block: Tensor) -> None:
        """Add to a block of stored rows and columns; what lies above the diagonal is not kept."""
        if rows[0] < cols[0]:
            rows, cols, block = cols, rows, block.T
        for target, above, left, wide in self._targets(rows, cols):
            target += block[above:, left : left + wide]

    def add_identity(self, rows: Span, cols: Span, factor: float) -> None:
        """Add a multiple of the identity to a square block of stored rows and columns."""
        if rows[0] < cols[0]:
            rows, cols = cols, rows
        for target, above, left, _ in self._targets(rows, cols):
            target.diagonal(above - left).add_(factor)

    def eliminate(self, span: Span, diagonal: Tensor, spans: Sequence[Span], rest: Tensor) -> bool:
        """Eliminate rows that are not stored; whether they are positive definite.

        Args:
            span: the rows (m).
            diagonal: their diagonal block (m, m).
            spans: the stored rows with which they are coupled, ascending.
            rest: the coupling (m, all rows of the spans).
        """
        factor, info = torch.linalg.cholesky_ex(diagonal)
        if int(info):
            return False
        X = torch.linalg.solve_triangular(factor, rest, upper=False)
        pieces = X.split([end - start for start, end in spans], dim=1)
        self._witness([(span, factor.T), *zip(spans, pieces, strict=True)])
        for j, cols in enumerate(spans):
            for rows, piece in zip(spans[j:], pieces[j:], strict=True):
                for target, above, left, wide in self._targets(rows, cols):
                    target.addmm_(piece[:, above:].T, pieces[j][:, left : left + wide], alpha=-1)
        return True

    def finish(self, product: Callable[[Tensor], Tensor]) -> Complement | None:
        """Eliminate the stored rows before `last`; None if they are not positive definite.

        product: the matrix that was meant, times vectors (order, m).
        """
        total = float((self.order - self.first) ** 3 - (self.order - self.last) ** 3) or 1.0
        for start, end in self._spans:
            if start >= self.last:
                break
            panel = self._panels.pop(start)
            factor, info = torch.linalg.cholesky_ex(panel[: end - start])
            if int(info):
                return None
            panel[: end - start] = factor.tril_()
            panel[end - start :] = torch.linalg.solve_triangular(factor.T, panel[end - start :], upper=True, left=False)
            self._witness([((start, self.order), panel.T)])
            for later, stop in self._spans:
                if later >= end:
                    rows, cols = panel[later - start :], panel[later - start : stop - start]
                    self._panels[later].addmm_(rows, cols.T, alpha=-1)
            del panel
            self._progress(1 - float((self.order - end) ** 3 - (self.order - self.last) ** 3) / total)
        S = self._rest()
        images = self._images
        images[self.last :] += S @ self.probes[self.last :]
        off = images - product(self.probes)
        a, b = off[: self.last, :PROBES], off[self.last :, :PROBES]
        return Complement(S, probe_bound(a), probe_bound(b), probe_bound(off[self.last :, PROBES:]))

    def _rest(self) -> Tensor:
        """The rows from `last` on as a square matrix."""
        S = self.probes.new_zeros(self.order - self.last, self.order - self.last)
        for start, end in self._spans:
            if start >= self.last:
                at, wide = start - self.last, end - start
                panel = self._panels.pop(start)
                panel[:wide].tril_()
                S[at:, at : at + wide] = panel
        return S.add_(S.tril(-1).T)

    def _witness(self, pieces: Sequence[tuple[Span, Tensor]]) -> None:
        """Apply factor^T factor to the probes; pieces: the columns of the factor by their rows."""
        across = sum(piece @ self.probes[start:end] for (start, end), piece in pieces)
        for (start, end), piece in pieces:
            self._images[start:end] += piece.T @ across

    def _targets(self, rows: Span, cols: Span) -> Iterator[tuple[Tensor, int, int, int]]:
        """Stored parts of a block whose rows do not begin before its columns.

        Each with the rows of the block that are left out above it, the columns left of it, and its width.
        """
        for start, end in self._spans:
            low, high = max(cols[0], start), min(cols[1], end)
            if low < high and rows[1] > start:
                top = max(rows[0], start)
                target = self._panels[start][top - start : rows[1] - start, low - start : high - start]
                yield target, top - rows[0], low - cols[0], high - low
