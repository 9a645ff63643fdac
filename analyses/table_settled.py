"""What settling changes on the plateau

Medians over seeds with intervals. Depth: −λ_min of the data loss; λ: the weight decay. Exploratory.
"""

from pathlib import Path

import pandas as pd
from tables import Scale, interval, main, scales, which


def table(root: Path) -> pd.DataFrame:
    known = scales(root, table="settled")
    return pd.DataFrame(
        row(at, block) for at in known for block in at.rows("index_curves", study="settled")["block"].unique()
    )


def row(scale: Scale, block: str) -> dict[str, object]:
    """A block before and after."""
    of = scale.rows("settled", study="settled")
    ends = which(scale.tables["curvature"], study="settled", block=block)
    depths = -ends.pivot_table(index="seed", columns="analysis", values="lowest").loc[of.index]
    depths = depths.div(of["weight_decay"], axis=0)
    return {
        "size": scale.name,
        "seeds": len(depths),
        "block": block,
        "depth / λ": interval(depths["plateau"]),
        "settled": interval(depths["settled"]),
        "‖∂L/∂b₁‖ / λ": interval(of["start_bias_gradient"]),
        "after": interval(of["bias_gradient"]),
        "test accuracy": interval(of["start_test_accuracy"]),
        "settled accuracy": interval(of["test_accuracy"]),
    }


if __name__ == "__main__":
    main(table)
