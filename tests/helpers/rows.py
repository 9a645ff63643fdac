"""Tests over the ranks of a process group: each rank runs the same ones, with its rows of every vector."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.apart import SERVER
from torch import Tensor

from benchmarks.ranks import joined
from landscape.curvature.operators import LinearOperator, MatrixOperator
from landscape.curvature.sharded import Sharded

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


def held(A: Tensor) -> LinearOperator:
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


def mine(op: LinearOperator, X: Tensor) -> Tensor:
    """What is held here of whole vectors (n, m)."""
    return X[op.space.mine] if isinstance(op, Sharded) else X


def whole(op: LinearOperator, X: Tensor) -> Tensor:
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
