"""Critical points: where searches from checkpoints of the preset `demo` ended

A point is critical from a gradient norm of 10⁻¹⁰ on; blocks are counted where their index is certified, with the
interval of the share of all such points (Clopper and Pearson). Fewer than eight points of an activation say nothing.
"""

from pathlib import Path

import pandas as pd
from exact import share_interval
from tables import main, number, scales

POINT = ["study", "case", "seed", "analysis"]
NAMES = {"relu": "ReLU", "gelu": "GELU"}


def table(root: Path) -> pd.DataFrame:
    rows = []
    for scale in scales(root, table="points"):
        for (activation, start), group in scale.tables["points"].groupby(["activation", "analysis"], sort=False):
            critical = group[group["status"] == "critical"]
            row = {"activation": NAMES.get(activation, activation), "from": start}
            row |= {"critical": f"{len(critical)} of {len(group)}"}
            row |= {
                "smallest gradient": number(group["grad_norm"].min()),
                "median": number(group["grad_norm"].median()),
            }
            blocks = scale.tables["curvature"].merge(critical[POINT], on=POINT)
            for block in ("E,W", "W,V"):
                sure = blocks[(blocks["block"] == block) & (blocks["index_level"] == "certified")]
                negative = int((sure["index"] > 0).sum())
                row[f"{block} negative"] = f"{negative} of {len(sure)}" if len(sure) else "–"
                if block == "E,W" and len(sure):
                    low, high = share_interval(negative, len(sure))
                    row["of all such points, 95 %"] = f"{low:.0%} to {high:.0%}"
            rows.append(row)
    return pd.DataFrame(rows).fillna("–")


if __name__ == "__main__":
    main(table)
