"""Profiles, by operation, of the work that misses its target."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import wholerun
from benchmarks.dense import NETS, closed_form
from benchmarks.eigenvalues import own
from benchmarks.harness import Line, Numbers, Part, main, timed
from benchmarks.index import STEP
from benchmarks.peers import case, trained
from benchmarks.training import plain_loop
from benchmarks.wholerun import searched
from landscape import MatrixOperator, models, preset, saddle_index
from landscape.config import AnalysisConfig
from landscape.models.embedding_mlp.blocks import DEFAULT_BLOCKS
from landscape.training.loop import train_ensemble

ROUNDS, SHOWN, STEPS, MID_STEPS = 5, 7, 1500, 300
TURNING = "How far eigenvectors turn in 30 steps of quick (row 7)"
TRANSITIONS = [(300, 330), (1500, 1530), (2970, 3000)]
GEMMS = {"mm", "bmm", "baddbmm"}
"""Operations whose FLOPs the profiler counts."""


def by_operation(work: Callable[[], Any], rounds: int = ROUNDS) -> Numbers:
    """Median seconds of a call, and each operation's share of the time of a profiled call.

    Profiling slows down many short operations; the shares are of the longer time.
    """
    if rounds > 1:
        work()
    seconds = statistics.median(timed(work)[0] for _ in range(rounds))
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as watched:
        whole = timed(work)[0]
    # The profiler counts in microseconds.
    found = sorted(watched.key_averages(), key=lambda e: -e.self_cpu_time_total)
    names = [e.key.removeprefix("aten::") for e in found]
    return {
        "seconds": seconds,
        "watched": whole,
        "operations": [
            {
                "name": name,
                "calls": e.count,
                "share": e.self_cpu_time_total / 1e6 / whole,
                "gflop_per_second": e.flops / 1e3 / e.self_cpu_time_total if name in GEMMS and e.flops else None,
            }
            for name, e in list(zip(names, found, strict=True))[:SHOWN]
        ],
        "outside": 1 - sum(e.self_cpu_time_total for e in found) / 1e6 / whole,
    }


def product(name: str, columns: int) -> Numbers:
    """Products with the whole Hessian, in float64."""
    at = case(preset(name))
    H, v = at.landscape(), at.probe(columns=columns)
    return by_operation(lambda: H @ v)


def assembly() -> Numbers:
    """The joint block of quick in closed form."""
    return by_operation(functools.partial(closed_form, case(NETS["quick"])))


def index() -> Numbers:
    """The certified inertia of the joint block of quick."""
    H = MatrixOperator(closed_form(case(NETS["quick"], STEP)))
    return by_operation(lambda: saddle_index(H, method="dense"))


def search() -> Numbers:
    """Ten pairs at each end of all parameters of mid."""
    at = case(preset("mid"), STEP)
    return by_operation(lambda: own(at, "all"), rounds=1)


def training(name: str, steps: int, members: int = 1, threads: int = 1, rounds: int = ROUNDS) -> Numbers:
    """Steps with their metrics and checkpoints, of one run or of several seeds side by side."""
    config = dataclasses.replace(preset(name), steps=steps, stop_test_accuracy=None, device="cpu")
    with tempfile.TemporaryDirectory() as folder, on(threads):
        runs = {Path(folder) / f"{seed}.h5": dataclasses.replace(config, seed=seed) for seed in range(members)}
        return by_operation(lambda: train_ensemble(runs, overwrite=True, quiet=True), rounds)


def plain(name: str, steps: int, threads: int) -> Numbers:
    """Steps of the loop that a user of PyTorch writes."""
    config = dataclasses.replace(preset(name), steps=steps)
    with on(threads):
        return by_operation(lambda: plain_loop(config, fused=False))


@contextmanager
def on(threads: int) -> Iterator[None]:
    """Context with this number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def turning() -> Numbers:
    """Quick, 30 steps on: how much of each block's end vectors the old ones span, and products from these or cold."""
    config = AnalysisConfig(method="lanczos", blocks=DEFAULT_BLOCKS, device="cpu")
    found: dict[str, Numbers] = {}
    with trained(preset("quick"), wholerun.STEPS) as reader:
        problem = models.of_run(reader, config.device)
        for first, step in TRANSITIONS:
            old = searched(problem, config, reader.checkpoint(first), {})[1]
            cold, new = searched(problem, config, reader.checkpoint(step), {})
            warm = searched(problem, config, reader.checkpoint(step), old)[0]
            for block in config.blocks:
                spanned = (old[block].mT @ new[block]).square().sum((1, 2)) / config.k
                row = found.setdefault(block, {"lowest": [], "highest": [], "cold": 0, "warm": 0})
                for end, share in zip(("lowest", "highest"), spanned.tolist(), strict=True):
                    row[end].append(share)
                row["cold"] += cold["products_by_block"][block]
                row["warm"] += warm["products_by_block"][block]
    return {"turning": found, "transitions": TRANSITIONS}


def parts() -> list[Part]:
    works: dict[str, Callable[[], Numbers]] = {
        "one product, quick, float64 (row 1)": functools.partial(product, "quick", 1),
        "16 products at once, mid, float64 (row 2)": functools.partial(product, "mid", 16),
        "H_[E,W] of quick (row 3)": assembly,
        "saddle index of H_[E,W], quick (row 4)": index,
        "ten pairs at each end of all, mid (row 5)": search,
        TURNING: turning,
        f"training quick for {STEPS:,} steps (row 8)": functools.partial(training, "quick", STEPS),
        **{
            f"{what} mid for {MID_STEPS} steps on {threads} thread{'s' * (threads > 1)} (row 8)": functools.partial(
                loop, "mid", MID_STEPS, threads=threads
            )
            for threads in (1, 2)
            for what, loop in (("training", training), ("the plain loop, training", plain))
        },
        f"training a group of 4 seeds of quick for {STEPS:,} steps (row 9)": functools.partial(
            training, "quick", STEPS, members=4
        ),
    }
    return [Part(name, work, slow=True) for name, work in works.items()]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """No lines: a profile has no target."""
    yield from ()


def section(found: Mapping[str, Numbers]) -> str:
    """The findings, a table of all profiles, and a table of warm starts."""
    rows = ["| work | seconds | operation | calls | share | GFLOP/s |", "|---|---|---|---|---|---|"]
    for part, numbers in found.items():
        if part == TURNING:
            continue
        what, seconds = part, f"{numbers['seconds']:.3g}"
        for operation in numbers["operations"]:
            rate = operation["gflop_per_second"]
            rows.append(
                f"| {what} | {seconds} | `{operation['name']}` | {operation['calls']:,} | {operation['share']:.0%} "
                f"| {f'{rate:.0f}' if rate else ''} |"
            )
            what = seconds = ""
        rows.append(f"| | | Python, and torch between operations | | {max(0.0, numbers['outside']):.0%} | |")
    return "\n\n".join([FINDINGS, "\n".join(rows), *([turned(found[TURNING])] if TURNING in found else [])])


def turned(numbers: Numbers) -> str:
    """The table of `turning`."""
    steps = ", ".join(f"{first:,} to {step:,}" for first, step in numbers["transitions"])
    rows = [
        f"{TURNING}: steps {steps}. Shares are of the ten new eigenvectors' squared length that the ten old ones span.",
        "",
        "| block | lowest | highest | products cold | warm |",
        "|---|---|---|---|---|",
    ]
    for block, row in numbers["turning"].items():
        low, high = (", ".join(f"{share:.0%}" for share in row[end]) for end in ("lowest", "highest"))
        rows.append(f"| {block} | {low} | {high} | {row['cold']:,} | {row['warm']:,} |")
    return "\n".join(rows)


FINDINGS = """\
* **Rows 1 and 2**: a product is a few large matrix products, a few passes over arrays of samples by hidden units, and
  overhead, which matters for the small preset. Sixteen vectors share only the reading of the point's arrays: where one
  vector fills the cache, a CPU takes them one by one, and sixteen cost sixteen times one.
* **Row 3**: more than half is matrix products, as small as the number of samples of a token; the rest is writing the
  pages of the result, filling both triangles and symmetrising to the last bit.
* **Row 4**: the index takes one factorisation, the zero and positive counts a second, each a fifth of `eigvalsh`. The
  rest is the estimate of ‖H‖ for the tolerance, the certificate's products and solves with probes, and copies of the
  matrix.
* **Row 5**: half of a search in all of mid is products, a quarter is orthogonalisation (tall matrices, bound by
  memory). Most products go to the low ends, which are clusters (at 0 for W, at -σ_max(G) and below for all), others to
  the search for copies that were missed, which no other tool makes.
* **Row 7**: the table below shows how little of the new eigenvectors the old ones span at the low ends, 30 steps later;
  ten pairs to a residual of 1e-6 take nearly as many products warm as cold. At the low end of E,W both begin in the
  cluster that theory gives.
* **Row 8**: a step of quick is three small matrix products and many short operations, whose launches cost as much
  again. The plain loop has neither metrics nor files. A run's file is created and trimmed once, at a fixed cost that
  matters in a run of seconds. A second thread speeds up matrix products, about half of the plain loop of mid and a
  fifth of ours; most of the rest is launching short operations.
* **Row 9**: sixteen seeds are trained in groups of four, each in a thread on one core: operations are launched once for
  four seeds, and none is divided among cores. Larger groups would hardly be faster.
* **Storage**: a checkpoint is read once by the kernel, once for its checksum and once to check that it is finite;
  `fromfile` stops after the first."""


if __name__ == "__main__":
    sys.exit(main("profiles", parts()))
