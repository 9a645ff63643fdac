"""The ranks of a command that torchrun has started: one process group, and one error for all of them.

Every rank runs the same measurements on its part of the samples (`landscape.curvature.part`). Every sum over samples is
one all-reduce, so that all ranks see the same numbers. Rank 0 says what is measured, and it alone writes and prints.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn, TypeVar

from landscape.errors import INTERRUPTED, DeviceError, LandscapeError, as_landscape_error, complain

T = TypeVar("T")
PATIENCE = 600.0
"""Seconds that a rank waits for the others, unless a command is told otherwise."""
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class RankError(LandscapeError):
    """A rank that has died, hangs, or is unlike the others."""


@dataclasses.dataclass(frozen=True)
class Ranks:
    """This process as one of `size`; local: its number on this machine."""

    rank: int
    size: int
    local: int

    def broadcast(self, value: Any = None) -> Any:
        """Rank 0's value, on every rank."""
        import torch
        import torch.distributed as dist

        values = [value]
        dist.broadcast_object_list(values, 0, device=torch.device("cpu"))
        return values[0]

    def gather(self, value: T) -> list[T]:
        """Every rank's value, on every rank."""
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def require_alike(self, what: str, value: str, hint: str) -> None:
        """Raise RankError, on every rank, for the first of them whose value is not that of rank 0."""
        for rank, other in enumerate(values := self.gather(value)):
            if other != values[0]:
                raise RankError(f"rank {rank} has {what} {other}, rank 0 {values[0]}", hint)


def launched() -> Ranks | None:
    """What torchrun says of this process in its environment; None where it is the only one."""
    if not all(os.environ.get(name) for name in _NEEDED) or os.environ["WORLD_SIZE"] == "1":
        return None
    rank = int(os.environ["RANK"])
    return Ranks(rank, int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", rank)))


@contextlib.contextmanager
def joined(ranks: Ranks, patience: float = PATIENCE) -> Iterator[None]:
    """The process group of the ranks, in which rank 0 alone prints.

    Numbers on GPUs go through NCCL, all else through gloo. An error of any rank ends all of them: it is printed once,
    with the rank that it is of, and this process ends. So does a rank that waits longer than `patience` seconds.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    backend = "gloo"
    if torch.cuda.is_available():
        if ranks.local >= (count := torch.cuda.device_count()):
            lacking = DeviceError(
                f"rank {ranks.rank} of {ranks.size} has no GPU of its own: this machine has {count}",
                "start one rank a GPU: torchrun --nproc-per-node gpu",
            )
            # The first of its machine; of commands rank 0 alone speaks, which has one.
            if ranks.local == count and ranks.rank:
                complain(lacking)
            raise lacking
        torch.cuda.set_device(ranks.local)
        backend = "cpu:gloo,cuda:nccl"
        # A time-out is then an error here, not the end of the process.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    store, _, _ = next(rendezvous("env://"))
    timeout = datetime.timedelta(seconds=patience)
    dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.size, timeout=timeout)
    stderr = sys.stderr
    try:
        with _silence() if ranks.rank else contextlib.nullcontext():
            yield
            # Rank 0 may still write when the others are done.
            dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        sys.stderr = stderr
        _end(ranks, store, error)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield


def _end(ranks: Ranks, store: Any, error: BaseException) -> NoReturn:
    """Print an error, unless another rank has done so, and end this process; the others lose their connection to it."""
    import torch.distributed as dist

    known, name = as_landscape_error(error), f"rank {ranks.rank} of {ranks.size}"
    if isinstance(error, KeyboardInterrupt):
        known = RankError(f"interrupted on {name}", "the same command resumes")
        known.exit_code = INTERRUPTED
    elif known is None and isinstance(error, dist.DistError | RuntimeError) and _is_of_group(error):
        reason = str(error).strip().splitlines()[0]
        known = RankError(
            f"{name} has lost another rank, which died or did not answer: {reason}",
            "torchrun says which; the same command resumes, and nothing that is stored is lost; raise --patience if a "
            "rank was only slow",
        )
    elif known and not isinstance(known, RankError):
        known = LandscapeError(f"{name}: {known}", known.hint)
    is_first = True
    with contextlib.suppress(Exception):
        is_first = store.add("failed", 1) == 1
    if is_first and known:
        complain(known)
    elif is_first:
        error.add_note(f"on {name}")
        traceback.print_exception(error)
    sys.stderr.flush()
    # Without what the process group does at the end of a process, which may wait for the others.
    os._exit(known.exit_code if known else 1)


def _is_of_group(error: BaseException) -> bool:
    """Whether an error comes from the process group."""
    import torch.distributed as dist

    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, dist.DistError) or any("/torch/distributed/" in frame.filename for frame in frames[-2:])
