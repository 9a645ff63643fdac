"""Write docs/performance.md from the JSON of the benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import commands, dense, eigenvalues, index, products, training
from benchmarks.harness import RESULTS, ROOT, Line, load

DOCS = ROOT / "docs"
SCRIPTS: dict[str, ModuleType] = {
    "commands": commands,
    "products": products,
    "dense": dense,
    "index": index,
    "eigenvalues": eigenvalues,
    "training": training,
}
GPU = "gpu"
"""Results of benchmarks/gpu.py: {"environments": {key: one environment}, "lines": [fields of Line]}."""
BUSY = 0.05
"""Share of the machine's time that other programs may take during a part on a quiet machine."""
MARKS = {True: "✓ met", False: "✗ not met", None: "–"}
VERSIONS = (
    "python_version", "torch_version", "numpy_version", "scipy", "PyHessian", "curvlinops-for-pytorch",
    "hessian-eigenthings",
)  # fmt: skip


def write(docs: Path, results: Path = RESULTS) -> None:
    """Write performance.md into a folder."""
    files = {name: load(name, results) for name in (*SCRIPTS, GPU)}
    places = list(dict.fromkeys(key for one in files.values() for key in one["environments"]))
    tables = {"waits": [WAITS], "compared": [COMPARED]}
    for name, script in SCRIPTS.items():
        parts = {p.name: files[name]["parts"][p.name] for p in script.parts() if p.name in files[name]["parts"]}
        for line in sorted(script.lines(parts), key=lambda line: line.row):
            at = 1 + places.index(parts[line.part]["environment"])
            busy = ", busy" * (parts[line.part].get("elsewhere", 0) > BUSY and line.part not in ("test", "ci"))
            tables["waits" if line.row == "waits" else "compared"].append(_row(line, f"{at}{busy}"))
    for fields in files[GPU].get("lines", []):
        at = 1 + places.index(next(iter(files[GPU]["environments"])))
        tables["compared"].append(_row(Line(**fields), str(at)))
    template = (Path(__file__).parent / "performance.md").read_text(encoding="utf-8")
    gpu = (
        ""
        if files[GPU].get("lines")
        else "**No row was run on a GPU:** `python benchmarks/gpu.py` measures some there."
    )
    text = template.format(
        waits="\n".join(tables["waits"]),
        compared="\n".join(tables["compared"]),
        gpu=gpu,
        busy=f"{BUSY:.0%}",
        runs=_environments(files, places),
    )
    (docs / "performance.md").write_text(text, encoding="utf-8")


WAITS = "| what a user waits for | target | measured | | run |\n|---|---|---|---|---|"
COMPARED = "| what is compared | target | measured | | run |\n|---|---|---|---|---|"


def _row(line: Line, at: str) -> str:
    return f"| {line.what} | {line.target} | {line.result} | {MARKS[line.met]} | {at} |"


def _environments(files: Mapping[str, Any], places: list[str]) -> str:
    """One line per machine and code."""
    lines = ["| run | code | machine | versions |", "|---|---|---|---|"]
    for number, key in enumerate(places, start=1):
        e = next(f["environments"][key] for f in files.values() if key in f["environments"])
        dirty = " with changes" if e.get("git_dirty") else ""
        versions = ", ".join(f"{k.removesuffix('_version')} {e[k]}" for k in VERSIONS if k in e)
        lines.append(f"| {number} | {e['git_commit'][:10]}{dirty} | {e['machine']} | {versions} |")
    return "\n".join(lines)


def main() -> int:
    """Write the page anew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of performance.md")
    write(parser.parse_args().out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
