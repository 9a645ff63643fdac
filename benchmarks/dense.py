"""The exact dense joint block H_[E,W], in closed form, beside its assembly by the products of any peer."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from benchmarks.harness import PLAIN, Numbers, Part, Row, main, summary, timed
from benchmarks.peers import Case, case, relative
from landscape import TrainConfig, preset

NETS = {
    "quick": preset("quick"),
    "p=97, d=32, h=128": TrainConfig(p=97, tokens=2, embed_dim=32, hidden=128, train_fraction=0.4),
}
BLOCK = ("E", "W")
BATCHES = {"curvlinops": (32, 128), "torch.func": (16, 64, 256)}
"""Numbers of unit vectors that a tool multiplies at once; of these the fastest counts."""
TOOLS = ("PyHessian", "curvlinops", "torch.func")


def closed_form(at: Case) -> Tensor:
    """The block, from the parameters: a structure that was used before keeps what it has assembled."""
    return at.problem.structure(at.params, 0.0).dense(BLOCK)


def assembled(at: Case) -> tuple[Numbers, Tensor]:
    """Seconds of three assemblies, and the last block; memory holds a large one only once."""
    seconds = []
    for _ in range(3):
        elapsed, H = timed(functools.partial(closed_form, at))
        seconds.append(elapsed)
    return summary(seconds), H


def by_pyhessian(at: Case) -> Tensor:
    """The block by products with one unit vector after another, set-up included."""
    product, n = at.pyhessian_product(BLOCK), at.size(BLOCK)
    columns = []
    for j in range(n):
        unit = torch.zeros(n, dtype=at.dtype)
        unit[j] = 1.0
        columns.append(product(unit))
    return torch.stack(columns, 1)


def by_curvlinops(at: Case, batch: int) -> Tensor:
    """The block by products with `batch` unit vectors at once, set-up included."""
    operator, n = at.curvlinops(BLOCK), at.size(BLOCK)
    pieces = []
    for start in range(0, n, batch):
        units = torch.zeros(n, min(batch, n - start), dtype=at.dtype)
        units[start : start + batch].fill_diagonal_(1.0)
        pieces.append(operator @ units)
    return torch.cat(pieces, 1).detach()


def block(name: str) -> Numbers:
    """Seconds of the closed form, and of each peer."""
    return {"net": name, **compared(case(NETS[name]))}


def compared(at: Case) -> Numbers:
    """Every tool's assembly, one after the other in this process."""
    own, H = assembled(at)
    seconds, theirs = timed(functools.partial(by_pyhessian, at))
    return {
        "order": at.size(BLOCK),
        "landscape": own,
        "PyHessian": {"seconds": seconds, "difference": relative(theirs, H)},
        "curvlinops": fastest(functools.partial(by_curvlinops, at), BATCHES["curvlinops"], H),
        "torch.func": fastest(functools.partial(at.torch_hessian, BLOCK), BATCHES["torch.func"], H),
    }


def fastest(work: Callable[[int], Tensor], batches: Sequence[int], H: Tensor) -> Numbers:
    """Seconds with the best number of vectors at once, and with each; the largest difference of any from ours."""
    tried, differences = {}, []
    for batch in batches:
        tried[batch], theirs = timed(functools.partial(work, batch))
        differences.append(relative(theirs, H))
    best = min(batches, key=tried.__getitem__)
    seconds = {str(batch): elapsed for batch, elapsed in tried.items()}
    return {"seconds": tried[best], "difference": max(differences), "batch": best, "tried": seconds}


def parts() -> list[Part]:
    return [Part("quick", functools.partial(block, "quick"), slow=True)]


def rows(results: Mapping[str, Numbers]) -> Iterator[Row]:
    """A row a network."""
    for numbers in results.values():
        seconds = {tool: numbers[tool]["seconds"] for tool in TOOLS} | {"landscape": numbers["landscape"]["median"]}
        largest = max(numbers[tool]["difference"] for tool in TOOLS)
        what = f"the block E,W of {numbers['net']} as a matrix, n = {numbers['order']:,}; all agree to {largest:.0e}"
        yield Row(what, {PLAIN if tool == "torch.func" else tool: f"{s:.3g} s" for tool, s in seconds.items()})


if __name__ == "__main__":
    sys.exit(main("dense", parts()))
