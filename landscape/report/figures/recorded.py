"""The metrics of runs recorded from other training loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from landscape.report.figures.axes import last_record, legend, step_axis
from landscape.report.figures.captions import listed, what_was_run
from landscape.report.figures.families import family
from landscape.report.figures.settings import spread_over
from landscape.report.figures.sources import Drawn, NotDrawnError, Source
from landscape.report.style import HEIGHT, distinct, new_figure
from landscape.text import literal

_MOST = 12
"""Largest number of metrics drawn."""
_SAID = 3
"""Number of metrics in the title."""


@family(11)
def recorded_metrics(sources: Sequence[Source]) -> Drawn:
    """Every metric of the runs recorded from other training loops, over steps."""
    kept = [source for source in sources if source.is_recorded and source.metrics.sizes.get("metric_step")]
    if not kept:
        raise NotDrawnError("no run file given holds metrics recorded from another training loop")
    found = list(dict.fromkeys(str(name) for source in kept for name in source.metrics.data_vars))
    shown = found[:_MOST]
    figure = new_figure(min(2, len(shown)), HEIGHT, -(-len(shown) // 2))
    rows, numbers = [], {}
    for source, colour in zip(kept, distinct(len(kept)), strict=True):
        data, last = source.metrics, []
        for axis, name in zip(figure.axes, shown, strict=False):
            if name in data:
                # A metric is NaN at steps where only others were recorded.
                known = data[name].dropna("metric_step")
                step = known["metric_step"].values
                look: dict[str, Any] = {"color": colour, "marker": "." if len(step) < 30 else ""}
                axis.plot(step, known.values, **look, label=literal(source.label))
                rows.append(source.table(metric=name, step=step, value=known.values))
                last += [f"{name} {known.values[-1]:.4g}"] if len(step) else []
        numbers[source.label] = f"last {', '.join(last)}"
    for axis, name in zip(figure.axes, shown, strict=False):
        axis.set_ylabel(literal(name))
        drawn = np.concatenate([line.get_ydata() for line in axis.get_lines()] or [np.zeros(0)])
        finite = drawn[np.isfinite(drawn)]
        # Values that fall over decades, such as losses, need a logarithmic axis.
        if len(finite) and finite.min() > 0 and finite.max() > 100 * finite.min():
            axis.set_yscale("log")
        step_axis(axis, last_record(kept))
    for axis in figure.axes[len(shown) :]:
        axis.set_axis_off()
    if len(kept) > 1:
        legend(figure.axes[0])
    more = f" Not drawn: {', '.join(found[_MOST:])}." if found[_MOST:] else ""
    caption = f"{what_was_run(kept)}{more} {listed(numbers)}"
    table = pd.concat(rows)
    last = table.groupby(["metric", "run"], sort=False)["value"].last().groupby("metric", sort=False)
    over = spread_over(kept)
    told = [f"{name} {over(values.tolist())}" for name, values in last][:_SAID]
    return Drawn(f"Last recorded: {', '.join(told)}", figure, table, caption, numbers)
