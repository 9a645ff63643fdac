"""A whole run, each checkpoint started from the one before, beside its checkpoints one by one from nothing."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping

import numpy as np

from benchmarks.harness import Line, Numbers, Part, main, timed
from benchmarks.peers import trained
from landscape import HessianConfig, preset
from landscape.config import DEFAULT_BLOCKS
from landscape.measure import Measurement
from landscape.pipeline import training_at

TARGET, CHECKPOINTS = 2.0, 100
STEPS = {"quick": [500, 510, 520], "mid": list(range(20, 20 * CHECKPOINTS + 1, 20))}


def run(name: str, steps: list[int], cold: list[int], config: HessianConfig) -> Numbers:
    """Seconds and products at each step of a run; at the steps in `cold` also from nothing, right after the other."""
    train = preset(name)
    with trained(train, STEPS[name]) as reader:
        warm = Measurement(train, config, reader.data())
        found = []
        for step in steps:
            arrays, training = reader.checkpoint(step), training_at(reader, step)
            row: Numbers = {"step": step, **_measured(warm, arrays, training)}
            if step in cold:
                row["cold"] = _measured(Measurement(train, config, reader.data()), arrays, training)
            found.append(row)
    return {"preset": name, "blocks": list(config.blocks), "k": config.k, "method": config.method, "steps": found}


def _measured(measurement: Measurement, arrays: Mapping[str, np.ndarray], training: object) -> Numbers:
    """Seconds, products, and eigenpairs that converged, of one checkpoint."""
    seconds, rows = timed(functools.partial(measurement.run, arrays, training))
    row = rows["/"]
    return {"seconds": seconds, "products": int(row["num_products"].sum()), "converged": int(row["converged"].sum())}


def parts() -> list[Part]:
    """quick at a few checkpoints, matrix-free for the comparison's sake; mid at 100, in tens.

    Each ten is started from nothing, so that an interrupted run is gone on with; its last one is done both ways.
    """
    few = HessianConfig(method="lanczos", blocks=("E",), device="cpu")
    whole = HessianConfig(blocks=DEFAULT_BLOCKS, device="cpu")
    tens = [STEPS["mid"][i : i + 10] for i in range(0, CHECKPOINTS, 10)]
    return [
        Part("quick, 3 checkpoints, E", functools.partial(run, "quick", STEPS["quick"], STEPS["quick"][1:], few)),
        *(
            Part(f"mid, steps {ten[0]} to {ten[-1]}", functools.partial(run, "mid", ten, ten[-1:], whole), slow=True)
            for ten in tens
        ),
    ]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """Row 7; the tens of a run together."""
    runs: dict[str, list[str]] = {}
    for part, numbers in found.items():
        runs.setdefault(numbers["preset"], []).append(part)
    for parts_of_run in runs.values():
        numbers, part = found[parts_of_run[0]], parts_of_run[-1]
        steps = [step for each in parts_of_run for step in found[each]["steps"]]
        both = [step for step in steps if "cold" in step]
        warm, cold = sum(s["seconds"] for s in both), sum(s["cold"]["seconds"] for s in both)
        products = [sum(s["products"] for s in both), sum(s["cold"]["products"] for s in both)]
        is_target = len(steps) >= CHECKPOINTS
        what = f"{len(steps)} checkpoints × {' '.join(numbers['blocks'])}, {numbers['preset']}, {numbers['method']}"
        told = (
            f"{cold / warm:.2f}× at the {len(both)} done both ways ({warm:.3g} s against {cold:.3g} s, "
            f"{products[0]:,} products against {products[1]:,}); all: {sum(s['seconds'] for s in steps):.3g} s"
        )
        target = f"≥ {TARGET:g}×" if is_target else "–"
        yield Line("7", what, target, told, cold / warm >= TARGET if is_target else None, part)


if __name__ == "__main__":
    sys.exit(main("wholerun", parts()))
