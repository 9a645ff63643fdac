"""The primary tests about Transformers and natural text, as studies/PROTOCOL.md fixes them: one number a seed."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import primary
from primary import Numbers, Tests
from scale import Scale

SEEDS: Mapping[str, Sequence[int]] = {
    "transformer": range(200, 210),
    "text": range(300, 310),
    "text-transformer": range(300, 310),
}
"""By scale."""


def coupling(scale: Scale) -> Numbers:
    of, over = (primary.depth(scale, block) for block in ("E,mlp_in", "mlp_in,mlp_out"))
    return primary.difference(of, over, primary.log_ratio)


def weight_decay(scale: Scale) -> Numbers:
    return rank_correlations(scale, "decay", "none")


def small_batches(scale: Scale) -> Numbers:
    return rank_correlations(scale, "decay", "large")


def rank_correlations(scale: Scale, *cases: str) -> Numbers:
    """How much more the norms of words follow their frequency in one case than in another."""
    pair = (primary.frequency_and_norm(scale.rows("words", case=case)) for case in cases)
    return primary.difference(*pair, operator.sub)


def measured_rate(scale: Scale) -> Numbers:
    return sooner(scale, ("words", "decay"), ("rates", "prop41"))


def adam_lr(scale: Scale) -> Numbers:
    return sooner(scale, ("rates", "c1"), ("rates", "c10"))


def sooner(scale: Scale, *runs: tuple[str, str]) -> Numbers:
    """How much lower the test loss of one study and case comes than that of the one before."""
    of = (scale.rows("losses", study=study, case=case) for study, case in runs)
    return primary.difference(*(rows.groupby("seed")["test_loss"].min() for rows in of), operator.sub)


def words_coupling(scale: Scale) -> Numbers:
    return on_text(scale, "E,W", "W,V")


def text_coupling(scale: Scale) -> Numbers:
    return on_text(scale, "E,mlp_in", "mlp_in,mlp_out")


def on_text(scale: Scale, *blocks: str) -> Numbers:
    """The logarithm of one block's depth over the other's, where a text is learned best."""
    pair = (primary.depth(scale, block, "curvature", "base", "middle") for block in blocks)
    return primary.difference(*pair, primary.log_ratio)


TESTS: Mapping[str, Tests] = {
    "transformer": {
        "T1": (
            "The coupling of E and the MLP that reads it is deeper than that within the MLP on the plateau",
            coupling,
        ),
        "T2": ("Adam-LR (c = 10) groks sooner", primary.adam_lr),
        "T3": ("Uniform sampling groks before skewed", primary.sampling),
    },
    "text": {
        "N1": ("Weight decay leaves rare words behind", weight_decay),
        "N2": ("Rare words stay behind because batches leave them out", small_batches),
        "N3": ("c by Proposition 4.1 learns sooner than equal rates", measured_rate),
        "N4": ("The coupling of E and W is deeper than that of W and V", words_coupling),
    },
    "text-transformer": {
        "N5": ("The coupling of E and the MLP that reads it is deeper than that within the MLP", text_coupling),
        "N6": ("Adam-LR (c = 10) learns sooner", adam_lr),
    },
}
"""Claims, and their tests, by name, by scale."""


def main() -> None:
    """Command line: the claims about Transformers or natural text."""
    scale = primary.asked()
    primary.decide(scale, TESTS[scale.name], SEEDS[scale.name])


if __name__ == "__main__":
    main()
