"""Both ends of every block over a run, begun from the checkpoint before, beside cold starts."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping

from torch import Tensor

from benchmarks.harness import Line, Numbers, Part, main, timed
from benchmarks.peers import trained
from landscape import models, preset
from landscape.config import AnalysisConfig
from landscape.measure.checkpoint import Checkpoint
from landscape.models.embedding_mlp.blocks import DEFAULT_BLOCKS
from landscape.models.problem import Arrays, Problem

TARGET, CHECKPOINTS = 2.0, 100
STEPS = list(range(30, 30 * CHECKPOINTS + 1, 30))
Vectors = dict[str, Tensor]


def run(steps: list[int], cold: list[int]) -> Numbers:
    """Seconds and products of the searches at each step; at the steps in `cold` also a cold start, right after."""
    config = AnalysisConfig(method="lanczos", blocks=DEFAULT_BLOCKS, device="cpu")
    with trained(preset("quick"), STEPS) as reader:
        problem = models.of_run(reader, config.device)
        before: Vectors = {}
        found = []
        for step in steps:
            arrays = reader.checkpoint(step)
            row, vectors = searched(problem, config, arrays, before)
            found.append({"step": step, **row})
            if step in cold:
                found[-1]["cold"] = searched(problem, config, arrays, {})[0]
            before = vectors
    return {"blocks": list(config.blocks), "k": config.k, "method": config.method, "steps": found}


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
    """One checkpoint in each fifth of quick's run, after the one before it."""
    pairs = [STEPS[i - 2 : i] for i in range(20, CHECKPOINTS + 1, 20)]
    return [Part(f"quick, step {pair[1]}", functools.partial(run, pair, pair[1:]), slow=True) for pair in pairs]


def lines(found: Mapping[str, Numbers]) -> Iterator[Line]:
    """Row 7; the steps together."""
    if not found:
        return
    part, numbers = list(found.items())[-1]
    both = [step for each in found.values() for step in each["steps"] if "cold" in step]
    warm, cold = sum(s["seconds"] for s in both), sum(s["cold"]["seconds"] for s in both)
    products = [sum(s["products"] for s in both), sum(s["cold"]["products"] for s in both)]
    what = f"{len(both)} checkpoints × {' '.join(numbers['blocks'])}, quick, {numbers['method']}"
    told = f"{products[1] / products[0]:.2f}× by products, {cold / warm:.2f}× by seconds"
    told += f" ({products[0]:,} products against {products[1]:,}, {warm:.3g} s against {cold:.3g} s)"
    yield Line("7", what, f"≥ {TARGET:g}×", told, cold / warm >= TARGET, part)


if __name__ == "__main__":
    sys.exit(main("wholerun", parts()))
