"""Steps of grokking, setting against setting

Exploratory: medians of ratios over paired seeds with intervals; below 1 the first is sooner. Of fewer than six seeds
the least, the largest and how many they are; ≥: a bound, where runs never grokked.
"""

from pathlib import Path

import pandas as pd
from tables import PLAIN, Setting, main, ratio, scales


def small(sampler: str) -> Setting:
    return {"study": "sampling", "sampler": sampler, "batch_size": 64}


def of(study: str, case: str) -> Setting:
    return {"study": study, "case": case}


COMPARISONS: dict[str, tuple[Setting, Setting]] = {
    "Frequency-aware batches of 64 over random ones": (of("rare", "aware"), small("random")),
    "Frequency-aware batches of 64 over skewed ones": (of("rare", "aware"), small("skewed")),
    "No weight decay over weight decay, skewed batches of 64": (of("rare", "nodecay"), small("skewed")),
    "E starts at half its scale": (of("starts", "E-half"), PLAIN),
    "E starts at twice its scale": (of("starts", "E-double"), PLAIN),
    "W starts at half its scale": (of("starts", "W-half"), PLAIN),
    "W starts at twice its scale": (of("starts", "W-double"), PLAIN),
    "E and W start balanced": (of("tables", "balanced"), PLAIN),
    "E frozen after memorising": (of("tables", "frozen"), PLAIN),
    **{f"c = {c} over c = 1": (of("pace", f"c{c}"), PLAIN) for c in (2, 4, 8)},
    "c = 10 over c = 1": (of("curvature", "c10"), PLAIN),
    **{f"c = {c} over c = 1": (of("pace", f"c{c}"), PLAIN) for c in (16, 32, 64, 128)},
    "c = 10 at the same product of both rates over c = 1": (of("pace", "equal-c10"), PLAIN),
    "c by Proposition 4.1 over c = 1": (of("pace", "prop41"), PLAIN),
    "SGD: c = 10 over c = 1": (of("sgd", "c10"), of("sgd", "c1")),
}


def table(root: Path) -> pd.DataFrame:
    all_scales = scales(root)
    return pd.DataFrame(
        {"comparison": words} | {scale.name: ratio(scale.runs(**one), scale.runs(**other)) for scale in all_scales}
        for words, (one, other) in COMPARISONS.items()
    )


if __name__ == "__main__":
    main(table)
