"""Figures of several runs: a colour a setting, the median over its runs, and a band over all of them."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from landscape.report.figures.axes import (
    EVENTS,
    EVENTS_OF_RUNS,
    has_events,
    lines_of_events,
    nothing,
    outside_legend,
    step_axis,
)
from landscape.report.figures.numbers import claimed
from landscape.report.figures.settings import settings
from landscape.report.figures.sources import Source
from landscape.report.style import distinct, new_figure
from landscape.text import literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BANDS = "Colours: settings; lines: medians over their runs; bands: from the smallest to the largest."
"""What captions say of these figures."""

_LINE = 96
"""Letters of a legend that fit below a figure."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """Columns of a table of runs by step: a number, or its lower and its upper bound."""

    label: str
    rows: pd.DataFrame
    columns: Sequence[str]
    title: str = ""
    scale: str = "log"


def lines(sources: Sequence[Source]) -> str:
    """What captions say of the lines of these sources, with a space before each sentence."""
    if are_several(sources):
        come = any(has_events(group.sources) for group in settings(sources))
        return f" {BANDS}" + f" {EVENTS_OF_RUNS}" * come
    return f" {EVENTS}" * has_events(sources)


def are_several(sources: Sequence[Source]) -> bool:
    """Whether the sources belong to more than one run."""
    return len({source.run_id for source in sources}) > 1


def several(sources: Sequence[Source], panels: Sequence[Panel]) -> Figure:
    """Every panel over steps, two in a row."""
    groups = settings(sources)
    figure = new_figure(min(2, len(panels)), 2.6, -(-len(panels) // 2))
    for axis, panel in zip(figure.axes, panels, strict=False):
        last = 1
        for group, colour in zip(groups, distinct(len(groups)), strict=True):
            steps, low, middle, high = band(group.of(panel.rows), panel.columns)
            if not len(steps):
                continue
            label = textwrap.fill(literal(group.label), _LINE)
            axis.plot(steps, middle, color=colour, label=label, marker="." if len(steps) < 30 else "")
            axis.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
            lines_of_events(axis, group.sources, colour, len(groups) == 1)
            last = max(last, int(steps[-1]))
        if not axis.lines:
            nothing(axis, "\n".join(filter(None, (panel.title, f"{panel.label}:", "none known"))))
            continue
        axis.set(ylabel=panel.label, title=panel.title)
        axis.set_yscale(panel.scale, **({"linthresh": 1} if panel.scale == "symlog" else {}))
        if panel.scale == "symlog":
            axis.set_ylim(min(0, axis.get_ylim()[0]), max(2, 2 * axis.get_ylim()[1]))
        step_axis(axis, last)
    for axis in figure.axes[len(panels) :]:
        axis.set_axis_off()
    outside_legend(figure, figure.axes)
    return figure


def band(rows: pd.DataFrame, columns: Sequence[str]) -> tuple[NDArray[np.float64], ...]:
    """Steps, and the smallest, median and largest value of the runs there; a run is interpolated between its steps."""
    known = rows[["run", "step", *columns]].dropna().astype(dict.fromkeys(columns, float)).sort_values("step")
    steps = np.unique(known["step"].to_numpy(float))
    if not len(steps):
        return (np.empty(0),) * 4
    runs = [run for _, run in known.groupby("run")]
    curves = [np.interp(steps, run["step"], run[name], left=np.nan, right=np.nan) for run in runs for name in columns]
    values = np.stack(curves)
    return steps, np.nanmin(values, 0), np.nanmedian(values, 0), np.nanmax(values, 0)


def pair_panels(table: pd.DataFrame, by: str, shown: Sequence[tuple[str, str, Sequence[str]]]) -> list[Panel]:
    """A panel for each of `shown` and each of the claim's pairs in a table, else for its first two names.

    shown: label, scale and columns.
    """
    names = list(dict.fromkeys(table[by].astype(str)))
    chosen = claimed(name for name in names if "," in name)[:2] or names[:2]
    return [
        Panel(label, table[table[by] == name], columns, f"{by} {literal(name)}", scale)
        for label, scale, columns in shown
        for name in chosen
    ]
