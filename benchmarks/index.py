"""The certified saddle index of the joint block beside all of its eigenvalues, and by Schur complements beyond them."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.dense import NETS, closed_form
from benchmarks.harness import PLAIN, Numbers, Part, Row, alternate, main, peak_memory, timed
from benchmarks.peers import Case, case
from landscape import Inertia, MatrixOperator, TrainConfig, preset, saddle_index
from landscape.curvature.eigsh import operator_norm
from landscape.curvature.inertia import TAU_DENSE, certified
from landscape.models.embedding_mlp.index import StructuredIndex

STEP = 150
PLATEAU = {"mid": 300, "paper": 800}
"""By preset a step between memorising and generalising."""
TAU = 1e-3
BASE = TrainConfig(p=41, tokens=4, embed_dim=48, hidden=128, train_fraction=0.4, batch_size="full")
GROWN: dict[str, tuple[str, tuple[int, ...]]] = {
    "p": ("p", (31, 37, 41)),
    "d": ("embed_dim", (48, 64, 96)),
    "h": ("hidden", (96, 128, 192)),
}
"""Options of BASE, one varied at a time."""


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


def factor(at: Case, block: tuple[str, str], is_exact: bool) -> tuple[StructuredIndex, Callable[[float], Any]]:
    """What counts a block's index by a factor, and one factorisation at a tolerance."""
    structure = at.problem.structure(at.params, 0.0)
    orders = structure.structured(block, 0).orders
    index = structure.structured(block, orders.exact if is_exact else orders.token_wise)
    return index, lambda tau: index.factorised(tau, above=True)


def beyond(name: str, block: tuple[str, str], is_exact: bool) -> Numbers:
    """Seconds and memory of one factorisation on all cores, and what it proves at a tolerance."""
    at = case(preset(name), PLATEAU[name])
    index, factorise = factor(at, block, is_exact)
    norm = operator_norm(at.landscape(block))
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    seconds, count = timed(lambda: factorise(TAU * norm))
    torch.set_num_threads(1)
    return {
        "net": name,
        "block": ",".join(block),
        "order": index.orders.within(index.limit),
        "rest": index.rest.order,
        "exact": is_exact,
        "seconds": seconds,
        "peak": peak_memory(),
        "negative": count.negative,
        "low": count.low / norm,
        "high": count.high / norm,
    }


def growth(option: str) -> Numbers:
    """Seconds of a token-wise factorisation of E,W as one option grows, and the slope of their logarithms."""
    name, values = GROWN[option]
    seconds = []
    for value in values:
        at = case(dataclasses.replace(BASE, **{name: value}), 0)
        _, factorise = factor(at, ("E", "W"), False)
        work = functools.partial(factorise, TAU * operator_norm(at.landscape(("E", "W"))))
        seconds.append(timed(work)[0])
    slope = np.polyfit(np.log(values), np.log(seconds), 1)[0]
    return {"option": option, "values": values, "growth": seconds, "slope": float(slope)}


def parts() -> list[Part]:
    quick, large = NETS
    beyond_mid = functools.partial(beyond, "mid")
    return [
        *(Part(f"growth with {option}", functools.partial(growth, option)) for option in GROWN),
        Part("mid, E,W, token-wise", functools.partial(beyond_mid, ("E", "W"), False), slow=True),
        Part("mid, E,W, exact", functools.partial(beyond_mid, ("E", "W"), True), slow=True),
        Part("mid, W,V, token-wise", functools.partial(beyond_mid, ("W", "V"), False), slow=True),
        Part("paper, E,W, token-wise", functools.partial(beyond, "paper", ("E", "W"), False), slow=True),
        Part(quick, functools.partial(index, quick, 3)),
        Part(large, functools.partial(index, large, 1), slow=True),
    ]


def rows(results: Mapping[str, Numbers]) -> Iterator[Row]:
    """A row a network, a factor, and an option with which it grows."""
    for numbers in results.values():
        if "growth" in numbers:
            seconds = ", ".join(f"{second:.3g}" for second in numbers["growth"])
            what = f"a token-wise factor of E,W, {numbers['option']} = {', '.join(map(str, numbers['values']))}"
            yield Row(what, {"landscape": f"{seconds} s: as {numbers['option']}^{numbers['slope']:.1f}"})
            continue
        if "rest" in numbers:
            how = "exact" if numbers["exact"] else "token-wise"
            what = f"{how} factor of {numbers['block']}, {numbers['net']}, order {numbers['order']:,}, all cores"
            counted = f"{numbers['negative']:,} eigenvalues below −{numbers['low']:.1e} ‖H‖"
            if not numbers["exact"]:
                # All are above −‖H‖.
                most = f", at most that many below −{numbers['high']:.1e} ‖H‖" if numbers["high"] < 1 else ""
                counted = f"at least {counted}{most}"
            yield Row(what, {"landscape": f"{numbers['seconds']:.3g} s, {numbers['peak'] / 1e9:.1f} GB: {counted}"})
            continue
        ours, theirs = ((numbers[f"{tool}negative"], numbers[f"{tool}positive"]) for tool in ("", "eigvalsh_"))
        seconds = {name: f"{work['median']:.3g} s" for name, work in numbers["seconds"].items()}
        what = f"saddle index of E,W, {numbers['net']}, n = {numbers['order']:,}: {numbers['level']} here"
        what += "" if ours == theirs else f"; {ours} here and {theirs} by eigvalsh"
        yield Row(what, {"landscape": seconds["the index alone"], PLAIN: seconds["eigvalsh"]})


if __name__ == "__main__":
    sys.exit(main("index", parts()))
