"""Rare tokens at the end of training

Skewed tokens, every run to its last step; medians over seeds with intervals. ρ: rank correlation of an operand token's
places in training pairs with the norm of its embedding. R1 compares batches of 64 with and without weight decay, R2
batches of 64 with full ones; where one of two cases alone has grokked, they compare other things, too.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from claims import frequency_and_norm
from tables import SIZES, count, interval, main, scales, which

CASES = {"small": "batches of 64", "full": "full batches", "nodecay": "batches of 64, no weight decay"}


def rare_over_frequent(tokens: pd.DataFrame) -> list[float]:
    """By seed, the median norm of the rarest fifth of the tokens over that of the most frequent."""
    ratios = []
    for _, rows in tokens.groupby("seed"):
        norms = rows["norm"].values[np.argsort(rows["count"].values, kind="stable")]
        fifth = len(norms) // 5
        ratios.append(float(np.median(norms[:fifth]) / np.median(norms[-fifth:])))
    return ratios


def table(root: Path) -> pd.DataFrame:
    rows = []
    for scale in scales(root, ("transformer", *SIZES), "rare_late"):
        for case, words in CASES.items():
            tokens, runs = (
                which(scale.tables["tokens"], study="rare-late", case=case),
                scale.runs("rare-late", case=case),
            )
            rows.append(
                {
                    "scale": scale.name,
                    "case": words,
                    "ρ": interval(frequency_and_norm(tokens.set_index("seed")).tolist()),
                    "norm of the rarest fifth over the most frequent": interval(rare_over_frequent(tokens)),
                    "memorised": count(runs["memorised"]),
                    "grokked": count(runs["grokked"]),
                }
            )
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(table)
