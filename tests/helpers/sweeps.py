"""Small sweeps: their definitions, their command lines and what they leave."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from landscape.files.runs import RunReader
from landscape.jobs.plan import SweepRun
from landscape.workers import Workers, _attempt

SIZES = {"p": 7, "tokens": 2, "embed_dim": 4, "hidden": 8, "batch_size": 16, "train_fraction": 0.6, "device": "cpu"}
SHORT = {**SIZES, "steps": 20, "stop_test_accuracy": None, "metrics_every": 10, "checkpoint_every": 10}
LONG: dict[str, Any] = {
    "name": "long",
    "train": {**SHORT, "steps": 1500, "checkpoint_every": 20, "dtype": "float64"},
    "cases": {"base": {}, "wide": {"hidden": 12}},
    "grid": {"lr_ratio": [0.5], "bias": [True]},
    "seeds": [0, 3],
    "hessian": [
        {"steps": "0,20,1500", "blocks": ["E", "E,W"], "device": "cpu"},
        {"name": "end", "steps": "1500", "blocks": ["all"], "device": "cpu", "cases": ["wide"], "seeds": [3]},
    ],
}


def written(folder: Path, sweep: dict[str, Any]) -> Path:
    """A sweep's JSON file."""
    path = folder / "sweep.json"
    path.write_text(json.dumps(sweep))
    return path


def arguments(folder: Path, sweep: dict[str, Any], *more: str) -> list[str]:
    return ["sweep", "--config", str(written(folder, sweep)), "--out", str(folder), "--quiet", "--jobs", "2", *more]


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Here(Workers):
    """Calls in this process: two workers take longer to start than all else that a small sweep does."""

    def _answers(
        self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], hear: Callable[[Any], object]
    ) -> Iterator[tuple[Any, ...]]:
        for i, call in enumerate(calls):
            yield *_attempt(function, call), i, call


def wait_for(condition: Callable[[], bool], pause: float = 0.01) -> None:
    """A test that waits in vain ends by pytest's own limit, with a traceback."""
    while not condition():
        time.sleep(pause)


def descendants(pid: int) -> list[int]:
    """The processes that a process started and that still are."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            pids.append(int(stat.parent.name))
    return pids


def start(folder: Path, sweep: dict[str, Any]) -> subprocess.Popen[str]:
    """A sweep in a process group of its own, as a terminal starts it."""
    command = [sys.executable, "-m", "landscape", *arguments(folder, sweep)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def in_training(run: SweepRun) -> bool:
    """Whether a run has begun in earnest."""
    if not run.path.exists():
        return False
    with RunReader(run.path) as reader:
        return len(reader.steps) > 15
