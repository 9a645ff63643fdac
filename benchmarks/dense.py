"""The exact dense joint block H_[E,W], in closed form, beside its assembly by the products of any peer."""

from __future__ import annotations

import functools
import resource
import sys
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from benchmarks.harness import Line, Numbers, Part, apart, main, summary, timed
from benchmarks.peers import Case, case, relative
from landscape import TrainConfig, preset
from landscape.devices import free_memory

NETS = {
    "quick": preset("quick"),
    "p=97, d=32, h=128": TrainConfig(p=97, tokens=2, embed_dim=32, hidden=128, train_fraction=0.4),
}
BLOCK = ("E", "W")
BATCH = 32
TARGET, AGREEMENT = 50.0, 1e-12


def closed_form(at: Case) -> Tensor:
    """The block, from the parameters: a structure that was used before keeps what it has assembled."""
    return at.problem.structure(at.params, 0.0).dense(BLOCK)


def assembled(at: Case) -> tuple[Numbers, Tensor]:
    """Seconds of three assemblies, and the last block; memory holds a large one only once."""
    seconds = []
    for _ in range(3):
        taken, H = timed(functools.partial(closed_form, at))
        seconds.append(taken)
    return summary(seconds), H


def products(at: Case, tool: str) -> Tensor:
    """The block by a peer's products with unit vectors, set-up included."""
    n = at.size(BLOCK)
    if tool == "PyHessian":
        product = at.pyhessian_product(BLOCK)
        columns = []
        for j in range(n):
            unit = torch.zeros(n, dtype=at.dtype)
            unit[j] = 1.0
            columns.append(product(unit))
        return torch.stack(columns, 1)
    operator = at.curvlinops(BLOCK)
    pieces = []
    for start in range(0, n, BATCH):
        units = torch.zeros(n, min(BATCH, n - start), dtype=at.dtype)
        units[start : start + BATCH].fill_diagonal_(1.0)
        pieces.append(operator @ units)
    return torch.cat(pieces, 1).detach()


def block(name: str) -> Numbers:
    """Seconds of the closed form and of peers' products with every unit vector."""
    at = case(NETS[name])
    own, H = assembled(at)
    numbers: Numbers = {"net": name, "order": at.size(BLOCK), "landscape": own}
    for tool in ("PyHessian", "curvlinops"):
        seconds, found = timed(functools.partial(products, at, tool))
        numbers[tool] = {"seconds": seconds, "difference": relative(found, H)}
    return numbers


def by_torch(name: str) -> Numbers:
    """torch.func.hessian, in a separate process that may use all free memory."""
    return {"net": name, "order": case(NETS[name]).size(BLOCK), **apart(_torch_hessian, name)}


def _torch_hessian(name: str) -> Numbers:
    torch.set_num_threads(1)
    at = case(NETS[name])
    own, H = assembled(at)
    limit = free_memory(torch.device("cpu")) * 9 // 10
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    numbers: Numbers = {"landscape": own}
    try:
        seconds, found = timed(functools.partial(at.torch_hessian, BLOCK))
    except (MemoryError, RuntimeError) as problem:
        if isinstance(problem, RuntimeError) and "allocate memory" not in str(problem):
            raise
        return {**numbers, "out_of_memory_GB": limit / 1e9}
    return {**numbers, "seconds": seconds, "difference": relative(found, H)}


def parts() -> list[Part]:
    by_products = Part("quick, products", functools.partial(block, "quick"), slow=True)
    return [
        by_products,
        *(Part(f"{name}, torch.func.hessian", functools.partial(by_torch, name), slow=True) for name in NETS),
    ]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """Row 3."""
    for part, numbers in found.items():
        own = numbers["landscape"]["median"]
        what = f"H_[E,W] of {numbers['net']}, n = {numbers['order']:,}"
        target = f"≥ {TARGET:g}×, agreement ≤ {AGREEMENT:.0e}"
        if "out_of_memory_GB" in numbers:
            told = f"{own:.2f} s; out of memory at {numbers['out_of_memory_GB']:.1f} GB"
            yield Line("3", f"{what}, torch.func.hessian", target, told, None, part)
        elif "seconds" in numbers:
            yield _line(f"{what}, torch.func.hessian", target, own, numbers, part)
        else:
            for tool in ("PyHessian", "curvlinops"):
                yield _line(f"{what}, products with {tool}", target, own, numbers[tool], part)


def _line(what: str, target: str, own: float, peer: Numbers, part: str) -> Line:
    ratio = peer["seconds"] / own
    told = f"{ratio:.0f}× ({own:.2f} s against {peer['seconds']:.3g} s); agreement {peer['difference']:.0e}"
    return Line("3", what, target, told, ratio >= TARGET and peer["difference"] <= AGREEMENT, part)


if __name__ == "__main__":
    sys.exit(main("dense", parts()))
