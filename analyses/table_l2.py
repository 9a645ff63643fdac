"""Tables with L2 at a λ below the grid of D2

On the pilots' seeds, added after the verdicts, because the λ that was chosen for D2, 0.0002, is the least of its grid.
"""

from pathlib import Path

import pandas as pd
from tables import count, main, scales


def table(root: Path) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "scale": scale.name,
            "λ": f"{decay:f}".rstrip("0"),
            "grokked": count(runs["grokked"]),
            "first at": f"{runs['grokked'].min():,.0f}" if runs["grokked"].notna().any() else "∞",
            "watched": f"{runs['watched'].max():,}",
            "best test accuracy": f"{runs['best'].median():.0%}",
        }
        for scale in scales(root)
        for decay, runs in scale.runs(f"l2-{scale.name}").groupby("weight_decay")
    )


if __name__ == "__main__":
    main(table)
