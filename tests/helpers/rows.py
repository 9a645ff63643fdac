"""Tests over the ranks of a process group: each rank runs the same ones, with its rows of every vector."""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.apart import SERVER
from torch import Tensor

from landscape.curvature.operators import LinearMap, MatrixOperator
from landscape.curvature.sharded import Sharded

TCP_INFO, SENT, RECEIVED = 11, 200, 128
"""Where Linux has the bytes of a connection, in its struct tcp_info."""
# The server of processes has imported plugins already.
PYTEST = (
    "-x",
    "--noconftest",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)


def held(A: Tensor) -> LinearMap:
    """A matrix as an operator on the vectors of this place: whole ones, or rows of them where there are ranks.

    Of two ranks each has the matrix; of more, each has some of its entries.
    """
    if not dist.is_initialized():
        return MatrixOperator(A)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if ranks == 2:
        return Sharded(MatrixOperator(A))
    mine = torch.arange(len(A))[:, None].add(torch.arange(len(A))) % ranks == rank
    return Sharded(MatrixOperator(A * mine), summand=True)


def mine(op: LinearMap, X: Tensor) -> Tensor:
    """What is held here of whole vectors (n, m)."""
    return X[op.space.mine] if isinstance(op, Sharded) else X


def whole(op: LinearMap, X: Tensor) -> Tensor:
    """Whole vectors (n, m) of what every rank holds."""
    return op.space.gathered(X) if isinstance(op, Sharded) else X


def over_ranks(ranks: int, folder: Path, *argv: str) -> None:
    """Run pytest on every rank; all tests must pass on all of them."""
    children = [SERVER.Process(target=_rank, args=(rank, ranks, folder, argv)) for rank in range(ranks)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    said = [(folder / str(rank)).read_text() for rank in range(ranks)]
    assert [child.exitcode for child in children] == [0] * ranks, "\n".join(said)


@contextlib.contextmanager
def joined(rank: int, ranks: int, folder: Path) -> Iterator[None]:
    """A gloo group of processes that meet in a file."""
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=ranks, timeout=limit)
    try:
        yield
    finally:
        dist.destroy_process_group()


def traffic() -> tuple[int, int]:
    """Bytes that this rank has sent and received over TCP, as the kernel counts them, between two messages of all."""
    sent = received = 0
    dist.barrier()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket"):
                continue
            with socket.socket(fileno=os.dup(int(number))) as end:
                if end.family in (socket.AF_INET, socket.AF_INET6):
                    info = end.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 256)
                    sent += struct.unpack_from("Q", info, SENT)[0]
                    received += struct.unpack_from("Q", info, RECEIVED)[0]
    dist.barrier()
    return sent, received


def _rank(rank: int, ranks: int, folder: Path, argv: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out = os.open(folder / str(rank), os.O_CREAT | os.O_WRONLY)
    os.dup2(out, 1)
    os.dup2(out, 2)
    torch.set_num_threads(1)
    os.environ.pop("PYTEST_XDIST_WORKER", None)
    with joined(rank, ranks, folder):
        code = pytest.main([*PYTEST, f"--basetemp={folder}/{rank}.tmp", *argv])
    os._exit(code)
