"""Hessian-vector products: one and sixteen at once, beside PyHessian, curvlinops and the matrix products alone."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping

import torch

from benchmarks.counts import Shape
from benchmarks.harness import Line, Numbers, Part, alternate, main
from benchmarks.peers import case, relative
from landscape import preset

PRESETS, DTYPES = ("quick", "mid", "paper"), ("float32", "float64")
ROUNDS, CALLS = {"quick": 15, "mid": 11, "paper": 9}, {"quick": 12, "mid": 4, "paper": 1}
"""Rounds of a product, and calls in a row in each; one call of sixteen at once."""
MANY = 16
TARGETS = {"PyHessian": 2.0, "curvlinops": 3.0}
LIMIT, TOGETHER = 2.0, 1.3


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
    """Seconds of one product with the whole Hessian, full training set, by each tool, and of sixteen by ours."""
    exact = case(preset(name))
    at = dataclasses.replace(exact, dtype=getattr(torch, dtype))
    errors = exact.check()
    H, pyhessian, curvlinops = at.landscape(), at.pyhessian_product(), at.curvlinops()
    v, many = at.probe()[:, 0], at.probe(columns=MANY)
    truth = exact.landscape() @ v.double()
    works = {
        "landscape": lambda: H @ v,
        "PyHessian": lambda: pyhessian(v),
        "curvlinops": lambda: curvlinops @ v,
        "GEMMs alone": gemms_alone(at.shape, at.dtype),
    }
    together = {
        "at once": lambda: H @ many,
        "one by one": lambda: [H @ many[:, j] for j in range(MANY)],
    }
    rounds = ROUNDS[name]
    return {
        "preset": name,
        "dtype": dtype,
        "shape": dataclasses.asdict(at.shape),
        "parameters": at.size(),
        "flops": at.shape.flops(),
        "seconds": alternate(works, rounds, CALLS[name]),
        "seconds_of_sixteen": alternate(together, rounds),
        "difference_in_float64": errors,
        "error": {tool: relative(works[tool](), truth) for tool in ("landscape", "PyHessian", "curvlinops")},
    }


def parts() -> list[Part]:
    works = {(name, dtype): functools.partial(product, name, dtype) for name in PRESETS for dtype in DTYPES}
    return [Part(f"{n} {d}", work, slow=(n, d) != ("quick", "float64")) for (n, d), work in works.items()]


def lines(results: Mapping[str, Numbers]) -> Iterator[Line]:
    """Rows 1 and 2."""
    for part, numbers in results.items():
        seconds = {tool: s["median"] for tool, s in numbers["seconds"].items()}
        own = seconds["landscape"]
        what = f"one product, {numbers['preset']}, {numbers['dtype']}"
        for tool, target in TARGETS.items():
            ratio = seconds[tool] / own
            result = f"{ratio:.2f}× ({1e3 * own:.3g} ms against {1e3 * seconds[tool]:.3g} ms)"
            yield Line("1", f"{what}, {tool}", f"≥ {target:g}×", result, ratio >= target, part)
        if numbers["preset"] != "paper":
            continue
        share = own / seconds["GEMMs alone"]
        result = (
            f"{share:.2f}×, {1 / share:.0%} of the limit "
            f"({numbers['flops'] / 1e9:.3g} GFLOP in {1e3 * seconds['GEMMs alone']:.3g} ms)"
        )
        yield Line("1", f"{what}, its GEMMs alone", f"≤ {LIMIT:g}×", result, share <= LIMIT, part)
    for part, numbers in results.items():
        if numbers["dtype"] != "float64":
            continue
        at_once, single = (numbers["seconds_of_sixteen"][w]["median"] for w in ("at once", "one by one"))
        result = f"{single / at_once:.2f}× ({1e3 * at_once:.3g} ms against {1e3 * single:.3g} ms)"
        what = f"{MANY} products at once, {numbers['preset']}, against one by one"
        yield Line("2", what, f"≥ {TOGETHER:g}×", result, single / at_once >= TOGETHER, part)


if __name__ == "__main__":
    sys.exit(main("products", parts()))
