"""Both ends of every block over a whole run, with warm starts from the previous checkpoint, beside cold starts."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping

from torch import Tensor

from benchmarks.harness import Line, Numbers, Part, main, timed
from benchmarks.peers import trained
from landscape import preset, problems
from landscape.analysis.checkpoint import Checkpoint
from landscape.config import AnalysisConfig
from landscape.problems.embedding_mlp.blocks import DEFAULT_BLOCKS
from landscape.problems.problem import Arrays, Problem

TARGET, CHECKPOINTS = 2.0, 100
STEPS = {"quick": list(range(30, 30 * CHECKPOINTS + 1, 30)), "mid": [150, 170]}
Vectors = dict[str, Tensor]


def run(name: str, steps: list[int], cold: list[int], blocks: tuple[str, ...] = DEFAULT_BLOCKS) -> Numbers:
    """Seconds and products of the searches at each step; at the steps in `cold` also a cold start, right after."""
    config = AnalysisConfig(method="lanczos", blocks=blocks, device="cpu")
    with trained(preset(name), STEPS[name]) as reader:
        problem = problems.of_run(reader, config.device)
        before: Vectors = {}
        found = []
        for step in steps:
            arrays = reader.checkpoint(step)
            row, vectors = searched(problem, config, arrays, before)
            found.append({"step": step, **row})
            if step in cold:
                found[-1]["cold"] = searched(problem, config, arrays, {})[0]
            before = vectors
    return {"preset": name, "blocks": list(config.blocks), "k": config.k, "method": config.method, "steps": found}


def searched(problem: Problem, config: AnalysisConfig, arrays: Arrays, before: Vectors) -> tuple[Numbers, Vectors]:
    """Seconds, products and converged pairs of one checkpoint's blocks as `landscape hessian` searches them.

    before: eigenvectors by block to begin from.
    """
    vectors: Vectors = {}
    row: Numbers = {"seconds": 0.0, "products": 0, "converged": 0, "products_by_block": {}}

    def search(block: str) -> int:
        eigen = at.eigen(block)
        vectors[block] = eigen.vectors
        row["converged"] += int(eigen.converged.sum())
        return at.products[block]

    seconds, at = timed(functools.partial(Checkpoint, problem, config, arrays, before=before))
    row["seconds"] += seconds
    for block in config.blocks:
        seconds, products = timed(functools.partial(search, block))
        row["seconds"] += seconds
        row["products"] += products
        row["products_by_block"][block] = products
    return row, vectors


def parts() -> list[Part]:
    """quick at 100 checkpoints, in tens, at a few with one block, and at a few of mid.

    Each ten is begun from nothing, so that an interrupted run can be resumed; its last one is done both ways.
    """
    few = STEPS["quick"][10:13]
    tens = [STEPS["quick"][i : i + 10] for i in range(0, CHECKPOINTS, 10)]
    return [
        Part("quick, 3 checkpoints, E", functools.partial(run, "quick", few, few[1:], ("E",))),
        *(
            Part(f"quick, steps {ten[0]} to {ten[-1]}", functools.partial(run, "quick", ten, ten[-1:]), slow=True)
            for ten in tens
        ),
        Part("mid, 2 checkpoints", functools.partial(run, "mid", STEPS["mid"], STEPS["mid"][1:]), slow=True),
    ]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """Row 7; the tens of a run together."""
    runs: dict[tuple[str, ...], list[str]] = {}
    for part, numbers in found.items():
        runs.setdefault((numbers["preset"], *numbers["blocks"]), []).append(part)
    for parts_of_run in runs.values():
        numbers, part = found[parts_of_run[0]], parts_of_run[-1]
        steps = [step for each in parts_of_run for step in found[each]["steps"]]
        both = [step for step in steps if "cold" in step]
        warm, cold = sum(s["seconds"] for s in both), sum(s["cold"]["seconds"] for s in both)
        products = [sum(s["products"] for s in both), sum(s["cold"]["products"] for s in both)]
        is_target = len(steps) >= CHECKPOINTS
        what = f"{len(steps)} checkpoints × {' '.join(numbers['blocks'])}, {numbers['preset']}, {numbers['method']}"
        counts = f"{products[0]:,} products against {products[1]:,}, {warm:.3g} s against {cold:.3g} s"
        ratios = f"{products[1] / products[0]:.2f}× by products, {cold / warm:.2f}× by seconds"
        told = f"{ratios} at the {len(both)} done both ways ({counts}); all: {sum(s['seconds'] for s in steps):.3g} s"
        target = f"≥ {TARGET:g}×" if is_target else "–"
        yield Line("7", what, target, told, cold / warm >= TARGET if is_target else None, part)


if __name__ == "__main__":
    sys.exit(main("wholerun", parts()))
