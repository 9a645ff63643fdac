"""The part of a data set that one of several ranks takes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeGuard

import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from landscape.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Part:
    """What rank `rank` of `size` takes of the data of every objective that is made while it is `taken`.

    seen: checksums of what it takes a part of, by which the ranks see that it is the same for all.
    """

    rank: int
    size: int
    seen: list[str] = dataclasses.field(default_factory=list)

    def total(self, mine: Tensor) -> Tensor:
        """The sum of what all ranks have of it, which they ask for together."""
        mine = mine.contiguous()
        dist.all_reduce(mine)
        return mine

    def rows(self, count: int) -> slice:
        """Which of so many samples; sizes differ by at most one. Raises ArgumentError for fewer samples than ranks."""
        if count < self.size:
            raise ArgumentError(f"{count} samples for {self.size} ranks", f"start at most {count}")
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Every size-th batch; torch's own DataLoader over a data set with indices does not read the others.

        Raises ArgumentError for a sampler that gives another order each time, and for fewer batches than ranks.
        """
        if _has_indices(loader):
            orders = [[list(indices) for indices in loader.batch_sampler or ()] for _ in range(2)]
            if orders[0] != orders[1]:
                raise ArgumentError(
                    "the sampler gives another order when it is read again", "make it with shuffle=False"
                )
            self.seen.append(hashlib.sha256(repr(orders[0]).encode()).hexdigest())
            self._require(len(orders[0]))
            return _with_batches(loader, orders[0][self.rank :: self.size])
        mine = _EveryNth(loader, self.rank, self.size)
        self._require(len(list(itertools.islice(loader, self.size))))
        return mine

    def _require(self, count: int) -> None:
        if count < self.size:
            raise ArgumentError(f"{count} batches for {self.size} ranks", "start fewer, or make smaller batches")


def _has_indices(loader: Iterable[Any]) -> TypeGuard[DataLoader[Any]]:
    """Whether batches are what the data set has at the indices of a sampler, as torch's own DataLoader makes them.

    A class derived from it may change them on their way. Of an iterable data set the sampler never ends.
    """
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return False
    return loader.batch_sampler is not None


class _EveryNth:
    """Batches of a loader that has to go through them all."""

    def __init__(self, loader: Iterable[Any], first: int, step: int) -> None:
        self._loader, self._first, self._step = loader, first, step

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._loader, self._first, None, self._step)


def _with_batches(loader: DataLoader[Any], batches: list[list[Any]]) -> DataLoader[Any]:
    """The loader with other batches."""
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


_taken: ContextVar[Part | None] = ContextVar("taken", default=None)


@contextlib.contextmanager
def taking(part: Part) -> Iterator[None]:
    """Context in which all data are this part of what is given."""
    before = _taken.set(part)
    try:
        yield
    finally:
        _taken.reset(before)


def taken() -> Part | None:
    """The part to take; None: all."""
    return _taken.get()
