"""Products over samples and vectors over rows, on 1, 2 and 4 processes of this machine: seconds, bytes, memory a rank.

    python -m benchmarks.ranks

measures, and prints a table. Bytes are those that the kernel counts on each rank's connections.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.harness import ROOT, Numbers, Part, load, measure
from landscape import HessianOperator, Objective
from landscape.curvature.krylov import Krylov
from landscape.curvature.operators import FunctionOperator
from landscape.curvature.sharded import Sharded

RANKS, COLUMNS, STEPS = (1, 2, 4), 40, 12
INPUTS, CLASSES = 100, 10
HIDDEN, SAMPLES = (900, 1800, 3600), (256, 512, 1024)
TCP_INFO, SENT, AGAIN, RECEIVED = 11, 200, 208, 128
"""Where Linux has the bytes of a connection, in its struct tcp_info."""


@contextlib.contextmanager
def joined(rank: int, ranks: int, folder: Path) -> Iterator[None]:
    """A gloo group of processes that meet in a file."""
    limit = datetime.timedelta(minutes=10)
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
                    # A busy machine answers late, and the kernel sends again what has arrived.
                    sent += struct.unpack_from("Q", info, SENT)[0] - struct.unpack_from("Q", info, AGAIN)[0]
                    received += struct.unpack_from("Q", info, RECEIVED)[0]
    dist.barrier()
    return sent, received


def cases(ranks: int) -> list[tuple[int, int]]:
    """Hidden units and samples: those of the slopes, of strong and of weak scaling."""
    found = [*itertools.product(HIDDEN, SAMPLES[:1]), *itertools.product(HIDDEN[:1], SAMPLES[1:])]
    return [*found, (HIDDEN[1], SAMPLES[-1]), (HIDDEN[1], SAMPLES[0] * ranks)]


def share(hidden: int, samples: int) -> Sharded:
    """The Hessian of a network of one hidden layer, of which this rank has its part of the samples."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES)).float()
    x = torch.randn(samples, INPUTS, generator=generator)[rank::ranks]
    y = torch.randint(0, CLASSES, (samples,), generator=generator)[rank::ranks]
    H = HessianOperator(Objective(model, x, y, dtype=torch.float32), dict(model.named_parameters()))
    return Sharded(FunctionOperator(lambda v: (H @ v) / ranks, H.shape, H), summand=True)


def step(hidden: int, samples: int) -> Numbers:
    """One Lanczos step in float32: its product, and what the engine does with the image."""
    op = share(hidden, samples)
    krylov = Krylov(op.space, COLUMNS)
    krylov.fill(torch.Generator().manual_seed(0))
    # The first messages open connections.
    krylov.take(op @ krylov.block)
    found: dict[str, list[Any]] = {name: [] for name in ("product", "engine", "product_cpu", "engine_cpu")}
    sent = []
    for _ in range(STEPS):
        at = [traffic()]
        for name in ("product", "engine"):
            wall, cpu = time.perf_counter(), time.process_time()
            if name == "product":
                image = op @ krylov.block
            else:
                krylov.take(image)
            found[name].append(time.perf_counter() - wall)
            found[f"{name}_cpu"].append(time.process_time() - cpu)
            at.append(traffic())
        sent.append(np.diff(at, axis=0).max(1))
    product, engine = np.median(sent, axis=0)
    return {
        "n": op.shape[0],
        "samples": samples,
        **{name: statistics.median(seconds) for name, seconds in found.items()},
        "product_bytes": float(product),
        "engine_bytes": float(engine),
        "basis_bytes": krylov.basis.untyped_storage().nbytes(),
    }


def work() -> Numbers:
    """Every case on every number of processes, as rank 0 counts it."""
    found = []
    for ranks in RANKS:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks.ranks", str(ranks), folder]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            started = [subprocess.Popen([*command, str(rank)], env=env) for rank in range(ranks)]
            codes = [process.wait() for process in started]
            if any(codes):
                raise ChildProcessError(f"{ranks} processes end with {codes}")
            found += json.loads(Path(folder, "found").read_text())
    return {"load": os.getloadavg()[0], "cases": found}


def rank(ranks: int, folder: Path, number: int) -> None:
    """In each process."""
    torch.set_num_threads(1)
    with joined(number, ranks, folder):
        found = [{"ranks": ranks, **step(*case)} for case in cases(ranks)]
    if number == 0:
        (folder / "found").write_text(json.dumps(found))


def main(argv: Sequence[str]) -> None:
    if argv:
        rank(int(argv[0]), Path(argv[1]), int(argv[2]))
        return
    measure("ranks", [Part("processes", functools.partial(work))], full=False, again=True)
    print(pd.DataFrame(load("ranks")["parts"]["processes"]["cases"]).to_string(index=False))


if __name__ == "__main__":
    main(sys.argv[1:])
