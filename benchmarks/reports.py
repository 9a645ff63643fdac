"""A report by what draws it: the profile of the row of `landscape report`."""

from __future__ import annotations

import os
import pstats
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import landscape
from benchmarks.commands import demo
from benchmarks.harness import Line, Numbers, Part, main

OURS, STANDARD, BUILT_IN = "landscape", "Python's own modules", "~"
SHOWN = 4


def by_library() -> Numbers:
    """CPU seconds of the demo's report on one core, and what each library takes of them, by cProfile.

    Built-in functions count for the library that calls them. Profiling slows down short functions.
    """
    with tempfile.TemporaryDirectory() as folder:
        profile, page = Path(folder) / "profile", Path(folder) / "page"
        run = Path(demo()[0].name) / "landscape-demo/demo.h5"
        program = ["-m", "landscape", "report", str(run), "--out", str(page), "--quiet"]
        command = [sys.executable, "-m", "cProfile", "-o", str(profile), *program]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, {0}))
        stats = pstats.Stats(str(profile)).stats  # type: ignore[attr-defined]
    seconds: Counter[str] = Counter()
    for (file, *_), (_, _, own, _, callers) in stats.items():
        if file == BUILT_IN:
            for (caller, *_), (_, _, share, _) in callers.items():
                seconds[_library(caller)] += share
        else:
            seconds[_library(file)] += own
    return {"seconds": seconds.total(), "libraries": dict(seconds.most_common())}


def _library(file: str) -> str:
    """The package that a file belongs to."""
    _, installed, inside = file.rpartition("site-packages/")
    if installed:
        return inside.partition("/")[0]
    return OURS if file.startswith(str(Path(landscape.__file__).parent)) else STANDARD


def parts() -> list[Part]:
    return [Part("report", by_library, slow=True)]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """No lines: a profile has no target."""
    yield from ()


def limit(found: Mapping[str, Numbers], part: str) -> str:
    """Whose time a report is: a line below its row of `commands`."""
    seconds, libraries = found[part]["seconds"], found[part]["libraries"]
    shares = [(name, taken) for name, taken in libraries.items() if name != OURS][:SHOWN]
    told = ", ".join(f"{name} {taken / seconds:.0%}" for name, taken in [*shares, (OURS, libraries[OURS])])
    return f"limit, in one process under a profiler: {told} of {seconds:.3g} CPU seconds"


if __name__ == "__main__":
    sys.exit(main("reports", parts()))
