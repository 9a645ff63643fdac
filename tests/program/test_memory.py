"""How much memory is free: on made-up machines, and in real processes under real limits."""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TINY

from landscape.memory import free_bytes
from landscape.training.loop import train

GIB = 1 << 30


def machine(root: Path, cgroup: str, groups: dict[str, dict[str, str | int]], available: int = 64 * GIB) -> Path:
    """A folder with the files that the kernel shows, groups by their folder under /sys/fs/cgroup."""
    files: dict[str, str | int] = {
        "proc/meminfo": f"MemTotal: 99999999 kB\nMemFree: 1000 kB\nMemAvailable: {available >> 10} kB\n",
        "proc/self/cgroup": cgroup,
        "proc/self/status": "VmSize:\t 1048576 kB\nVmData:\t 524288 kB\n",
    }
    files |= {f"sys/fs/cgroup/{group}/{name}": text for group, own in groups.items() for name, text in own.items()}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def v2(most: str | int, used: int, cache: int = 0) -> dict[str, str | int]:
    return {"memory.max": most, "memory.current": used, "memory.stat": f"anon 5\ninactive_file {cache}"}


def v1(most: int, used: int, cache: int = 0) -> dict[str, str | int]:
    stat = f"inactive_file 7\ntotal_inactive_file {cache}"
    return {"memory.limit_in_bytes": most, "memory.usage_in_bytes": used, "memory.stat": stat}


NONE = (1 << 63) - 4096
JOB = "0::/user/job"
OLD = "4:memory:/docker/job\n2:cpu,cpuacct:/\n0::/"


@pytest.mark.parametrize(
    ("cgroup", "groups", "free"),
    [
        ("", {}, 64 * GIB),
        (JOB, {"user/job": v2(8 * GIB, 3 * GIB), "user": v2("max", 9 * GIB)}, 5 * GIB),
        (JOB, {"user/job": v2("max", 3 * GIB), "user": v2(10 * GIB, 4 * GIB)}, 6 * GIB),
        (JOB, {"user/job": v2(8 * GIB, 7 * GIB, 5 * GIB)}, 6 * GIB),
        (JOB, {"": v2(4 * GIB, 1 * GIB)}, 3 * GIB),
        ("0::/../other", {"": v2(4 * GIB, 1 * GIB)}, 3 * GIB),
        (JOB, {"user/job": v2(2 * GIB, 3 * GIB)}, 0),
        (JOB, {"unified/user/job": v2(8 * GIB, 3 * GIB)}, 5 * GIB),
        (OLD, {"memory/docker/job": v1(8 * GIB, 3 * GIB, 2 * GIB), "memory": v1(NONE, 9 * GIB)}, 7 * GIB),
        (OLD, {"memory/docker/job": v1(NONE, 3 * GIB), "memory/docker": v1(6 * GIB, 4 * GIB)}, 2 * GIB),
        (OLD, {"memory": v1(2 * GIB, 1 * GIB)}, 1 * GIB),
        (JOB, {"user/job": {"memory.max": "unreadable", "memory.current": "?"}}, 64 * GIB),
    ],
)
def test_the_least_counts(tmp_path: Path, cgroup: str, groups: dict[str, dict[str, str | int]], free: int) -> None:
    """Available memory, which the page cache is part of, or the tightest group, of both versions."""
    assert free_bytes(machine(tmp_path, cgroup, groups)) == free


@pytest.mark.parametrize(("limit", "used"), [(resource.RLIMIT_AS, GIB), (resource.RLIMIT_DATA, GIB // 2)])
def test_resource_limits_count(limit: int, used: int, tmp_path: Path) -> None:
    """Less what the process has already."""
    machine(tmp_path, "", {})
    soft, hard = resource.getrlimit(limit)
    try:
        resource.setrlimit(limit, (100 * GIB, hard))
        assert free_bytes(tmp_path) == 64 * GIB
        resource.setrlimit(limit, (50 * GIB, hard))
        assert free_bytes(tmp_path) == 50 * GIB - used
    finally:
        resource.setrlimit(limit, (soft, hard))


def test_this_machine() -> None:
    """Not more than the machine has, not less than what can be allocated right now."""
    free = free_bytes()
    assert 0 < free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


UNDER_A_LIMIT = """
import resource, sys
import landscape.measure.measurement, landscape.measure.hessian
from landscape.cli import main as cli
from landscape.memory import free_bytes

used = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
assert free_bytes() <= 1 << 30
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.mark.long
def test_a_block_that_an_address_space_cannot_hold_is_refused(tmp_path: Path) -> None:
    """Under `ulimit -v` the command says what is needed and what is free, before it starts; a small block is done."""
    run = tmp_path / "wide.h5"
    train(dataclasses.replace(TINY, hidden=400, steps=0, checkpoint_every=0), run, quiet=True)
    command = [sys.executable, "-c", UNDER_A_LIMIT, "hessian", run, "--steps", "0", "--method", "dense"]
    refused = subprocess.run([*command, "--blocks", "all", "--quiet"], capture_output=True, text=True)
    assert refused.returncode == 1
    match = re.fullmatch(
        r"error: block all as a dense matrix \(6,\d{3} parameters\) needs (\S+) GB; (\S+) GB are free\n"
        r"hint: use --method lanczos, or leave the block out of --blocks\n",
        refused.stderr,
    )
    assert match, refused.stderr
    assert float(match[1]) > 1.5 > 1.1 >= float(match[2])
    assert not run.with_name("wide.hessian.h5").exists()
    done = subprocess.run([*command, "--blocks", "E", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
