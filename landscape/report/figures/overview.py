"""The figure that comes first: what training did, beside what the curvature did."""

from __future__ import annotations

import pandas as pd

from landscape.report.figures.curvature import DEPTH, columns, joint_first, most_negative
from landscape.report.figures.panels import Drawn, Panel, long, over_steps
from landscape.report.figures.training import accuracies, trained
from landscape.report.sources import Frames
from landscape.report.words import count


def overview(frames: Frames) -> Drawn | None:
    """Accuracies, the most negative eigenvalues and the numbers of negative ones over the same steps."""
    accuracy, lowest = accuracies(frames), most_negative(frames)
    table = columns(frames, "by_step_block", "inertia_lower", "inertia_upper")
    if accuracy.empty or table["step"].nunique() < 2 or lowest is None or lowest.empty:
        return None
    blocks = [*joint_first(lowest), *({"all"} & set(table["block"]))]
    panels = [
        Panel("accuracy", "accuracy", _lines(accuracy, "split", accuracy["split"].unique()), "share"),
        Panel("-lambda_min", DEPTH, _lines(long(lowest, "block", "depth"), "block", blocks), "log"),
        Panel(
            "saddle index",
            "negative eigenvalues",
            _lines(long(table, "block", "inertia_lower", "inertia_upper"), "block", blocks),
            "symlog",
        ),
    ]
    drawn = over_steps(frames, panels, "line")
    if drawn is None:
        return None
    rows = table[table["block"] == blocks[0]].sort_values("step").groupby("run")
    first, last = (
        count(ends["inertia_lower"].to_list(), ends["inertia_upper"].to_list()) for ends in (rows.first(), rows.last())
    )
    title = f"{trained(frames)}; negative eigenvalues of {blocks[0]}: {first} at the first step, {last} at the last"
    return Drawn(title, *drawn)


def _lines(data: pd.DataFrame, by: str, names: object) -> pd.DataFrame:
    """The rows of these names, in a column that splits and blocks share."""
    return data[data[by].isin(names)].rename(columns={by: "line"})
