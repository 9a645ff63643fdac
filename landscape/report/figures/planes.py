"""The figure of a loss plane: contours, and the path of the training where the plane is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator

from landscape.report.figures.panels import Drawn, Plain, readable_number, subplots
from landscape.report.words import digits, percent
from landscape.results import contours

if TYPE_CHECKING:
    from landscape.measure.planes import LossPlane


def plane(measured: LossPlane) -> Drawn:
    """Contours of the objective, with the checkpoints of the path."""
    figure, (axis,) = subplots(1, height=3.3)
    unit = f" ({measured.unit})" if measured.unit else ""
    drawn = contours(axis, measured.t, measured.t_second, measured.loss, measured.value)
    colour_bar(figure, axis, drawn, f"objective{unit}")
    columns, rows = np.meshgrid(measured.t, measured.t_second)
    grid = {"part": "plane", "first": columns.ravel(), "second": rows.ravel(), "loss": measured.loss.ravel()}
    parts = [pd.DataFrame(grid)]
    ends = " to ".join(digits(end) for end in (measured.loss.min(), measured.loss.max()))
    if measured.steps:
        x, y = measured.coordinates.T
        first, second = (percent(share) for share in measured.share)
        axis.plot(x, y, "-o", color="white", markersize=3.5, markeredgecolor="black", markeredgewidth=0.6)
        for i, beside, side in ((0, 1, "left"), (-1, -2, "right")):
            is_above = y[i] >= y[beside]
            axis.annotate(
                f"step {measured.steps[i]:,}",
                (x[i], y[i]),
                xytext=(0, 6 if is_above else -6),
                textcoords="offset points",
                ha=side,
                va="bottom" if is_above else "top",
                color="black",
                fontsize="small",
                path_effects=[withStroke(linewidth=2, foreground="white")],
            )
        axis.set(xlabel=f"component 1 ({first} of the variance)", ylabel=f"component 2 ({second} of the variance)")
        finding = f"two components hold {percent(measured.share.sum())} of the path's variance; loss {ends}"
        path = {"part": "path", "step": measured.steps, "first": x, "second": y, "outside": measured.outside}
        parts.append(pd.DataFrame(path))
    else:
        step = "step" if measured.normalisation == "none" else f"{measured.normalisation}-normalised step"
        units = {"filter": " (filter norms)", "layer": " (layer norms)"}.get(measured.normalisation, "")
        axis.set(xlabel=f"first direction{units}", ylabel=f"second direction{units}")
        finding = f"{digits(measured.value)} at the checkpoint, {ends} within {digits(measured.t[-1])} {step}"
    axis.plot(0, 0, "o", color="white", markersize=6, markeredgecolor="black")
    names = ("length", "slope", "curvature", "share")
    numbers = (measured.lengths, measured.slope, measured.curvature, measured.share)
    directions = {"part": ["first direction", "second direction"], **dict(zip(names, numbers, strict=True))}
    parts.append(pd.DataFrame(directions))
    title = f"{measured.run}, step {measured.step}, block {measured.block}: {finding}"
    return Drawn(title, figure, pd.concat(parts, ignore_index=True))


def colour_bar(figure: Figure, axis: Axes, drawn: Any, label: str) -> None:
    """The colour bar of contours, with ticks that people read."""
    bar = figure.colorbar(drawn, ax=axis, label=label)
    if not isinstance(drawn.norm, LogNorm):
        bar.ax.yaxis.set_major_formatter(Plain())
        return
    low, high = drawn.levels[0], drawn.levels[-1]
    bar.set_ticks(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)).tick_values(low, high))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda x, _: readable_number(x)))
    bar.ax.set_ylim(low, high)
