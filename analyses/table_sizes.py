"""What changes with the size of the network: `quick` with four tokens, one quantity changed at a time

Medians over seeds, by the value of what was changed. C7's constant is 1 where Proposition 4.1 is exact; the gauge's
share is that of the certified negative eigenvalues of E,W that are gone off the gauge.
"""

from pathlib import Path

import pandas as pd
from depths import OPERANDS, WHOLE, ratios
from tables import main, number, scales

VARIED = {"d": "embed_dim", "h": "hidden", "p": "p", "tokens": "tokens"}
MEASURES = {
    f"depth of {WHOLE}": (WHOLE, "sizes"),
    f"depth of {OPERANDS}": (OPERANDS, "sizes"),
    "gauge's share of the index of E,W": ("gauge", "gauge"),
    "constant of C7": ("prop41_constant", "sizes"),
}
"""Column of `ratios`, and the study that varies d, h and p, by the measure in words."""


def varied(runs: pd.DataFrame, measure: str, quantity: str) -> pd.DataFrame:
    """The runs that vary one quantity alone, and those that all vary, with its `value` and the measure `y`."""
    (name, study), column = MEASURES[measure], VARIED[quantity]
    base = runs[(runs["study"] == "constants") & (runs["case"] == "four")]
    others = runs[runs["study"] == study]
    others = others[others[column] != base[column].iloc[0]]
    if quantity == "tokens":
        others = runs[(runs["study"] == "curvature") & (runs["case"] == "c1")]
    rows = pd.concat([others, base])
    return rows.assign(value=rows[column], y=rows[name]).dropna(subset="y").sort_values("value")


def table(root: Path) -> pd.DataFrame:
    (scale,) = (one for one in scales(root) if len(one.runs("sizes")))
    all_runs = ratios(scale)
    cells = {
        measure: pd.concat({q: varied(all_runs, measure, q).groupby("value")["y"].median() for q in VARIED})
        for measure in MEASURES
    }
    table = pd.DataFrame(cells)
    share = "gauge's share of the index of E,W"
    shown = table.map(number).assign(**{share: table[share].map("{:.0%}".format)}).where(table.notna(), "–")
    return shown.rename_axis(["quantity", "value"]).reset_index()


if __name__ == "__main__":
    main(table)
