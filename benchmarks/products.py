"""Hessian-vector products beside PyHessian, curvlinops and the matrix products alone."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping

import torch

from benchmarks.counts import Shape
from benchmarks.harness import Numbers, Part, Row, alternate, main
from benchmarks.peers import case, relative
from landscape import preset

PRESETS, DTYPES = ("quick", "mid", "paper"), ("float32", "float64")
ROUNDS, CALLS = {"quick": 15, "mid": 11, "paper": 9}, {"quick": 12, "mid": 4, "paper": 1}
"""Rounds of a product, and calls in a row in each."""
TOOLS = ("landscape", "PyHessian", "curvlinops")
ALONE = "GEMMs alone"


def gemms_alone(shape: Shape, dtype: torch.dtype) -> Callable[[], None]:
    """The matrix products of one Hessian-vector product alone, into allocated memory."""
    work = []
    for rows, inner, columns, times in shape.gemms():
        a, b = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, columns, dtype=dtype)
        work.append((a, b, a.new_empty(rows, columns), times))

    def run() -> None:
        for a, b, out, times in work:
            for _ in range(times):
                torch.mm(a, b, out=out)

    return run


def product(name: str, dtype: str) -> Numbers:
    """Seconds of one product with the whole Hessian, full training set, by each tool."""
    exact = case(preset(name))
    at = dataclasses.replace(exact, dtype=getattr(torch, dtype))
    errors = exact.check()
    H, pyhessian, curvlinops = at.landscape(), at.pyhessian_product(), at.curvlinops()
    v = at.probe()[:, 0]
    truth = exact.landscape() @ v.double()
    works = {
        "landscape": lambda: H @ v,
        "PyHessian": lambda: pyhessian(v),
        "curvlinops": lambda: curvlinops @ v,
        ALONE: gemms_alone(at.shape, at.dtype),
    }
    return {
        "preset": name,
        "dtype": dtype,
        "shape": dataclasses.asdict(at.shape),
        "parameters": at.size(),
        "flops": at.shape.flops(),
        "seconds": alternate(works, ROUNDS[name], CALLS[name]),
        "difference_in_float64": errors,
        "error": {tool: relative(works[tool](), truth) for tool in TOOLS},
    }


def parts() -> list[Part]:
    works = {(name, dtype): functools.partial(product, name, dtype) for name in PRESETS for dtype in DTYPES}
    return [Part(f"{n} {d}", work, slow=(n, d) != ("quick", "float64")) for (n, d), work in works.items()]


def rows(results: Mapping[str, Numbers]) -> Iterator[Row]:
    """A row a network: milliseconds in each precision."""
    for name in PRESETS:
        both = [results[part]["seconds"] for dtype in DTYPES if (part := f"{name} {dtype}") in results]
        if both:
            times = {tool: ", ".join(f"{1e3 * each[tool]['median']:.3g}" for each in both) for tool in (*TOOLS, ALONE)}
            what = f"one product, {name}, {', '.join(DTYPES)}; its matrix products alone take {times.pop(ALONE)} ms"
            yield Row(what, {tool: f"{time} ms" for tool, time in times.items()})


if __name__ == "__main__":
    sys.exit(main("products", parts()))
