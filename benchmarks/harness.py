"""Alternating measurements, medians, environments, and cached results."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from landscape.provenance import provenance

ROOT = Path(__file__).parent.parent
RESULTS, CACHE = ROOT / "benchmarks/results", ROOT / "benchmarks/.cache"
UNRELATED = ("__main__", "page", "accuracy", "gpu")
"""Scripts that no result here depends on."""
MEASURED = ("landscape", "benchmarks/*.py")
"""Files that the times depend on."""
LIBRARIES = ("matplotlib", "PyHessian", "curvlinops-for-pytorch", "hessian-eigenthings", "scipy")
Numbers = dict[str, Any]
PLAIN = "plain torch"
TOOLS = ("landscape", "PyHessian", "curvlinops", "hessian-eigenthings", PLAIN)
"""What is compared."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One measurement: work() returns its numbers. slow: left out of `make bench`."""

    name: str
    work: Callable[[], Numbers]
    slow: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of the page: what was measured, and what it took by tool."""

    what: str
    by: Mapping[str, str]


def alternate(works: Mapping[str, Callable[[], Any]], rounds: int, calls: int = 1) -> dict[str, dict[str, Any]]:
    """Seconds of each work, alternating for `rounds` rounds after a warm-up call: median, fastest and slowest.

    calls: calls in a row per round, as in solvers, so that none pays for what the others left in the caches.
    """
    for work in works.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            seconds[name].append(timed(lambda work=work: [work() for _ in range(calls)])[0] / calls)
    return {name: summary(each) for name, each in seconds.items()}


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call, and what it returned."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def summary(seconds: Sequence[float]) -> dict[str, Any]:
    """Median, fastest, slowest and count."""
    return {
        "median": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "rounds": len(seconds),
    }


def every_core() -> dict[str, str]:
    """Variables of a process that may use every core, which this one may not."""
    return {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a module's function in a separate process. Raises BrokenProcessPool if that is killed."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes.

    Of this program only, whereas resource.getrusage includes the process that started it.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def environment() -> dict[str, Any]:
    """Code, versions and machine, without the hostname."""
    versions = {k: v for k, v in provenance("cpu").items() if k not in ("hostname", "argv", "created")}
    changed = ["git", "-C", str(ROOT), "status", "--porcelain", "--", *MEASURED]
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    cores, memory = len(os.sched_getaffinity(0)), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        **versions,
        # Results, which are written on the way, are no change of the code.
        "git_dirty": int(bool(subprocess.run(changed, capture_output=True, check=True).stdout)),
        **{name: version(name) for name in LIBRARIES},
        "machine": f"{cpu[0].split(':')[1].strip()}, {cores} cores, {memory / 1e9:.0f} GB",
        "threads": torch.get_num_threads(),
    }


def _elsewhere() -> float:
    """CPU seconds, since it was started, that this machine gave to anything but this process and its children."""
    # User, nice, system, irq, softirq, steal: what a hypervisor takes away is work elsewhere, too.
    ticks = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    busy = sum(int(ticks[i]) for i in (0, 1, 2, 5, 6, 7)) / os.sysconf("SC_CLK_TCK")
    return busy - sum(os.times()[:4])


def load(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """The results of a script, {"environments": ..., "parts": ...}; empty ones if there are none."""
    path = folder / f"{name}.json"
    if not path.exists():
        return {"environments": {}, "parts": {}}
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def measure(name: str, parts: Sequence[Part], full: bool, again: bool) -> dict[str, Any]:
    """Run the parts without results from this code and machine, storing each at once; returns all results.

    again: run all parts.
    """
    # One thread for every tool: a second one would wait for a core that another process uses.
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    here = environment()
    code = _code(here)
    place = _digest([here, code])
    for part in parts:
        results = load(name)
        known = results["parts"].get(part.name, {})
        if (part.slow and not full) or (known.get("code") == code and not again):
            continue
        elsewhere = _elsewhere()
        print(f"{name}: {part.name} ...", end=" ", file=sys.stderr, flush=True)
        seconds, numbers = timed(part.work)
        print(f"{seconds:.1f} s", file=sys.stderr)
        results["environments"][place] = here
        results["parts"][part.name] = {
            "environment": place,
            "code": code,
            "elsewhere": round((_elsewhere() - elsewhere) / (seconds * (os.cpu_count() or 1)), 3),
            "seconds_in_all": round(seconds, 1),
            **numbers,
        }
        used = {p["environment"] for p in results["parts"].values()}
        results["environments"] = {k: e for k, e in results["environments"].items() if k in used}
        (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return load(name)


def _code(here: Mapping[str, Any]) -> str:
    """A digest of machine, versions, package and scripts, which share work, and which identifies a result."""
    sources = [path for path in (ROOT / "landscape").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    sources += [path for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in UNRELATED]
    text = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(sources)]
    return _digest([text, {k: v for k, v in here.items() if not k.startswith("git_")}])


def _digest(of: Any) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:12]


def main(name: str, parts: Sequence[Part]) -> int:
    """Command line of one script: measure, and print its results as one JSON document."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--full", action="store_true", help="the slow parts too")
    parser.add_argument(
        "--again", action="store_true", help="repeat parts already measured with this code on this machine"
    )
    args = parser.parse_args()
    print(json.dumps(measure(name, parts, args.full, args.again), indent=1))
    return 0
