"""The certified saddle index of the joint block, beside all of its eigenvalues."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping

import torch

from benchmarks.dense import NETS, closed_form
from benchmarks.harness import PLAIN, Numbers, Part, Row, alternate, main
from benchmarks.peers import case
from landscape import Inertia, MatrixOperator, saddle_index
from landscape.curvature.eigsh import operator_norm
from landscape.curvature.inertia import TAU_DENSE, certified

STEP = 150


def index(name: str, rounds: int) -> Numbers:
    """Seconds of `saddle_index` and of torch.linalg.eigvalsh, for the matrix after some training, and both counts."""
    at = case(NETS[name], STEP)
    H = closed_form(at)
    op = MatrixOperator(H)

    def alone() -> Inertia:
        norm = operator_norm(op)
        return certified(H, TAU_DENSE * norm, norm, negative_only=True)

    inertia = saddle_index(op, method="dense")
    assert (alone().negative, alone().level) == (inertia.negative, inertia.level)
    works = {
        "landscape": lambda: saddle_index(op, method="dense"),
        "the index alone": alone,
        "eigvalsh": lambda: torch.linalg.eigvalsh(H),
    }
    values = torch.linalg.eigvalsh(H)
    return {
        "net": name,
        "order": len(H),
        "level": inertia.level,
        "negative": inertia.negative,
        "zero": inertia.zero,
        "positive": inertia.positive,
        "eigvalsh_negative": int((values < -inertia.tolerance).sum()),
        "eigvalsh_positive": int((values > inertia.tolerance).sum()),
        "seconds": alternate(works, rounds),
    }


def parts() -> list[Part]:
    quick, large = NETS
    return [
        Part(quick, functools.partial(index, quick, 3)),
        Part(large, functools.partial(index, large, 1), slow=True),
    ]


def rows(results: Mapping[str, Numbers]) -> Iterator[Row]:
    """A row a network."""
    for numbers in results.values():
        ours, theirs = ((numbers[f"{tool}negative"], numbers[f"{tool}positive"]) for tool in ("", "eigvalsh_"))
        seconds = {name: f"{work['median']:.3g} s" for name, work in numbers["seconds"].items()}
        what = f"saddle index of E,W, {numbers['net']}, n = {numbers['order']:,}: {numbers['level']} here"
        what += "" if ours == theirs else f"; {ours} here and {theirs} by eigvalsh"
        yield Row(what, {"landscape": seconds["the index alone"], PLAIN: seconds["eigvalsh"]})


if __name__ == "__main__":
    sys.exit(main("index", parts()))
