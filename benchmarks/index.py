"""The certified saddle index of the joint block, beside all of its eigenvalues."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping

import torch

from benchmarks.dense import NETS, closed_form
from benchmarks.harness import Line, Numbers, Part, alternate, main
from benchmarks.peers import case
from landscape import MatrixOperator, saddle_index

STEP, TARGET = 150, 4.0


def index(name: str, rounds: int) -> Numbers:
    """Seconds of `saddle_index` and of torch.linalg.eigvalsh, for the matrix after some training, and both counts."""
    at = case(NETS[name], STEP)
    H = closed_form(at)()
    found = saddle_index(MatrixOperator(H), method="dense")
    works = {
        "landscape": lambda: saddle_index(MatrixOperator(H), method="dense"),
        "eigvalsh": lambda: torch.linalg.eigvalsh(H),
    }
    values = torch.linalg.eigvalsh(H)
    return {
        "net": name,
        "order": len(H),
        "level": found.level,
        "negative": found.negative,
        "zero": found.zero,
        "positive": found.positive,
        "eigvalsh_negative": int((values < -found.tolerance).sum()),
        "eigvalsh_positive": int((values > found.tolerance).sum()),
        "seconds": alternate(works, rounds),
    }


def parts() -> list[Part]:
    quick, large = NETS
    return [
        Part(quick, functools.partial(index, quick, 3)),
        Part(large, functools.partial(index, large, 1), slow=True),
    ]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """Row 4."""
    for part, numbers in found.items():
        own, other = (numbers["seconds"][tool]["median"] for tool in ("landscape", "eigvalsh"))
        same = (numbers["negative"], numbers["positive"]) == (
            numbers["eigvalsh_negative"],
            numbers["eigvalsh_positive"],
        )
        told = (
            f"{other / own:.2f}× ({own:.2f} s against {other:.2f} s); {numbers['level']}, n₋ = {numbers['negative']}, "
            f"n₊ = {numbers['positive']}, {'as' if same else 'not as'} by eigvalsh"
        )
        what = f"saddle index of H_[E,W], {numbers['net']}, n = {numbers['order']:,}"
        yield Line("4", what, f"≥ {TARGET:g}×, certified", told, other / own >= TARGET and same, part)


if __name__ == "__main__":
    sys.exit(main("index", parts()))
