"""Where the time goes in the work that misses its target, operation by operation."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.dense import NETS, closed_form
from benchmarks.harness import Line, Numbers, Part, main, timed
from benchmarks.index import STEP
from benchmarks.peers import case
from landscape import MatrixOperator, preset, saddle_index
from landscape.training.trainer import train

ROUNDS, SHOWN, STEPS = 5, 7, 1500


def by_operation(work: Callable[[], Any]) -> Numbers:
    """Median seconds of a call, and each operation's own share of the time of a call that is watched.

    Watching lengthens what consists of many short operations; the shares are of the longer time.
    """
    work()
    seconds = statistics.median(timed(work)[0] for _ in range(ROUNDS))
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as watched:
        whole = timed(work)[0]
    # The profiler counts in microseconds.
    found = sorted(watched.key_averages(), key=lambda e: -e.self_cpu_time_total)
    return {
        "seconds": seconds,
        "watched": whole,
        "operations": [
            {
                "name": e.key.removeprefix("aten::"),
                "calls": e.count,
                "share": e.self_cpu_time_total / 1e6 / whole,
                "gflop_per_second": e.flops / 1e3 / e.self_cpu_time_total if e.flops else None,
            }
            for e in found[:SHOWN]
        ],
        "outside": 1 - sum(e.self_cpu_time_total for e in found) / 1e6 / whole,
    }


def product(name: str, columns: int) -> Numbers:
    """Products with the whole Hessian, in float64."""
    at = case(preset(name))
    H, v = at.landscape(), at.probe(columns=columns)
    return by_operation(lambda: H @ v)


def assembly(name: str) -> Numbers:
    """The joint block in closed form."""
    return by_operation(closed_form(case(NETS[name])))


def index() -> Numbers:
    """The certified inertia of the joint block of quick."""
    H = MatrixOperator(closed_form(case(NETS["quick"], STEP))())
    return by_operation(lambda: saddle_index(H, method="dense"))


def training() -> Numbers:
    """Steps of quick with their metrics and checkpoints."""
    config = dataclasses.replace(preset("quick"), steps=STEPS, stop_test_accuracy=None, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        return by_operation(lambda: train(config, path, overwrite=True, quiet=True))


def parts() -> list[Part]:
    works: dict[str, Callable[[], Numbers]] = {
        "one product, quick, float64 (row 1)": functools.partial(product, "quick", 1),
        "16 products at once, mid, float64 (row 2)": functools.partial(product, "mid", 16),
        "H_[E,W] of quick (row 3)": functools.partial(assembly, "quick"),
        "H_[E,W] of p=97, d=32, h=128 (row 3)": functools.partial(assembly, "p=97, d=32, h=128"),
        "saddle index of H_[E,W], quick (row 4)": index,
        f"training quick for {STEPS:,} steps (row 8)": training,
    }
    return [Part(name, work) for name, work in works.items()]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """None: a profile has no target."""
    yield from ()


def section(found: Mapping[str, Numbers]) -> str:
    """One table of all profiles."""
    rows = ["| work | seconds | operation | calls | share | GFLOP/s |", "|---|---|---|---|---|---|"]
    for part, numbers in found.items():
        what, seconds = part, f"{numbers['seconds']:.3g}"
        for operation in numbers["operations"]:
            rate = operation["gflop_per_second"]
            rows.append(
                f"| {what} | {seconds} | `{operation['name']}` | {operation['calls']:,} | {operation['share']:.0%} "
                f"| {'' if rate is None else f'{rate:.0f}'} |"
            )
            what = seconds = ""
        rows.append(f"| | | Python, and torch between operations | | {max(0.0, numbers['outside']):.0%} | |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main("profiles", parts()))
