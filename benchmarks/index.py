"""The certified saddle index of the joint block, beside all of its eigenvalues."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping

import torch

from benchmarks.dense import NETS, closed_form
from benchmarks.harness import Line, Numbers, Part, alternate, main
from benchmarks.peers import case
from landscape import Inertia, MatrixOperator, saddle_index
from landscape.curvature.eigsh import operator_norm
from landscape.curvature.inertia import TAU_DENSE, certified

STEP, TARGET = 150, 4.0


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


def lines(results: Mapping[str, Numbers]) -> Iterator[Line]:
    """Row 4."""
    for part, numbers in results.items():
        seconds = {work: s["median"] for work, s in numbers["seconds"].items()}
        same = (numbers["negative"], numbers["positive"]) == (
            numbers["eigvalsh_negative"],
            numbers["eigvalsh_positive"],
        )
        counts = f"n₋ = {numbers['negative']}, n₊ = {numbers['positive']}, {'as' if same else 'not as'} by eigvalsh"
        times = {work: seconds["eigvalsh"] / s for work, s in seconds.items()}
        result = f"{times['landscape']:.2f}× ({seconds['landscape']:.3g} s against {seconds['eigvalsh']:.3g} s); "
        result += f"n₋ alone {times['the index alone']:.2f}× ({seconds['the index alone']:.3g} s); "
        result += f"{numbers['level']}, {counts}"
        met = times["landscape"] >= TARGET and same and numbers["level"] == "certified"
        what = f"n₋, n₀ and n₊ of H_[E,W], {numbers['net']}, n = {numbers['order']:,}"
        yield Line("4", what, f"≥ {TARGET:g}×, certified", result, met, part)


if __name__ == "__main__":
    sys.exit(main("index", parts()))
