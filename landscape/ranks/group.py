"""The ranks of a command that torchrun has started: one process group, and one error for all of them."""

from __future__ import annotations

import contextlib
import datetime
import traceback
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from landscape.errors import DeviceError, LandscapeError, as_landscape_error, complain
from landscape.ranks.launch import PATIENCE, Launch
from landscape.ranks.watch import RankError, Watch

_FOREVER = datetime.timedelta(days=30)
"""Of collectives: rank 0 may factorise a matrix for hours. `Watch` sees whether the others are alive."""


class Ranks:
    """What one rank does together with the others: every rank calls the same methods in the same order.

    Numbers go through NCCL on GPUs and gloo on CPUs, all else through gloo. Raises nothing for a rank that has died:
    the process ends.
    """

    def __init__(self, rank: int, size: int, watch: Watch) -> None:
        self.rank, self.size, self._watch = rank, size, watch

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Rank 0's numbers, in place of those of the others."""
        with self._together():
            dist.broadcast(tensor, 0)
        return tensor

    def backend(self, device: torch.device) -> str:
        """What numbers on a device go through."""
        return "nccl" if device.type == "cuda" else "gloo"

    def say(self, value: Any = None) -> Any:
        """What rank 0 says, on every rank."""
        held = [value]
        with self._together():
            dist.broadcast_object_list(held, 0, device=torch.device("cpu"))
        return held[0]

    def working(self) -> None:
        """This rank begins its part of a sum."""
        self._watch.working()

    def total(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, in place."""
        with self._watch.summing(), self._together():
            dist.all_reduce(part)
            if part.is_cuda:
                torch.cuda.synchronize(part.device)
        return part

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank."""
        found: list[Any] = [None] * self.size
        with self._together():
            dist.all_gather_object(found, value)
        return found

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        with self._watch.waiting():
            try:
                yield
            except RuntimeError as error:
                if as_landscape_error(error):
                    raise
                self._watch.lost(error)


@contextlib.contextmanager
def joined(launch: Launch, patience: float = PATIENCE) -> Iterator[Ranks]:
    """The process group of the ranks that torchrun has started, and the watch over them.

    patience: seconds without progress after which a rank counts as hanging. An error of any rank ends all of them, with
    its exit code, and is printed once, with the rank that it is of.
    """
    watch = _join(launch, patience)
    try:
        yield Ranks(launch.rank, launch.size, watch)
        watch.finish()
        dist.destroy_process_group()
    except BaseException as error:
        _end(watch, launch, error)


def _join(launch: Launch, patience: float) -> Watch:
    """Set the device, join the process group, and have this rank watched."""
    backend = "gloo"
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        if launch.local >= count:
            lacking = DeviceError(
                f"rank {launch.rank} of {launch.size} has no GPU of its own: this machine has {count}",
                "start one rank a GPU: torchrun --nproc-per-node gpu",
            )
            # The first of its machine; the command lets rank 0 alone speak, which has one.
            if launch.local == count and launch.rank:
                complain(lacking)
            raise lacking
        torch.cuda.set_device(launch.local)
        backend = "cpu:gloo,cuda:nccl"
    store, _, _ = next(rendezvous("env://"))
    # The watch has a connection of its own: one request at a time goes through each.
    own = PrefixStore(f"landscape/{launch.attempt}", store.clone())
    watch = Watch(own, launch.rank, launch.size, patience)
    dist.init_process_group(backend, store=store, rank=launch.rank, world_size=launch.size, timeout=_FOREVER)
    watch.start()
    return watch


def _end(watch: Watch, launch: Launch, error: BaseException) -> None:
    """End this process and all others: the others may wait for this one in a collective for ever."""
    known, name = as_landscape_error(error), f"rank {launch.rank} of {launch.size}"
    if watch.fail(known or LandscapeError(f"{name} fails: {type(error).__name__}", "")):
        if known is None:
            error.add_note(f"on {name}")
            traceback.print_exception(error)
        else:
            # Others may have no such error, on their machines and of their samples.
            complain(known if isinstance(known, RankError) else LandscapeError(f"{name}: {known}", known.hint))
    watch.leave(known.exit_code if known else 1)


def require_alike(ranks: Ranks, what: str, value: str, hint: str) -> None:
    """Raise RankError, on every rank, for the first of them whose value is not that of rank 0."""
    for rank, other in enumerate(every := ranks.gather(value)):
        if other != every[0]:
            raise RankError(f"rank {rank} has {what} {other}, rank 0 {every[0]}", hint)
