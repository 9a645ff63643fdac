"""CPU seconds and memory of the commands that users wait for, whole: imports, files and figures included."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.harness import Numbers, Part, main
from benchmarks.peers import trained
from landscape import preset

_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
UNFINISHED = 3
"""Exit code of an analysis whose searches did not all converge, which is measured all the same."""
SIZES = {"quick": 6_891, "mid": 84_859, "paper": 325_089}
"""Parameters of each preset."""
STEP = 150
"""Step of the checkpoint."""
ASKED = ("", "--only sharpness", "--certify")
"""What is measured: by default, less, more."""
LAPACK = """
import time
import numpy as np
from scipy.linalg import lapack

a = np.random.default_rng(0).standard_normal((6891, 6891))
a += a.T
started = time.process_time()
lapack.dsytrf(a, lower=1, lwork=64 * len(a))
print(time.process_time() - started)
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def checkpoint(name: str, asked: str) -> Numbers:
    """`landscape hessian` of one checkpoint of a preset."""
    with trained(preset(name), (STEP,)) as reader, tempfile.TemporaryDirectory() as folder:
        arguments = f"hessian {reader.path.resolve()} --steps {STEP} --out hessian.h5 --jobs 1 {asked}"
        return _landscape(arguments, folder)


def _landscape(arguments: str, folder: str) -> Numbers:
    """CPU seconds of a command with one thread, and the largest memory of its process and workers.

    Raises CalledProcessError.
    """
    return _process([sys.executable, "-m", "landscape", *arguments.split()], folder)


def _process(call: list[str], folder: str) -> Numbers:
    """The same of any process; and whether it ended with a search that did not converge."""
    output = subprocess.DEVNULL
    process = subprocess.Popen(call, cwd=folder, env={**os.environ, **ONE_THREAD}, stdout=output, stderr=output)
    memory = 0
    while not os.waitid(os.P_PID, process.pid, _ENDED):
        memory = max(memory, _memory(process.pid))
        time.sleep(0.02)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, UNFINISHED):
        raise subprocess.CalledProcessError(process.returncode, call)
    return {"cpu": usage.ru_utime + usage.ru_stime, "memory": memory, "converged": process.returncode == 0}


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


@functools.cache
def demo() -> tuple[tempfile.TemporaryDirectory[str], Numbers]:
    """`landscape demo`; its folder, and what it took."""
    folder = tempfile.TemporaryDirectory()
    return folder, _landscape("demo", folder.name)


def report() -> Numbers:
    """The report of the demo's files, made again."""
    return _landscape("report landscape-demo/demo.h5 --out page", demo()[0].name)


def train() -> Numbers:
    """A run of quick, with files and metrics."""
    with tempfile.TemporaryDirectory() as folder:
        return _landscape("train --preset quick --out run.h5 --device cpu", folder)


def machine() -> Numbers:
    """CPU seconds of L D L^T of a symmetric matrix as large as all of quick, with one thread."""
    env = {**os.environ, **ONE_THREAD}
    done = subprocess.run([sys.executable, "-c", LAPACK], env=env, capture_output=True, text=True, check=True)
    return {"cpu": float(done.stdout)}


def parts() -> list[Part]:
    return [
        Part("machine", machine),
        *(Part(name, work) for name, (_, work) in COMMANDS.items()),
        *(
            Part(f"{name} {asked}".strip(), functools.partial(checkpoint, name, asked), slow=name != "quick")
            for name in SIZES
            for asked in ASKED
        ),
    ]


COMMANDS: dict[str, tuple[str, Callable[[], Numbers]]] = {
    "train": ("`landscape train --preset quick`", train),
    "demo": ("`landscape demo`", lambda: demo()[1]),
    "report": ("`landscape report` of its run and its Hessian file of twelve checkpoints", report),
}
"""Other commands by part: what the page calls them, and their work."""


def costs(results: Mapping[str, Numbers]) -> Iterator[list[str]]:
    """A row a network: its size, and what a checkpoint takes by what is asked for."""
    for name, size in SIZES.items():
        cells = [results.get(f"{name} {asked}".strip()) for asked in ASKED]
        if any(cells):
            yield [name, f"{size:,}", *(_cost(cell) if cell else "" for cell in cells)]


def draw_costs(results: Mapping[str, Numbers], path: Path) -> None:
    """CPU seconds of a checkpoint by the size of the network, for each of what is asked for."""
    import matplotlib.pyplot as plt
    import pandas as pd
    import seaborn as sns

    rows = [
        (size, asked or "by default", results[part]["cpu"])
        for name, size in SIZES.items()
        for asked in ASKED
        if (part := f"{name} {asked}".strip()) in results
    ]
    if not rows:
        return
    with sns.axes_style("ticks"):
        figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
        data = pd.DataFrame(rows, columns=["parameters", "asked for", "CPU s"])
        look = {"palette": "colorblind", "markers": True, "dashes": False}
        sns.lineplot(data, x="parameters", y="CPU s", hue="asked for", style="asked for", ax=axis, **look)
    axis.set(xscale="log", yscale="log", ylabel="CPU time of a checkpoint (s)")
    ticks = [1, 3, 10, 30, 100, 300]
    axis.set_yticks(ticks, map(str, ticks))
    axis.set_xticks([*SIZES.values()], [f"{size:,}" for size in SIZES.values()])
    axis.minorticks_off()
    sns.despine(figure)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def waits(results: Mapping[str, Numbers]) -> Iterator[list[str]]:
    """A row a command."""
    for part, (name, _) in COMMANDS.items():
        if part in results:
            yield [name, _cost(results[part])]


def _cost(numbers: Numbers) -> str:
    short = "" if numbers["converged"] else ", a search did not converge"
    return f"{numbers['cpu']:.0f} CPU s, {numbers['memory'] / 1e9:.1f} GB{short}"


if __name__ == "__main__":
    sys.exit(main("commands", parts()))
