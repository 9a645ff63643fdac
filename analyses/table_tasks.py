"""Four of the claims by task

Exploratory but for a + b: medians with intervals of the effects of C1, C4, C7 (the constant of Proposition 4.1) and
C8.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from depths import WHOLE, ratios
from tables import factor, main, ratio, scales, which

TASKS = {"add": "a + b", "sub": "a − b", "mul": "a · b", "div": "a / b", "squares": "a² + b²"}


def table(root: Path) -> pd.DataFrame:
    rows = []
    for scale in scales(root):
        if scale.runs("tasks").empty:
            continue
        for task, words in TASKS.items():
            # Those of addition are the runs that the tests read.
            plain, delay = ("curvature", "delay") if task == "add" else ("tasks", "tasks")
            runs = {case: scale.runs(plain, case=case, task=task) for case in ("c1", "c10")}
            waits = [scale.runs(delay, case=case, task=task) for case in ("embedding", "onehot")]
            depths = which(ratios(scale), study=plain, case="c1", task=task)[WHOLE].dropna()
            rows.append(
                {
                    "scale": scale.name,
                    "task": words,
                    "C1: delay, embedding over one-hot": ratio(*waits, "delay"),
                    "C4: λ_min(E,W) over λ_min(W,V)": factor(np.log(depths).tolist()),
                    "C7: constant of Proposition 4.1": factor(np.log(runs["c1"]["prop41_constant"].dropna()).tolist()),
                    "C8: grokked, c = 1 over c = 10": ratio(runs["c1"], runs["c10"]),
                }
            )
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(table)
