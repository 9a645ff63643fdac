"""Operators on vectors whose rows are spread over the ranks of a process group."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from landscape.curvature.operators import LinearMap, MatrixOperator
from landscape.curvature.vectors import VectorSpace, gaussian
from landscape.errors import ArgumentError, LandscapeError

_TOGETHER = 1 << 30
"""Bytes of whole vectors that are multiplied at once, or one vector if that takes more."""


class Rows(VectorSpace):
    """Vectors of which each rank holds the next `part` rows, the last ranks fewer or none.

    Inner products are one all-reduce of a small matrix. Random vectors are those of one process, for any number of
    ranks. Raises LandscapeError without a process group, and where ranks compute differently.
    """

    def __init__(self, op: LinearMap, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(op)
        if not dist.is_initialized():
            raise LandscapeError(
                "rows are spread over the ranks of a process group, and there is none",
                "start with torchrun, and call torch.distributed.init_process_group() first",
            )
        self.group, self.ranks, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self.part = -(-self.order // self.ranks)
        bounds = [min(rank * self.part, self.order) for rank in range(self.ranks + 1)]
        self.sizes = [stop - start for start, stop in zip(bounds, bounds[1:], strict=False)]
        self.mine = slice(bounds[self.rank], bounds[self.rank + 1])
        self.rows = self.sizes[self.rank]
        self._require_alike()

    def randn(self, m: int, generator: torch.Generator) -> Tensor:
        """Gaussian vectors. Each rank draws all of their numbers, a piece at a time, and keeps its own."""
        return gaussian(self.order, m, generator, self.mine).to(self.device, self.dtype)

    def inner(self, X: Tensor, Y: Tensor) -> Tensor:
        """X^T Y, added up over the ranks in double precision."""
        found = super().inner(X, Y).double()
        dist.all_reduce(found, group=self.group)
        return found.to(X.dtype)

    def largest(self, X: Tensor) -> float:
        """max |X|. A maximum may pass over NaN, but not over infinity."""
        found = torch.tensor(super().largest(X), dtype=torch.float64, device=self.device)
        found.nan_to_num_(nan=torch.inf, posinf=torch.inf)
        dist.all_reduce(found, dist.ReduceOp.MAX, self.group)
        return float(found)

    def gathered(self, X: Tensor) -> Tensor:
        """Whole vectors (order, m) of every rank's rows. Each rank receives those that it does not hold."""
        padded = X.new_zeros(self.part, X.shape[1])
        padded[: self.rows] = X
        whole = X.new_empty(self.ranks * self.part, X.shape[1])
        dist.all_gather(list(whole.split(self.part)), padded, self.group)
        return whole[: self.order]

    def summed(self, X: Tensor) -> Tensor:
        """This rank's rows of the sum over ranks of X (order, m). Each rank sends the rows that it does not hold."""
        heard = X.new_empty(self.ranks * self.rows, X.shape[1])
        dist.all_to_all_single(heard, X.contiguous(), [self.rows] * self.ranks, self.sizes, self.group)
        found: Tensor = heard.unflatten(0, (self.ranks, self.rows)).sum(0)
        return found

    def _require_alike(self) -> None:
        """Raise LandscapeError unless small matrices are factorised to the same bits everywhere.

        Each rank decides by itself how a search goes on, from the same inner products.
        """
        found = torch.from_numpy(np.linalg.eigh(1 / (1 + np.add.outer(np.arange(100), np.arange(100))))[1])
        rank_0 = found.to(self.device, copy=True)
        dist.broadcast(rank_0, group=self.group, group_src=0)
        differs = torch.tensor(int(not torch.equal(rank_0.cpu(), found)), device=self.device)
        dist.all_reduce(differs, group=self.group)
        if int(differs):
            raise LandscapeError(
                f"{int(differs)} of {self.ranks} ranks compute eigenvectors to other digits than rank 0",
                "use machines of one kind, one environment, and one number of threads for all ranks",
            )


class Sharded:
    """A square operator on vectors of which each rank holds its rows: `space`.

    op: what every rank multiplies whole vectors (n, m) by: the operator itself, the same on every rank, or one of the
    summands that it is the sum of, as over samples. A product gathers its vectors, some at a time, so that two whole
    ones must fit beside the rows: each rank receives (ranks - 1) / ranks n numbers a vector, and as many again of the
    image if op is a summand, which is what an all-reduce of the image takes where every rank has the whole vector.
    Vectors that are given to it, and that `eigsh` takes and returns, are (rows, m). Raises ArgumentError for others.
    """

    def __init__(self, op: LinearMap, group: dist.ProcessGroup | None = None, summand: bool = False) -> None:
        self.op, self.summand, self.space = op, summand, Rows(op, group)
        self.shape, self.dtype, self.device = op.shape, op.dtype, op.device

    def __matmul__(self, vectors: Tensor) -> Tensor:
        if len(vectors) != self.space.rows:
            raise ArgumentError(
                f"vectors of {len(vectors)} rows: rank {self.space.rank} holds {self.space.rows} of {self.shape[0]}",
                "give each rank its own rows: vectors[op.space.mine]",
            )
        if vectors.ndim == 1:
            return (self @ vectors[:, None])[:, 0]
        width = max(1, _TOGETHER // (self.shape[0] * vectors.element_size()))
        return torch.cat([self._product(part) for part in vectors.split(width, dim=1)], dim=1)

    def symmetric(self) -> MatrixOperator:
        """Raises ArgumentError: no rank holds a whole matrix."""
        raise ArgumentError("an operator over ranks is never written out", 'give method="lanczos"')

    def _product(self, vectors: Tensor) -> Tensor:
        image = self.op @ self.space.gathered(vectors)
        return self.space.summed(image) if self.summand else image[self.space.mine]
