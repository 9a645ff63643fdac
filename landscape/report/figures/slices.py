"""The figure of slices: the objective along eigenvectors and on the plane of the lowest and the highest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import seaborn as sns

from landscape.report.figures.panels import Drawn, legend, subplots
from landscape.report.figures.planes import colour_bar
from landscape.report.style import palette
from landscape.report.words import digits
from landscape.results import contours

if TYPE_CHECKING:
    from landscape.measure.slices import Slices


def slices(measured: Slices) -> Drawn:
    """Lines with value + slope·t + λt²/2 drawn over them, and the plane as contours."""
    unit = f" ({measured.unit})" if measured.unit else ""
    parts = []
    for i, name in enumerate(measured.names):
        t, value = measured.t, measured.eigenvalues[i]
        quadratic = measured.value + measured.slope[i] * t + 0.5 * value * t**2
        label = f"{name}, λ = {digits(value)}"
        for curve, loss in (("objective", measured.loss[i]), ("quadratic", quadratic)):
            parts.append(pd.DataFrame({"direction": label, "curve": curve, "t": t, "loss": loss}))
    table = pd.concat(parts, ignore_index=True)
    figure, (lines, plane) = subplots(2, height=3.4)
    sns.lineplot(
        table,
        x="t",
        y="loss",
        hue="direction",
        palette=palette(table["direction"]),
        style="curve",
        errorbar=None,
        ax=lines,
    )
    around = 0.1 * np.ptp(measured.loss)
    lines.set_ylim(measured.loss.min() - around, measured.loss.max() + around)
    lines.set(xlabel="t along the unit eigenvector", ylabel=f"objective{unit}")
    drawn = contours(plane, measured.plane_t, measured.plane_t, measured.plane, measured.value)
    colour_bar(figure, plane, drawn, f"objective{unit}")
    plane.plot(0, 0, "o", color="white", markersize=5, markeredgecolor="black")
    plane.set(xlabel="t along the highest", ylabel="t along the lowest", aspect="equal")
    legend(figure, [lines])
    low, high = np.meshgrid(measured.plane_t, measured.plane_t, indexing="ij")
    flat = {"direction": "plane", "lowest": low.ravel(), "highest": high.ravel(), "loss": measured.plane.ravel()}
    ends = " to ".join(digits(end) for end in (measured.eigenvalues.min(), measured.eigenvalues.max()))
    title = f"{measured.run}, step {measured.step}, block {measured.block}: λ from {ends}"
    return Drawn(title, figure, pd.concat([table, pd.DataFrame(flat)]))
