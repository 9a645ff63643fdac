"""Krylov spaces in a file, where memory is short."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SEARCH = """
import os, resource, sys
import torch
import landscape
from landscape.curvature.operators import FunctionOperator

n, free = 300_000, int(sys.argv[1])
diagonal = torch.linspace(-1, 1, n, dtype=torch.float64)
diagonal[0], diagonal[-2], diagonal[-1] = -2, 2.5, 3
op = FunctionOperator(lambda vectors: diagonal[:, None] * vectors, (n, n), diagonal)
if free:
    used = int(open("/proc/self/status").read().split("VmData:")[1].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + free, used + free))
try:
    result = landscape.eigsh(op, 1, "highest", method="lanczos", rtol=1e-4, max_hvps=400)
    print(result.values.tolist(), result.converged.all(), result.num_products)
except landscape.LandscapeError as error:
    print(f"{error} ({error.hint})")
"""


def search(free: int, within: Sequence[str] = (), **environment: str) -> str:
    """What a search prints in a process with so much memory left; 0: all."""
    command = [*within, sys.executable, "-c", SEARCH, str(free)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | environment).stdout


@pytest.mark.slow
def test_a_search_in_little_memory_ends_as_in_much() -> None:
    """To the last bit. 40 vectors of the search and 64 of the complement take 250 MB; 150 are free."""
    assert search(150_000_000) == search(0)


@pytest.mark.slow
def test_what_fits_nowhere_is_refused(tmp_path: Path) -> None:
    """The disk is a file system of 40 MB of its own."""
    disk = [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        f'mount -t tmpfs -o size=40m none {tmp_path}; "$@"',
        "-",
    ]
    said = search(150_000_000, within=disk, TMPDIR=str(tmp_path))
    assert re.search(r"40 vectors of 300,000 numbers take 0.1 GB; 0.\d GB of memory and 0.0 GB of .* are free", said)
