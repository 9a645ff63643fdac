"""What figures share: panels of quantities over steps, axes that people read, and one legend below."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogFormatter, ScalarFormatter

from landscape.files.runs import GROKKED, MEMORISED
from landscape.report.numbers import claimed
from landscape.report.sources import Frames
from landscape.report.style import GREY, HEIGHT, NARROW, SPLITS, WIDTH, markers, palette
from landscape.report.words import median_step
from landscape.text import literal, printable

Scale = Literal["linear", "log", "symlog", "share"]
FEW = 50
"""Steps of a line up to which each has a marker."""
EVENTS = {
    "memorised": (f"{100 * MEMORISED:.0f} % training accuracy", ":"),
    "grokked": (f"{100 * GROKKED:.0f} % test accuracy", "--"),
}
"""The events of a run: what they are called in legends, and their line styles."""
_ROW = 3
"""Panels beside each other."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A figure, what it shows as a title, and the data drawn."""

    title: str
    figure: Figure
    data: pd.DataFrame


@dataclasses.dataclass(frozen=True)
class Panel:
    """A quantity over steps.

    name: of the quantity, in CSV files; label: of its axis, with the unit; data: columns run, setting, step, value and
    the one that tells lines apart, in as many rows a step as there are bounds; line: a value that is compared with.
    """

    name: str
    label: str
    data: pd.DataFrame
    scale: Scale = "linear"
    line: float | None = None


def long(table: pd.DataFrame, by: str, *columns: str) -> pd.DataFrame:
    """Columns of a table as `value`, in a row each."""
    labels = [name for name in ("run", "setting", "seed", "step", by) if name in table]
    values = table.melt(labels, list(columns), "column", "value").drop(columns="column")
    values["value"] = pd.to_numeric(values["value"]).astype(float)
    return values[np.isfinite(values["value"])]


def over_steps(frames: Frames, panels: Sequence[Panel], by: str) -> tuple[Figure, pd.DataFrame] | None:
    """Draw panels over steps, with their data; None where no panel has two steps.

    A line is the median over the runs of a setting, its band reaches from the smallest to the largest value, bounds of
    counts included. Colours are of `by`; of several settings each has a colour, and each value of `by` a panel.
    """
    panels = [_regular(panel, by) for panel in panels]
    panels = [panel for panel in panels if panel.data["step"].nunique() > 1]
    if not panels:
        return None
    titles = [""] * len(panels)
    data = pd.concat([panel.data.assign(quantity=panel.name) for panel in panels], ignore_index=True)
    hue = by
    if data["setting"].nunique() > 1:
        hue = "setting"
        each = [(panel, name) for panel in panels for name in claimed(panel.data[by].unique())[:2]]
        titles = [str(name) for _, name in each]
        panels = [dataclasses.replace(panel, data=panel.data[panel.data[by] == name]) for panel, name in each]
        panels, titles = panels[: 2 * _ROW], titles[: 2 * _ROW]
    names = list(dict.fromkeys(str(name) for panel in panels for name in panel.data[hue]))
    colours, shapes = looks(frames, names)
    figure, axes = subplots(len(panels))
    for axis, panel, title in zip(axes, panels, titles, strict=True):
        lines(axis, panel.data, hue, colours, shapes)
        axis.set(ylabel=panel.label, title=label(title))
        scaled(axis, panel.scale)
        if panel.line is not None:
            axis.axhline(panel.line, color=GREY, linewidth=0.9, linestyle="--", zorder=0)
        step_axis(axis, panel.data["step"].max())
        if hue == by:
            events(axis, frames)
    legend(figure, axes)
    return figure, data


def _regular(panel: Panel, by: str) -> Panel:
    """The panel at the steps that at least half of the runs of a setting have, so that its medians are of one kind."""
    data = panel.data
    if panel.scale == "log":
        data = data[data["value"] > 0]
    runs = data.groupby("setting")["run"].transform("nunique")
    here = data.groupby(["setting", "step", by])["run"].transform("nunique")
    kept = data[2 * here >= runs]
    # Runs without common steps are drawn one by one.
    is_common = kept.groupby("setting")["step"].nunique().reindex(data["setting"].unique(), fill_value=0) > 1
    return dataclasses.replace(panel, data=kept if is_common.all() else data.assign(setting=data["run"]))


def lines(
    axis: Axes, data: pd.DataFrame, hue: str, colours: Mapping[str, Any], shapes: Mapping[str, str], x: str = "step"
) -> None:
    """Draw `value` over steps: medians with bands from the smallest to the largest."""
    shown = data.assign(**{hue: data[hue].map(label)})
    names = [name for name in map(label, colours) if name in set(shown[hue])]
    few = data.groupby(hue)[x].nunique().max() <= FEW
    # An estimate of one value a step takes seaborn long, and is this value.
    is_one = not shown.duplicated([hue, x]).any()
    sns.lineplot(
        shown,
        x=x,
        y="value",
        hue=hue,
        hue_order=names,
        palette={label(name): colour for name, colour in colours.items()},
        style=hue,
        style_order=names,
        markers={label(name): shape for name, shape in shapes.items()} if few else False,
        dashes=False,
        estimator=None if is_one else "median",
        errorbar=None if is_one else ("pi", 100),
        markersize=4,
        markeredgewidth=0,
        ax=axis,
    )


def label(name: object) -> str:
    """A name of a file in a plot, as its letters."""
    return literal(printable(name))


def looks(frames: Frames, names: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """A colour and a marker for each name; a block and a split have the same in all figures of a report."""
    names = list(names)
    blocks = [] if "by_step_block" not in frames else [*map(str, frames["by_step_block"]["block"].unique())]
    listed = [*SPLITS, *(blocks if set(blocks) & set(names) else ()), *names]
    return palette(listed), markers(listed)


def subplots(count: int, height: float = HEIGHT, columns: int = _ROW) -> tuple[Figure, list[Axes]]:
    """An empty figure with panels in rows."""
    columns = 2 if count == 4 and columns == _ROW else min(count, columns)
    rows = math.ceil(count / columns)
    # A pixel is then a point, the unit of SVG.
    width = WIDTH if columns > 1 else NARROW
    figure = Figure(figsize=(width, height * rows), dpi=72, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[count:]:
        axis.set_axis_off()
    return figure, axes[:count]


def step_axis(axis: Axes, last: float) -> None:
    """Steps on an axis that is linear up to 1 and logarithmic above, so that step 0 is seen."""
    axis.set_xscale("symlog", linthresh=1, linscale=0.4)
    axis.set(xlabel="training step", xlim=(-0.1, max(last, 1) * 1.3))
    powers = range(len(str(int(last))))
    axis.set_xticks([0, *(10.0**i for i in powers[:: 1 if len(powers) < 5 else 2])])
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _thousands(x)))


def scaled(axis: Axes, scale: Scale) -> None:
    """Give the vertical axis a scale, and ticks that people read."""
    low, high = axis.dataLim.intervaly
    if scale == "share":
        axis.set_ylim(min(-0.03, 1.05 * low), 1.03 if high > 0.5 else 1.1 * high)
        axis.yaxis.set_major_formatter(PERCENT)
    elif scale == "linear":
        axis.yaxis.set_major_formatter(Plain())
    elif scale == "log":
        axis.set_yscale("log")
        readable(axis.yaxis)
    elif scale == "symlog":
        axis.set_yscale("symlog", linthresh=1)
        axis.set_ylim(-0.3 if low >= 0 else 2 * low, max(2, 2 * high))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda x, _: _thousands(x)))


PERCENT = FuncFormatter(lambda x, _: f"{100 * x:g} %".replace("-", "−"))
"""Shares as 40 %."""


class Plain(ScalarFormatter):
    """Ticks of a linear axis as 0.20 and 1,000."""

    def __init__(self) -> None:
        super().__init__(useOffset=False)
        self.set_powerlimits((-4, 7))

    def __call__(self, x: float, pos: int | None = None) -> str:
        return _thousands(x) if abs(x) >= 1000 else str(super().__call__(x, pos))


def readable(axis: Axis) -> None:
    """Ticks of a logarithmic axis as 0.02 instead of 2×10⁻²."""
    axis.set_major_formatter(_Readable())
    axis.set_minor_formatter(_Readable(labelOnlyBase=False, minor_thresholds=(1, 0.4)))


def readable_number(x: float) -> str:
    """A number as 0.02; a power of ten where that would be long."""
    if x == 0 or 1e-4 <= abs(x) < 1e6:
        return f"{x:,g}".replace("-", "−")
    power = math.floor(math.log10(abs(x)) + 1e-9)
    factor = x / 10**power
    shown = {1: "", -1: "−"}.get(round(factor, 6), f"{factor:g}×".replace("-", "−"))
    return f"{shown}10{str(power).translate(_RAISED)}"


def power_of_ten(x: float) -> str:
    """A power of ten as 10⁻²; 1 as itself."""
    power = round(math.log10(x))
    return f"10{str(power).translate(_RAISED)}" if power else "1"


_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


class _Readable(LogFormatter):
    """The labels that Matplotlib shows, as readable numbers."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return readable_number(x) if super().__call__(x, pos) else ""


def _thousands(x: float) -> str:
    return f"{x:,.0f}".replace("-", "−")


def events(axis: Axes, frames: Frames) -> None:
    """Lines at the median steps of the events of runs; none at an event that half of them lack."""
    for event, (label, dashes) in EVENTS.items():
        steps = [None if pd.isna(step) else int(step) for step in frames["runs"][event]]
        if math.isfinite(step := median_step(steps)):
            axis.axvline(step, color=GREY, linewidth=1.1, linestyle=dashes, zorder=0, label=label)


def legend(figure: Figure, axes: Iterable[Axes], title: str = "") -> None:
    """One legend below all panels, with each label once; the figure grows with its rows."""
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            # seaborn's titles of the parts of a legend are white lines without a width.
            if not (isinstance(handle, Line2D) and handle.get_linewidth() == 0 and handle.get_color() == "w"):
                handles.setdefault(label, handle)
        if own := axis.get_legend():
            own.remove()
    if not handles:
        return
    last = [label for label, _ in EVENTS.values()]
    handles = dict(sorted(handles.items(), key=lambda entry: entry[0] in last))
    widest = max(map(len, handles))
    columns = max(1, min(len(handles), 6, int(100 * figure.get_figwidth() / WIDTH) // (6 + widest)))
    figure.set_figheight(figure.get_figheight() + 0.2 * (math.ceil(len(handles) / columns) + bool(title)))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, title=title, handletextpad=0.5)
