"""Write docs/performance.md and its figures from the JSON of the benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import (
    checkpoints,
    commands,
    dense,
    eigenvalues,
    figures,
    growth,
    index,
    products,
    profiles,
    reports,
    startup,
    storage,
    training,
    wholerun,
)
from benchmarks.harness import RESULTS, ROOT, Line, load

DOCS = ROOT / "docs"
SCRIPTS: dict[str, ModuleType] = {
    "commands": commands,
    "products": products,
    "dense": dense,
    "index": index,
    "eigenvalues": eigenvalues,
    "wholerun": wholerun,
    "training": training,
    "startup": startup,
    "storage": storage,
    "growth": growth,
    "profiles": profiles,
    "checkpoints": checkpoints,
    "reports": reports,
}
PROFILES = {"checkpoints": checkpoints, "reports": reports}
"""Profiles of what a user waits for."""
ELSEWHERE = ("gpu",)
"""Results of other programs: {"environments": {key: one environment}, "lines": [fields of Line]}."""
BUSY = 0.05
"""Share of the machine's time that other programs may take during a part on a quiet machine."""
BUSY_BEFORE = 1.5
"""In results without that share: load at the start above which the machine counts as busy."""
MARKS = {True: "✓ met", False: "✗ not met", None: "–"}
INTRODUCTION = (Path(__file__).parent / "introduction.md").read_text(encoding="utf-8")
PLAN = (Path(__file__).parent / "plan.md").read_text(encoding="utf-8")


def write(docs: Path, results: Path = RESULTS) -> None:
    """Write performance.md, and its figures in performance/, into a folder."""
    found = {name: load(name, results) for name in (*SCRIPTS, *ELSEWHERE)}
    for name, script in SCRIPTS.items():
        measured = found[name]["parts"]
        found[name]["parts"] = {p.name: measured[p.name] for p in script.parts() if p.name in measured}
    lines = {
        name: sorted(script.lines(found[name]["parts"]), key=lambda line: line.row) for name, script in SCRIPTS.items()
    }
    lines |= {name: [Line(**line) for line in found[name].get("lines", [])] for name in ELSEWHERE}
    places = list({key: None for f in found.values() for key in f["environments"]})
    numbered = {key: i for i, key in enumerate(places, start=1)}
    where = {(name, part): numbered[p["environment"]] for name in SCRIPTS for part, p in found[name]["parts"].items()}
    for name in ELSEWHERE:
        where |= dict.fromkeys(
            ((name, line.part) for line in lines[name]), *map(numbered.get, found[name]["environments"])
        )
    busy = {(name, part) for name in SCRIPTS for part, p in found[name]["parts"].items() if _was_busy(part, p)}
    drawn = figures.draw({name: found[name]["parts"] for name in SCRIPTS}, docs / "performance")

    targets = [
        (line, f"{where[name, line.part]}{', busy' * ((name, line.part) in busy)}")
        for name in _ordered(lines)
        for line in lines[name]
    ]
    rows = ["| row | what | target | found | | run |", "|---|---|---|---|---|---|"]
    rows += [
        f"| {line.row} | {line.what} | {line.target} | {line.found} | {MARKS[line.met]} | {at} |"
        for line, at in targets
        if line.row not in ("growth", "waits") and (not line.met or line.what.startswith("GPU"))
    ]
    waits = ["| what a user waits for | target | found | | run |", "|---|---|---|---|---|"]
    for line, at in targets:
        if line.row == "waits":
            waits.append(f"| {line.what} | {line.target} | {line.found} | {MARKS[line.met]} | {at} |")
            for name, script in PROFILES.items() if line.met is False else ():
                if (name, line.part) in where:
                    limit, at = script.limit(found[name]["parts"], line.part), where[name, line.part]
                    waits.append(f"| {limit} | | | | {at} |")
    slopes = ["| what | counted | measured | run |", "|---|---|---|---|"]
    slopes += [f"| {line.what} | {line.target} | {line.found} | {at} |" for line, at in targets if line.row == "growth"]
    pictures = {name: f"![{caption}](performance/{name}.png)\n\n{caption}" for name, caption in drawn.items()}
    text = "\n\n".join(
        [
            TITLE,
            "\n".join(waits),
            _otherwise(found["eigenvalues"]["parts"]),
            INTRODUCTION.strip(),
            _met([line for line, _ in targets if line.row not in ("growth", "waits") and line.met is not None]),
            _missing(found, lines),
            "\n".join(rows),
            *(pictures[name] for name in ("products", "eigenvalues") if name in pictures),
            "## Where the time goes",
            profiles.section(found["profiles"]["parts"]),
            *filter(None, [checkpoints.section(found["checkpoints"]["parts"])]),
            "## Growth",
            GROWTH,
            "\n".join(slopes),
            *(pictures[name] for name in ("growth",) if name in pictures),
            PLAN.strip(),
            "## Runs",
            _environments(found, numbered),
            "Made from benchmarks/results/ by `python -m benchmarks.page`.\n",
        ]
    )
    (docs / "performance.md").write_text(text, encoding="utf-8")


TITLE = """# Performance: time and memory

Whole commands on every core, from the start of the process to its end: seconds and CPU seconds, divided by the number
of checkpoints where a row is of one, and the largest memory of the process and its workers. CPU seconds over the number
of cores are the least that a row can take there; the machines below have two."""


def _otherwise(searches: Mapping[str, Any]) -> str:
    """What the other tools take for a part of it in mid, added up over its blocks."""
    blocks, found = [p for p in searches.values() if p["preset"] == "mid"], []
    for tool in ("landscape", "curvlinops", "hessian-eigenthings") if blocks else ():
        seconds, pairs, wanted = (sum(p[tool][key] for p in blocks) for key in ("seconds", "pairs", "wanted"))
        found.append(f"{tool} takes {seconds:.0f} s and finds {pairs} of {wanted}")
    return (
        "Otherwise: no other tool has saddle indices or coupling ratios. Of ten eigenvalues at each end of mid's E,W "
        f"and of all its parameters, to a residual of 1e-6, {'; '.join(found)}, within the limits given below (row 5)."
    )


def _met(compared: Sequence[Line]) -> str:
    """How many comparisons meet their target and leave the table, by row; a GPU's have no figure and stay."""
    met = [line.row for line in compared if line.met]
    by_row = ", ".join(f"{met.count(row)} of {'row ' * row.isdigit()}{row}" for row in dict.fromkeys(met))
    return (
        f"{len(met)} of {len(compared)} comparisons with a target meet it, {by_row}, and are left out of the table. "
        "The figures below it show all products and searches; benchmarks/results/ has every number."
    )


GROWTH = (
    "Log-log slopes of measurements against one size, with the others as in preset mid, beside the slopes of counts at "
    "the same points: FLOPs of the matrix products, bytes of bases and kept arrays, checkpoints, eigenvalues. A large "
    "constant part makes the measured slope smaller."
)


def _ordered(lines: Mapping[str, list[Line]]) -> list[str]:
    """Scripts by the number of their first row; those without one last."""
    first = {name: found[0].row for name, found in lines.items() if found}
    return sorted(first, key=lambda name: int(first[name]) if first[name].isdigit() else 99)


def _was_busy(part: str, p: Mapping[str, Any]) -> bool:
    """Whether other programs took time while this was timed.

    Memory does not depend on them, and what tests kill leaves processes whose time is like that of others.
    """
    return not part.startswith(("memory", "test", "ci")) and bool(
        p["elsewhere"] > BUSY if "elsewhere" in p else p["load_before"] > BUSY_BEFORE
    )


def _missing(found: Mapping[str, Any], lines: Mapping[str, list[Line]]) -> str:
    """What was not measured, or not on a quiet machine."""
    gaps = []
    marks = {name: [_was_busy(part, p) for part, p in found[name]["parts"].items()] for name in SCRIPTS}
    shared = {name: f"{sum(busy)} of {len(busy)} in {name}" for name, busy in marks.items() if any(busy)}
    if shared:
        gaps.append(
            f"**The machine was busy** during these parts: {', '.join(shared.values())}. Other programs took more than "
            f"{100 * BUSY:.0f} % of its time, or, where that was not measured yet, its load exceeded {BUSY_BEFORE} at "
            "the start: their times are those of a shared machine. Their rows say `busy` beside the run."
        )
    if not any(line.what.startswith("GPU") for line in lines["gpu"]):
        gaps.append("**No row was run on a GPU:** `python benchmarks/gpu.py` measures rows 1, 2, 5 and 7 there.")
    names = {
        name: [part.name for part in script.parts() if part.name not in found[name]["parts"]]
        for name, script in SCRIPTS.items()
    }
    missing = [f"{name} ({'; '.join(left)})" for name, left in names.items() if left]
    if missing:
        gaps.append(f"**Not measured, because `make bench` skips them:** {', '.join(missing)}.")
    return "\n\n".join(gaps)


def _environments(found: Mapping[str, Any], numbered: Mapping[str, int]) -> str:
    """One line per machine and code."""
    lines = ["| run | code | machine | versions |", "|---|---|---|---|"]
    for key, number in numbered.items():
        e = next(f["environments"][key] for f in found.values() if key in f["environments"])
        dirty = " with changes" if e.get("git_dirty") else ""
        versions = ", ".join(f"{k.removesuffix('_version')} {e[k]}" for k in VERSIONS if k in e)
        lines.append(f"| {number} | {e['git_commit'][:10]}{dirty} | {e['machine']} | {versions} |")
    return "\n".join(lines)


VERSIONS = (
    "python_version",
    "torch_version",
    "numpy_version",
    "scipy",
    "PyHessian",
    "curvlinops-for-pytorch",
    "hessian-eigenthings",
)


def main() -> int:
    """Write the page anew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of performance.md")
    write(parser.parse_args().out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
