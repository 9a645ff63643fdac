"""What changes with the size of the network, one quantity at a time."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.colors import to_hex
from page_claims import number
from page_figures import ladder
from page_links import Link

from landscape.report.style import colour

SIZES = "sizes"
"""Study that varies one quantity at a time."""
RUN = ["study", "case", "task", "seed"]
"""What names a run in both tables."""
VARIED = {"d": "embed_dim", "h": "hidden", "p": "p", "tokens": "tokens"}
"""Columns of runs.csv by the name of the quantity."""
NAMED = ["study", "case"]
"""What names a setting in both tables."""
SHOWN = {
    "E,W over W,V": to_hex(colour("E,W")),
    "operands' rows of E, and W, over W,V": to_hex(colour("E[operands],W")),
}
"""Ratios of depths, with their colours."""


def ratios(runs: pd.DataFrame, curvature: pd.DataFrame) -> pd.DataFrame:
    """One row a run whose plateau was analysed: its settings, ratios of depths and the constant of Proposition 4.1."""
    plateau = curvature[curvature["analysis"] == "plateau"]
    lowest = plateau.pivot_table(index=RUN, columns="block", values="lowest")
    lowest = lowest.reindex(columns=["E,W", "E[operands],W", "W,V"])
    # Of two tokens all rows are operands.
    operands = lowest["E[operands],W"].fillna(lowest["E,W"])
    found = pd.DataFrame({"E,W": lowest["E,W"] / lowest["W,V"], "operands": operands / lowest["W,V"]})
    found.columns = pd.Index(SHOWN)
    return runs.merge(found.reset_index(), on=RUN)


def sizes(runs: pd.DataFrame, curvature: pd.DataFrame, link: Link) -> dict[str, Any]:
    """The figure of the depths against size, and a sentence for each quantity, the one that moves them most first."""
    table = ratios(runs, curvature)
    base = table[(table["study"] == "constants") & (table["case"] == "four")]
    two = table[(table["study"] == "curvature") & (table["case"] == "c1")]
    groups, rows = {}, []
    for name, column in VARIED.items():
        own = table[(table["study"] == SIZES) & (table[column] != base[column].iloc[0])]
        varied = pd.concat([two, base]) if name == "tokens" else pd.concat([own, base]).sort_values(column)
        groups[name] = {
            str(value): {label: part[label].tolist() for label in SHOWN} for value, part in varied.groupby(column)
        }
        medians = varied.groupby(column)[[*SHOWN, "prop41_constant"]].median()
        medians[NAMED] = varied.groupby(column)[NAMED].first()
        rows += [{"quantity": name, "value": value, **row} for value, row in medians.to_dict("index").items()]
    medians = pd.DataFrame(rows)

    def spread(name: str) -> float:
        found = medians.loc[medians["quantity"] == name, next(iter(SHOWN))]
        return math.log(found.max() / found.min())

    told = {
        name: [_ends(medians[medians["quantity"] == name], label, link) for label in [*SHOWN, "prop41_constant"]]
        for name in sorted(VARIED, key=spread, reverse=True)
    }
    most = next(iter(told))
    title = Markup("Whether E,W is deeper than W,V changes most with {}: {}").format(most, told[most][0])
    return {"figure": ladder(groups, SHOWN, title.striptags()), "title": title, "told": told}


def _ends(medians: pd.DataFrame, label: str, link: Link) -> Markup:
    """A median at the least and at the largest value of what was varied."""
    told = []
    for _, row in medians.iloc[[0, -1]].iterrows():
        table, where = "runs", row[NAMED].to_dict()
        if label in SHOWN:
            two = row["quantity"] == "tokens" and row["value"] == 2
            block = "E,W" if two or label == next(iter(SHOWN)) else "E[operands],W"
            table, where = "curvature", {**where, "analysis": "plateau", "block": block}
        told.append(Markup("{} at {}").format(link(table, number(row[label]), **where), row["value"]))
    return Markup(", ").join(told)
