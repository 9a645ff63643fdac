"""Beside others' results: division, and late spikes of the loss

Steps are medians over seeds. A Transformer of two layers groks division mod 97 at step 39,890 with Adam and at 910
with Grokfast (arXiv 2405.20233). A spike: the training loss, recorded every 25 steps, came after grokking to ten times
the median of the ten records before; such spikes vanish in float64 elsewhere (arXiv 2605.06152).
"""

from pathlib import Path

import pandas as pd
from tables import main, scales, step


def table(root: Path) -> pd.DataFrame:
    rows = []
    for scale in scales(root):
        for case, words in {"c1": "Adam", "c10": "Adam-LR (c = 10)"}.items():
            if len(runs := scale.runs("tasks", case=case, task="div")):
                row = {"runs": f"division, {scale.name}, {words}", "p": str(runs["p"].iloc[0]), "number": len(runs)}
                rows.append(row | {"memorised": step(runs["memorised"]), "grokked": step(runs["grokked"])})
        for case in ("float32", "float64"):
            if len(runs := scale.runs("spikes", case=case)):
                row = {"runs": f"addition, {scale.name}, {case}", "p": str(runs["p"].iloc[0]), "number": len(runs)}
                row |= {"memorised": step(runs["memorised"]), "grokked": step(runs["grokked"])}
                rows.append(row | {"with late spikes": f"{(runs['spikes'] > 0).sum()} of {len(runs)}"})
    return pd.DataFrame(rows).fillna("–")


if __name__ == "__main__":
    main(table)
