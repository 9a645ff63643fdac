"""Depths on natural text over training

Medians over three seeds, exploratory: −λ_min of pairs, of the MLP with d = 8 and h = 32, whose index of E,W is
certified, and of the Transformer, where depths are Ritz values and either pair may be deeper than its number.
"""

from pathlib import Path

import pandas as pd
from tables import main, number, scales

STUDIES = {"text": "index", "text-transformer": "curvature"}


def table(root: Path) -> pd.DataFrame:
    rows = []
    for scale in scales(root, tuple(STUDIES), "curvature"):
        through = scale.rows("curvature", study=STUDIES[scale.name], analysis="over-training")
        for (block, step), of in through.groupby(["block", "step"]):
            row = {"scale": scale.name, "block": block, "step": step, "depth": number(-of["lowest"].median())}
            if scale.name == "text" and block == "E,W":
                row |= {"index": number(of["index"].median()), "κ₁": number(of["kappa_1"].median())}
            rows.append(row)
    return pd.DataFrame(rows).fillna("–")


if __name__ == "__main__":
    main(table)
