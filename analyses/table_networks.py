"""What LayerNorm and tied embeddings change in a Transformer

How many runs memorised and grokked, medians, delays of those that did both with the least and the largest, and which
pair is the deepest on the plateau. Where a residual reaches past 0, no order of pairs is said.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from table_pairs import PAIRS
from tables import Scale, count, factor, main, number, step

NETWORKS = {
    "no LayerNorm, untied": ("curvature", "c1"),
    "LayerNorm before each sublayer": ("variants", "pre"),
    "LayerNorm after each sum": ("variants", "post"),
    "tied: E unembeds, too": ("variants", "tied"),
    "the size of 2301.05217": ("nanda", "base"),
}


def deepest(scale: Scale, study: str, case: str) -> dict[str, str]:
    rows = scale.rows("curvature", study=study, case=case).reset_index()
    rows = rows[rows["analysis"].str.startswith("plateau") & rows["block"].isin(PAIRS)]
    lowest = rows.pivot_table(index="seed", columns="block", values="lowest")
    ratio = factor(np.log(lowest["E,mlp_in"] / lowest["mlp_in,mlp_out"]).tolist())
    order = "; ".join(f"{pair} {seeds}" for pair, seeds in lowest.idxmin(axis=1).value_counts().items())
    if (rows["lowest_residual"] > rows["lowest"].abs()).any():
        share = number(100 * float((rows["lowest"].abs() / rows["highest"]).max()))
        ratio, order = "not determined", f"none found deeper than {share} % of its λ_max"
    return {"depths of": str(len(lowest)), "E,mlp_in over mlp_in,mlp_out": ratio, "deepest pair, seeds": order}


def table(root: Path) -> pd.DataFrame:
    scale, rows = Scale(root / "transformer"), []
    for words, (study, case) in NETWORKS.items():
        runs = scale.runs(study, case=case)
        delay = runs["delay"].dropna()
        waits = [f"{x:,.0f}".replace("-", "−") for x in (delay.median(), delay.min(), delay.max())]
        row = {"network": words, "memorised": count(runs["memorised"]), "grokked": count(runs["grokked"])}
        row |= {"median step": step(runs["grokked"]), "delay": f"{waits[0]} ({waits[1]} to {waits[2]})"}
        rows.append(row | deepest(scale, study, case))
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(table)
