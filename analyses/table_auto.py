"""Grokking by the rate of E: c = 1, the sweep's best, and `--lr-ratio auto`

Median steps over ten seeds, and c as auto set it: the largest, from which step, and the last, with the least and the
largest over seeds. The best c of each scale was chosen on other seeds.
"""

import math
from pathlib import Path

import pandas as pd
from tables import SIZES, Scale, count, main, number, scales, step


def ranged(values: pd.Series, digits: str = "") -> str:
    middle, least, most = (
        f"{float(of):,.0f}" if digits else number(float(of)) for of in (values.median(), values.min(), values.max())
    )
    return middle if least == most else f"{middle} ({least} to {most})"


def set_by_auto(scale: Scale) -> dict[str, str]:
    rows = scale.rows("rates", study="auto")
    if rows.empty:
        return {}
    most = rows.sort_values(["c", "step"], ascending=[False, True]).groupby("seed").first()
    last = rows.sort_values("step").groupby("seed")["c"].last()
    return {"largest c": ranged(most["c"]), "from step": ranged(most["step"], ",.0f"), "last c": ranged(last)}


def table(root: Path) -> pd.DataFrame:
    rows = []
    for scale in scales(root, ("transformer", *SIZES)):
        runs = scale.runs("auto")
        for c in sorted(
            runs.get("lr_ratio", pd.Series(dtype=str)).unique(), key=lambda c: math.inf if c == "auto" else float(c)
        ):
            of = runs[runs["lr_ratio"] == c]
            name = c if c == "auto" else f"{float(c):g}"
            row = {"scale": scale.name, "c": name, "grokked": count(of["grokked"]), "median step": step(of["grokked"])}
            rows.append(row | (set_by_auto(scale) if c == "auto" else {}))
    return pd.DataFrame(rows).fillna("–")


if __name__ == "__main__":
    main(table)
