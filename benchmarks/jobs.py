"""The scheduler of sweeps without its work: seconds, files, bytes and calls to the file system against jobs.

    python -m benchmarks.jobs [N ...]

Jobs do nothing but make their file; sbatch, srun, squeue and scontrol are shell scripts that answer at once. Each phase
runs in a process of its own: once for its CPU time, once under strace for its calls.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from landscape.jobs import run as sweeping
from landscape.jobs.executors import Here, execute_all
from landscape.jobs.journal import JOBS, LEASES, Journal
from landscape.jobs.leases import Holder
from landscape.jobs.plan import SweepConfig, sweep_runs
from landscape.jobs.slurm import submit
from landscape.jobs.status import status

SIZES = (1_000, 10_000, 100_000)
ANALYSES, PACK = 9, 100
PHASES = ("plan", "submit", "execute", "status")
SLURM = {
    "srun": "",
    "sbatch": "echo Submitted batch job $$",
    "squeue": "",
    "scontrol": "echo 'MaxArraySize = 1001'",
}


@dataclasses.dataclass(frozen=True)
class Nothing:
    """A job that only makes its file."""

    path: Path
    kind = "train"

    @property
    def outputs(self) -> tuple[Path, ...]:
        return (self.path,)

    def waits_for(self) -> None:
        return None

    def split(self) -> list[Nothing]:
        return []

    def execute(self) -> None:
        self.path.touch()


def definition(jobs: int) -> SweepConfig:
    """A sweep of so many files: a tenth are runs, each with nine analyses."""
    seeds = tuple(range(jobs // (1 + ANALYSES)))
    hessian = tuple({"name": f"a{i}", "steps": "0", "blocks": ["E"], "device": "cpu"} for i in range(ANALYSES))
    train: dict[str, Any] = {"p": 7, "tokens": 2, "embed_dim": 4, "hidden": 8, "steps": 0, "device": "cpu"}
    return SweepConfig(name="many", train=train, seeds=seeds, hessian=hessian)


def phase(name: str, jobs: int, out: Path) -> float:
    """CPU seconds of a phase."""
    config = definition(jobs)
    folder = out / config.name
    paths = [path for run in sweep_runs(config, out) for path in run.files]
    began = time.process_time()
    if name == "plan":
        with sweeping.planned(config, out) as work:
            assert len(work.untrained) + len(work.analyses) == jobs
    elif name == "submit":
        submit([[Nothing(path) for path in paths]], folder / JOBS, 1, "many", PACK, {})
    elif name == "execute":
        with Holder(folder / JOBS / LEASES) as holder:
            journal = Journal(folder / JOBS, holder.process.id, 1, "here")
            assert (
                sum(reason is None for _, reason in execute_all(list(map(Nothing, paths)), Here(), holder, journal))
                == jobs
            )
    else:
        counts = status(config, out).counts
        assert sum(of["done"] for of in counts.values()) == jobs
    return time.process_time() - began


def measured(jobs: int) -> dict[str, dict[str, float]]:
    """CPU seconds, calls to the file system, new files and their bytes of each phase."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program, answer in SLURM.items():
            (folder / program).write_text(f"#!/bin/sh\n{answer}\n")
            (folder / program).chmod(0o755)
        env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        outs = [folder / "timed", folder / "traced"]
        for what in PHASES:
            before = _held(outs[0])
            command = [sys.executable, "-m", "benchmarks.jobs", "--phase", what, str(jobs)]
            seconds = float(subprocess.run([*command, str(outs[0])], env=env, check=True, capture_output=True).stdout)
            after = _held(outs[0])
            calls = _traced([*command, str(outs[1])], env) - _traced([*command[:-2], "import", "0", str(outs[1])], env)
            found[what] = {
                "seconds": seconds,
                "calls": calls,
                "files": after[0] - before[0],
                "bytes": after[1] - before[1],
            }
    return found


def _traced(command: list[str], env: dict[str, str]) -> int:
    """Calls to the file system of a command."""
    trace = ["strace", "-f", "--seccomp-bpf", "-c", "-e", "trace=file,desc", "-o", "/dev/stdout"]
    said = subprocess.run([*trace, *command], env=env, check=True, capture_output=True, text=True).stdout
    return int(re.findall(r"^100\.00\s+\S+\s+\S*\s+(\d+)", said, re.MULTILINE)[-1])


def _held(folder: Path) -> tuple[int, int]:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def main(argv: list[str]) -> None:
    if argv[:1] == ["--phase"]:
        what, jobs, out = argv[1:]
        print(0.0 if what == "import" else phase(what, int(jobs), Path(out)))
        return
    sizes = list(map(int, argv)) or SIZES
    results = {jobs: measured(jobs) for jobs in sizes}
    print(json.dumps(results, indent=1))
    for what in PHASES:
        for number in ("seconds", "calls", "bytes"):
            values = [max(results[jobs][what][number], 1e-9) for jobs in sizes]
            slope = math.log(values[-1] / values[0]) / math.log(sizes[-1] / sizes[0]) if len(sizes) > 1 else math.nan
            print(f"{what:10} {number:8} {'  '.join(f'{value:12.6g}' for value in values)}  slope {slope:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
