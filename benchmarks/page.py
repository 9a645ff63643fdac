"""Write docs/performance.md from the JSON of the benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import answer, commands, dense, eigenvalues, index, models, products, training
from benchmarks.harness import RESULTS, ROOT, TOOLS, load

DOCS = ROOT / "docs"
SCRIPTS: dict[str, ModuleType] = {
    "commands": commands,
    "answer": answer,
    "products": products,
    "models": models,
    "dense": dense,
    "index": index,
    "eigenvalues": eigenvalues,
    "training": training,
}
GPU = "gpu"
"""Results of benchmarks/gpu.py: {"environments": {key: one environment}, "lines": [{"what": , "result": }]}."""
BUSY = 0.05
"""Share of the machine's time that other programs may take during a part on a quiet machine."""
VERSIONS = (
    "python_version", "torch_version", "numpy_version", "scipy", "PyHessian", "curvlinops-for-pytorch",
    "hessian-eigenthings",
)  # fmt: skip
COMPARED = ("answer", "products", "models", "dense", "index", "eigenvalues", "training")
"""What is compared with other tools, in the order of the page."""


def write(docs: Path, results: Path = RESULTS) -> None:
    """Write performance.md into a folder."""
    files = {name: load(name, results) for name in (*SCRIPTS, GPU)}
    parts = {name: files[name]["parts"] for name in SCRIPTS}
    costs, waits = commands.costs(parts["commands"]), commands.waits(parts["commands"])
    asked = [f"`{options}`" if options else "by default" for options in commands.ASKED]
    compared = (row for name in COMPARED for row in SCRIPTS[name].rows(parts[name]))
    on_gpu = [[line["what"], line["result"]] for line in files[GPU].get("lines", [])]
    busy = [part for each in parts.values() for part, numbers in each.items() if numbers["elsewhere"] > BUSY]
    template = (Path(__file__).parent / "performance.md").read_text(encoding="utf-8")
    text = template.format(
        costs=_table(["network", "parameters", *asked], costs),
        waits=_table(["command", "takes"], waits),
        factorisation=f"{parts['commands'].get('machine', {}).get('cpu', float('nan')):.2g}",
        compared=_table(["", *TOOLS], ([row.what, *(row.by.get(tool, "") for tool in TOOLS)] for row in compared)),
        gpu=_table(["on a GPU", "result"], on_gpu) if on_gpu else "Nothing was measured on a GPU.",
        busy=f" Other programs took more than {BUSY:.0%} of the machine during: {', '.join(busy)}." if busy else "",
        runs=_table(["measured", "code", "machine", "versions"], _environments(files)),
    )
    (docs / "performance.md").write_text(text, encoding="utf-8")
    commands.draw_costs(parts["commands"], docs / "static/costs.svg")


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _environments(files: Mapping[str, Any]) -> Iterator[list[str]]:
    """A row for each code on each machine."""
    keys = dict.fromkeys(key for each in files.values() for key in each["environments"])
    for key in keys:
        names = [name for name, each in files.items() if key in each["environments"]]
        e = files[names[0]]["environments"][key]
        dirty = " with changes" if e.get("git_dirty") else ""
        versions = ", ".join(f"{k.removesuffix('_version')} {e[k]}" for k in VERSIONS if k in e)
        yield [", ".join(names), f"{e['git_commit'][:10]}{dirty}", e["machine"], versions]


def main() -> int:
    """Write the page anew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of performance.md")
    write(parser.parse_args().out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
