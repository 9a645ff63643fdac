"""The part of a data set that one of several ranks takes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import torch.distributed as dist
from torch import Tensor

from landscape.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class Part:
    """What rank `rank` of `size` takes of the data of every objective that is created within `taking`.

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
        """Every size-th batch, from the rank-th on. Raises ArgumentError for fewer batches than ranks."""
        if (count := len(list(itertools.islice(loader, self.size)))) < self.size:
            raise ArgumentError(f"{count} batches for {self.size} ranks", "start fewer, or make smaller batches")
        return _EveryNth(loader, self.rank, self.size)


class _EveryNth:
    """Batches of a loader that has to go through them all."""

    def __init__(self, loader: Iterable[Any], first: int, step: int) -> None:
        self._loader, self._first, self._step = loader, first, step

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._loader, self._first, None, self._step)


_part: ContextVar[Part | None] = ContextVar("part", default=None)


@contextlib.contextmanager
def taking(part: Part) -> Iterator[None]:
    """Context in which every objective takes this part of its data."""
    before = _part.set(part)
    try:
        yield
    finally:
        _part.reset(before)


def current_part() -> Part | None:
    """The part to take; None: all."""
    return _part.get()
