"""Grokking of a Transformer by the rate of E over that of all else

Exploratory: median steps, in which never is latest.
"""

from pathlib import Path

import pandas as pd
from tables import Scale, count, main, step


def table(root: Path) -> pd.DataFrame:
    runs = Scale(root / "transformer").tables["runs"]
    fixed = runs[((runs["study"] == "curvature") & runs["case"].isin(["c1", "c10"])) | (runs["study"] == "rates")]
    by_c = {f"{float(c):g}": of for c, of in sorted(fixed.groupby("lr_ratio"), key=lambda of: float(of[0]))}
    by_c["by Proposition 4.1"] = runs[runs["study"] == "policy"]
    rows = [{"c": c, "grokked": count(of["grokked"]), "median step": step(of["grokked"])} for c, of in by_c.items()]
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(table)
