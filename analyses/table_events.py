"""When everything happens, beside the step at which the main frequency of the embedding appears

Ratios of steps: medians over ten seeds with intervals, and in how many seeds the event came later. The main frequency
*appears* at the first checkpoint at which its share beats 99 % of random orders of the numbers and has half of its
last value. 50 % test accuracy alone is a test (G1). Index and κ₁, of E,W and in Transformers of E,mlp_in, are known at
the analysed steps alone, over whose neighbours their intervals reach: ∞ beyond the last.
"""

from pathlib import Path

import pandas as pd
from lags_of import EVENTS, lags
from tables import SIZES, main, scales


def table(root: Path) -> pd.DataFrame:
    by_scale = {scale.name: lags(scale) for scale in scales(root, ("transformer", *SIZES), "lags")}
    rows = []
    for event, words in EVENTS.items():
        row = {"event": words}
        for name, of in by_scale.items():
            row |= {name: of[event].shown, f"{name}, later": of[event].later} if event in of else {}
        rows.append(row)
    return pd.DataFrame(rows).fillna("–")


if __name__ == "__main__":
    main(table)
