"""The geometry of the embedding at the last step

Medians over seeds with the least and the largest; in parentheses in how many runs it beats 99 % of permutations, which
is all that is said of the scaling index. Numbers stand in the order of the task's group, those of a · b by their
discrete logarithm; the other order is that of the other task. Restricted loss has the frequencies in use alone,
excluded loss all others.
"""

from pathlib import Path

import pandas as pd
from table_tasks import TASKS
from tables import SIZES, count, main, scales, span, which

COLUMNS = {
    "frequencies in use": "num_frequencies",
    "largest share of a frequency": "top_frequency_share",
    "the same in the other order": "other_order_share",
    "circle R²": "top_circle_r2",
    "share of the first component": "top_component_share",
    "participation ratio": "participation_ratio",
    "distance R² of a circle": "distance_r2_circular",
    "distance R² of a line": "distance_r2_linear",
    "distance R² of both": "distance_r2",
    "largest |ρ|": "line_spearman",
    "scaling index": "scaling_index",
    "PLS Q²": "pls_q2",
    "test loss": "test_loss",
    "restricted test loss": "test_restricted_loss",
    "excluded test loss": "test_excluded_loss",
}


def cell(rows: pd.DataFrame, column: str) -> str:
    if rows[column].isna().all():
        return "–"
    # The exponent of the best fit has that fit's null.
    p = "scaling_r2_p" if column == "scaling_index" else f"{column}_p"
    beats = f"({(rows[p] <= 0.01).sum()})" if p in rows else ""
    if column == "scaling_index":
        return beats
    values = rows[column]
    return f"{f'{values.iloc[0]:.3g}' if values.nunique() == 1 else span(values)} {beats}".strip()


def table(root: Path) -> pd.DataFrame:
    columns = {}
    for scale in scales(root, ("transformer", *SIZES), "geometry"):
        for (study, task), rows in scale.tables["geometry"].groupby(["study", "task"], sort=False):
            runs = which(scale.tables["runs"], study=study, task=task)
            cells = {"grokked": count(runs["grokked"])} | {name: cell(rows, of) for name, of in COLUMNS.items()}
            lower = (rows["test_restricted_loss"] < rows["test_loss"]).sum()
            columns[f"{scale.name}, {TASKS[task]}"] = cells | {"restricted below test loss": f"{lower} of {len(rows)}"}
    return pd.DataFrame(columns).rename_axis("quantity").reset_index()


if __name__ == "__main__":
    main(table)
