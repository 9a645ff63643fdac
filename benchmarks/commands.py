"""Seconds and memory of the commands that users wait for, whole: imports, files, figures and every core included."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import landscape
from benchmarks.harness import ROOT, Line, Numbers, Part, every_core, main
from benchmarks.peers import trained
from landscape import preset
from landscape.files.schema import LEVELS

_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
UNFINISHED = 3
"""Exit code of an analysis whose searches did not all converge, which is measured all the same."""


def command(arguments: str, run: str = "", steps: tuple[int, ...] = ()) -> Numbers:
    """`landscape` with these arguments in an empty folder, with every core.

    run: preset of the run file that {run} stands for, with checkpoints at `steps`. Where a Hessian file is made of
    quick, every index in it is certified.
    """
    path = ""
    if run:
        with trained(preset(run), steps) as reader:
            path = str(reader.path.resolve())
    with tempfile.TemporaryDirectory() as folder:
        cost = _landscape(arguments.format(run=path), folder)
        if run == "quick":
            with landscape.open(Path(folder) / "hessian.h5") as file:
                data = file.to_xarray()
                assert (data["inertia_level"] == LEVELS.index("certified")).all()
    return {"command": f"landscape {arguments.format(run='RUN.h5')}", **cost}


def _landscape(arguments: str, folder: str, first: str = "") -> Numbers:
    """Seconds, CPU seconds and the largest memory of a process and its workers, and seconds until it has made a file.

    Raises CalledProcessError.
    """
    return _process([sys.executable, "-m", "landscape", *arguments.split()], folder, first)


def _process(call: list[str], folder: str, first: str = "") -> Numbers:
    """The same of any process; and whether it ended with a search that did not converge."""
    started = time.perf_counter()
    process = subprocess.Popen(call, cwd=folder, env=every_core(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    made: Numbers = {}
    memory = 0
    while not os.waitid(os.P_PID, process.pid, _ENDED):
        memory = max(memory, _memory(process.pid))
        if first and not made and os.path.exists(os.path.join(folder, first)):
            made["first"] = time.perf_counter() - started
        time.sleep(0.02)
    _, status, usage = os.wait4(process.pid, 0)
    seconds, process.returncode = time.perf_counter() - started, os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, UNFINISHED):
        raise subprocess.CalledProcessError(process.returncode, call)
    cpu, is_whole = usage.ru_utime + usage.ru_stime, process.returncode == 0
    return {"seconds": seconds, "cpu": cpu, "memory": memory, "converged": is_whole, **made}


def _memory(process: int) -> int:
    """Bytes that a process and its workers hold now, what they may share, files and libraries, once."""
    own, shared, todo = 0, 0, [process]
    while todo:
        at = Path(f"/proc/{todo.pop()}")
        try:
            resident, mapped = map(int, (at / "statm").read_text(encoding="ascii").split()[1:3])
            todo += [int(child) for each in at.glob("task/*/children") for child in each.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        own, shared = own + resident - mapped, max(shared, mapped)
    return os.sysconf("SC_PAGE_SIZE") * (own + shared)


YARDSTICK = {"L D Lᵀ": 2.2, "Cholesky": 2.2, "eigenvalues": 11.5}
"""Seconds on the two cores for which the targets were set."""
LAPACK = """
import time
import numpy as np
from scipy.linalg import lapack

n = 6891
a = np.random.default_rng(0).standard_normal((n, n))
a += a.T
for work in (
    lambda: lapack.dsytrf(a, lower=1, lwork=64 * n),
    lambda: lapack.dpotrf(a + 1e3 * np.eye(n), lower=1),
    lambda: np.linalg.eigvalsh(a),
):
    started = time.perf_counter()
    work()
    print(time.perf_counter() - started)
"""
STEPS = tuple(range(30, 3001, 30))
"""A hundred checkpoints of quick."""
TWO, HUNDRED = "600,3000", ",".join(map(str, STEPS))
LARGE = "--k 4 --blocks E W E,W W,V E,V"
HESSIAN = "hessian {run} --out hessian.h5"
LIMITS: dict[str, tuple[float, int, str]] = {
    "train": (30.0, 1, "a run of quick, 6,891 parameters: training, files and metrics"),
    "hessian": (12.0, 2, "a checkpoint of quick, two at a time: five blocks, every index certified"),
    "hessian full": (25.0, 2, "a checkpoint of quick, two at a time, with every eigenvalue of all five blocks"),
    "hessian 100": (6.0, 100, "a checkpoint of quick, of a whole run of a hundred, two at a time"),
    "hessian mid": (60.0, 1, "a checkpoint of mid, 84,859 parameters: five blocks, ten pairs at each end, indices"),
    "hessian paper": (
        180.0,
        1,
        "a checkpoint of paper, 325,089 parameters: E, W, E,W, W,V and E,V, four pairs at each end, indices",
    ),
    "report": (5.0, 1, "the report of the demo's run and its Hessian file of twelve checkpoints"),
    "test": (480.0, 1, "`make test` on an installed clone, ruff and mypy included"),
    "test-fast": (90.0, 1, "`make test-fast`"),
    "ci": (720.0, 1, "`.ci/run` on a fresh clone: installing, the demo, and every test"),
    "demo": (90.0, 1, "`landscape demo`: training, Hessians of twelve checkpoints, report"),
}
"""By part: seconds allowed for one checkpoint or command, how many of these the part does, and what it does."""
MEMORY = {"hessian paper": 4e9}
"""Bytes allowed, by part."""
FIRST = (20.0, "its first figures")
"""Seconds allowed, and what is there by then."""


@functools.cache
def demo() -> tuple[tempfile.TemporaryDirectory[str], Numbers]:
    """`landscape demo`, which reports of the training before it measures Hessians; its folder, and what it took."""
    folder = tempfile.TemporaryDirectory()
    return folder, _landscape("demo", folder.name, "landscape-demo/report/report.html")


def report() -> Numbers:
    """The report of the demo's files, made again."""
    return _landscape("report landscape-demo/demo.h5 --out page", demo()[0].name)


def make(target: str) -> Numbers:
    """`make` in this clone, in which everything is installed."""
    return _process(["make", target], str(ROOT))


def ci() -> Numbers:
    """What continuous integration runs, on a fresh clone of the last commit."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
        return _process([".ci/run"], folder)


def machine() -> Numbers:
    """Seconds of LAPACK on a symmetric matrix as large as all of quick, in a process with every core."""
    process = subprocess.run(
        [sys.executable, "-c", LAPACK], env=every_core(), capture_output=True, text=True, check=True
    )
    return dict(zip(YARDSTICK, map(float, process.stdout.split()), strict=True))


def parts() -> list[Part]:
    quick = functools.partial(command, run="quick", steps=STEPS)
    return [
        Part("machine", machine),
        Part("train", functools.partial(command, "train --preset quick --out run.h5 --device cpu")),
        Part("hessian", functools.partial(quick, f"{HESSIAN} --steps {TWO}")),
        Part("demo", lambda: demo()[1]),
        Part("report", report),
        Part("test", functools.partial(make, "test"), slow=True),
        Part("test-fast", functools.partial(make, "test-fast"), slow=True),
        Part("ci", ci, slow=True),
        Part("hessian full", functools.partial(quick, f"{HESSIAN} --steps {TWO} --spectra full"), slow=True),
        Part("hessian 100", functools.partial(quick, f"{HESSIAN} --steps {HUNDRED}"), slow=True),
        Part("hessian mid", functools.partial(command, f"{HESSIAN} --steps 150", "mid", (150,)), slow=True),
        Part("hessian paper", functools.partial(command, f"{HESSIAN} --steps 150 {LARGE}", "paper", (150,)), slow=True),
    ]


def lines(results: Mapping[str, Numbers]) -> Iterator[Line]:
    """What a user waits for."""
    if "machine" in results:
        result, there = (
            ", ".join(f"{each[name]:.3g} s" for name in YARDSTICK) for each in (results["machine"], YARDSTICK)
        )
        what = f"this machine: {', '.join(YARDSTICK)} of a symmetric matrix, n = 6,891"
        yield Line("waits", what, f"{there} where the targets were set", result, None, "machine")
    for part, numbers in results.items():
        if part == "machine":
            continue
        limit, count, what = LIMITS[part]
        seconds = numbers["seconds"] / count
        result = f"{seconds:.3g} s ({numbers['cpu'] / count:.3g} CPU s), {numbers['memory'] / 1e9:.2f} GB"
        result += "" if numbers.get("converged", True) else ", a search did not converge"
        target, met = f"≤ {limit:g} s", seconds <= limit
        if part in MEMORY:
            target, met = f"{target}, {MEMORY[part] / 1e9:g} GB", met and numbers["memory"] <= MEMORY[part]
        yield Line("waits", what, target, result, met, part)
        if "first" in numbers:
            limit, what = FIRST
            yield Line("waits", what, f"≤ {limit:g} s", f"{numbers['first']:.3g} s", numbers["first"] <= limit, part)


if __name__ == "__main__":
    sys.exit(main("commands", parts()))
