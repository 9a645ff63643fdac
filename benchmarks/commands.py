"""Seconds and memory of the commands that users wait for, whole: imports, files, figures and every core included."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

from benchmarks.harness import Line, Numbers, Part, main
from benchmarks.peers import trained
from landscape import preset

UNFINISHED = 3
"""Exit code of an analysis whose searches did not all converge, which is measured all the same."""


def command(arguments: str, before: tuple[str, ...] = (), run: str = "", steps: tuple[int, ...] = ()) -> Numbers:
    """`landscape` with these arguments in an empty folder, with every core; `before` are run first, untimed.

    run: preset of the run file that {run} stands for, with checkpoints at `steps`.
    """
    path = ""
    if run:
        with trained(preset(run), steps) as reader:
            path = str(reader.path.resolve())
    with tempfile.TemporaryDirectory() as folder:
        for each in before:
            _landscape(each.format(run=path), folder)
        return {
            "command": f"landscape {arguments.format(run='RUN.h5')}",
            **_landscape(arguments.format(run=path), folder),
        }


def _landscape(arguments: str, folder: str) -> Numbers:
    """Seconds, CPU seconds and the largest resident size of a process. Raises CalledProcessError."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    call = [sys.executable, "-m", "landscape", *arguments.split()]
    started = time.perf_counter()
    process = subprocess.Popen(call, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds, process.returncode = time.perf_counter() - started, os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, UNFINISHED):
        raise subprocess.CalledProcessError(process.returncode, call)
    return {"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime, "memory": 1024 * usage.ru_maxrss}


STEPS = tuple(range(30, 3001, 30))
"""A hundred checkpoints of quick."""
FOUR = "30,600,1500,3000"
LARGE = "--k 4 --blocks E W E,W W,V E,V"
HESSIAN = "hessian --ckpt {run} --out hessian.h5"
DEMO = ("train --preset demo --out demo.h5", "hessian --ckpt demo.h5 --num-steps 12")
LIMITS: dict[str, tuple[float, int, str]] = {
    "train": (30.0, 1, "a run of quick, 6,891 parameters: training, files and metrics"),
    "hessian": (12.0, 4, "a checkpoint of quick: five blocks, every index certified"),
    "hessian full": (25.0, 4, "the same with every eigenvalue of all blocks"),
    "hessian 100": (6.0, 100, "a checkpoint of quick, over a run of a hundred"),
    "hessian mid": (60.0, 1, "a checkpoint of mid, 84,859 parameters: five blocks, ten pairs at each end, indices"),
    "hessian paper": (180.0, 1, "a checkpoint of paper, 325,089 parameters: five blocks, four pairs at each end"),
    "report": (5.0, 1, "the report of a run and its Hessian file"),
    "demo": (90.0, 1, "training, Hessians of twelve checkpoints and report of preset demo"),
}
"""By part: seconds allowed for one checkpoint or command, how many of these the part does, and what it does."""


def demo() -> Numbers:
    """The commands of `make demo`, added up."""
    with tempfile.TemporaryDirectory() as folder:
        found = [_landscape(each, folder) for each in (*DEMO, "report demo.h5 --out page")]
    memory = max(each["memory"] for each in found)
    return {**{key: sum(each[key] for each in found) for key in ("seconds", "cpu")}, "memory": memory}


def parts() -> list[Part]:
    quick = functools.partial(command, run="quick", steps=STEPS)
    return [
        Part("train", functools.partial(command, "train --preset quick --out run.h5 --device cpu")),
        Part("hessian", functools.partial(quick, f"{HESSIAN} --steps {FOUR}")),
        Part("hessian full", functools.partial(quick, f"{HESSIAN} --steps {FOUR} --spectra full")),
        Part("report", functools.partial(quick, "report {run} --out page", (f"{HESSIAN} --steps {FOUR}",))),
        Part("demo", demo),
        Part("hessian 100", functools.partial(quick, f"{HESSIAN} --steps all"), slow=True),
        Part("hessian mid", functools.partial(command, f"{HESSIAN} --steps 150", (), "mid", (150,)), slow=True),
        Part(
            "hessian paper",
            functools.partial(command, f"{HESSIAN} --steps 150 {LARGE}", (), "paper", (150,)),
            slow=True,
        ),
    ]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """What a user waits for."""
    for part, numbers in found.items():
        limit, count, what = LIMITS[part]
        seconds = numbers["seconds"] / count
        told = f"{seconds:.3g} s, {numbers['memory'] / 1e9:.2f} GB"
        yield Line("waits", what, f"≤ {limit:g} s", told, seconds <= limit, part)


if __name__ == "__main__":
    sys.exit(main("commands", parts()))
