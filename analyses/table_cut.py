"""Waits of runs that were moved on the plateau

Steps from the fork to grokking, median over seeds; and the median ratio to the run of the same seed that was
moved at random, or left alone.
"""

from pathlib import Path

import pandas as pd
from primary import waits
from tables import count, factor, log_ratios, main, scales, step

ARMS = {
    "none": "left alone",
    "random": "moved at random",
    "EW": "moved along E,W",
    "WV": "moved along W,V",
    "held": "lowest directions of E,W held",
}


def table(root: Path) -> pd.DataFrame:
    rows = []
    for scale in scales(root, ("quick", "mid")):
        by_arm = {arm: waits(scale, arm) for arm in ARMS}
        for arm, words in ARMS.items():
            of = by_arm[arm]
            row = {"size": scale.name, "arm": words, "grokked": count(of), "wait": step(of)}
            for other in ("random", "none"):
                row[f"over {ARMS[other]}"] = "–" if arm == other else factor(log_ratios(of, by_arm[other]))
            rows.append(row)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(table)
