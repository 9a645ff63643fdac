"""The primary tests about Transformers, as studies/PROTOCOL.md fixes them: one number a seed, and three verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import primary
from primary import Numbers, Tests
from scale import Scale

SEEDS: Sequence[int] = range(200, 210)


def coupling(scale: Scale) -> Numbers:
    of, over = (primary.depth(scale, block) for block in ("E,mlp_in", "mlp_in,mlp_out"))
    return primary.difference(of, over, primary.log_ratio)


TESTS: Tests = {
    "T1": ("The coupling of E and the MLP that reads it is deeper than that within the MLP on the plateau", coupling),
    "T2": ("Adam-LR (c = 10) groks sooner", primary.adam_lr),
    "T3": ("Uniform sampling groks before skewed", primary.sampling),
}
"""Claims, and their tests, by name."""


def main() -> None:
    """Command line: the claims about Transformers."""
    primary.decide(TESTS, SEEDS)


if __name__ == "__main__":
    main()
