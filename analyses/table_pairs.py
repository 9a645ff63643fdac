"""Depth and saddle index of pairs in a Transformer over training

Medians over ten seeds: −λ_min of the data loss; certified index. E,Q,K contains Q,K and is not compared with pairs.
"""

from pathlib import Path

import pandas as pd
from tables import PLAIN, Scale, main, number

PAIRS = ("E,mlp_in", "mlp_in,mlp_out", "Q,K", "V,O", "E,U")
THREE = "E,Q,K"


def table(root: Path) -> pd.DataFrame:
    curvature = Scale(root / "transformer").rows("curvature", **PLAIN).reset_index()
    rows = []
    for pair in (*PAIRS, THREE):
        of_pair = curvature[curvature["block"] == pair].sort_values("step")
        through = of_pair[of_pair["analysis"] == "over-training"].groupby("seed")
        at = {"start": through.first(), "plateau": of_pair[of_pair["analysis"] == "plateau"], "end": through.last()}
        cells = {when: f"{number(-of['lowest'].median())}; {number(of['index'].median())}" for when, of in at.items()}
        rows.append({"pair": pair} | cells)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(table)
