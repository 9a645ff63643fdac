"""Depths on the plateau beside the settings of their runs."""

from __future__ import annotations

import pandas as pd
from tables import Scale

WHOLE, OPERANDS = "E,W over W,V", "operands' rows of E, and W, over W,V"


def ratios(scale: Scale) -> pd.DataFrame:
    """The rows of runs.csv whose plateau was analysed, with ratios of depths and the gauge's share of E,W's index."""
    run = ["study", "case", "task", "seed"]
    plateau = scale.tables["curvature"].query("analysis == 'plateau'")
    lowest = plateau.pivot_table(index=run, columns="block", values="lowest")
    lowest = lowest.reindex(columns=["E,W", "E[operands],W", "W,V"])
    # Of two tokens all rows are operands.
    operands = lowest["E[operands],W"].fillna(lowest["E,W"])
    pair = plateau[plateau["block"] == "E,W"].set_index(run)
    share = 1 - pair["index_gauge_free"] / pair["index"].where(pair["index"] > 0)
    depths = pd.DataFrame({WHOLE: lowest["E,W"] / lowest["W,V"], OPERANDS: operands / lowest["W,V"], "gauge": share})
    return scale.tables["runs"].merge(depths.reset_index(), on=run)
