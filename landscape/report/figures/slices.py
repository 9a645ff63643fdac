"""The figure of slices: the objective along eigenvectors and on the plane of the lowest and the highest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from landscape.report.figures.axes import outside_legend
from landscape.report.figures.sources import Drawn
from landscape.report.style import new_figure, palette

if TYPE_CHECKING:
    from landscape.measure.slices import Slices


def slices(found: Slices) -> Drawn:
    """Lines with value + slope t + lambda t^2 / 2 drawn over them, and the plane as contours."""
    figure = new_figure(2, height=3.6)
    lines, plane = figure.axes
    rows, numbers = [], {}
    for i, (name, colour) in enumerate(zip(found.names, palette(len(found.names)), strict=True)):
        model = found.value + found.slope[i] * found.t + 0.5 * found.eigenvalues[i] * found.t**2
        lines.plot(found.t, found.loss[i], color=colour, label=rf"{name}, $\lambda$ = {found.eigenvalues[i]:.3g}")
        lines.plot(found.t, model, "--", color=colour, linewidth=1.0)
        rows.append(pd.DataFrame({"direction": name, "t": found.t, "loss": found.loss[i], "quadratic": model}))
        numbers[name] = f"lambda {found.eigenvalues[i]:.6g}, slope {found.slope[i]:.3g}"
    objective = f"objective{f' ({found.unit})' if found.unit else ''}"
    spread = found.loss.max() - found.loss.min()
    lines.set_ylim(found.loss.min() - 0.1 * spread, found.loss.max() + 0.1 * spread)
    lines.set(xlabel=r"$t$ along the unit eigenvector", ylabel=objective)
    outside_legend(figure, [lines], ncols=2, fontsize="small")
    drawn = plane.contourf(found.plane_t, found.plane_t, found.plane, levels=20, cmap="viridis")
    plane.contour(found.plane_t, found.plane_t, found.plane, levels=[found.value], colors="white", linewidths=1.0)
    plane.plot(0, 0, "o", color="white", markersize=5, markeredgecolor="black")
    plane.set(xlabel=r"$t$ along the highest", ylabel=r"$t$ along the lowest", aspect="equal")
    figure.colorbar(drawn, ax=plane, label=objective)
    at = {"lowest": found.plane_t[:, None], "highest": found.plane_t[None, :], "loss": found.plane}
    flat = {name: np.broadcast_to(x, found.plane.shape).ravel() for name, x in at.items()}
    table = pd.concat([*rows, pd.DataFrame({"direction": "plane", **flat})])
    caption = (
        f"{found.run}, step {found.step}, block {found.block}, objective {found.objective}. Solid: the objective along "
        "unit eigenvectors, not rescaled and not smoothed; dashed: value + slope t + λt²/2, whose λ is the slice's own "
        f"second derivative to {found.agreement:.0e} of ‖H‖. Right: the plane of the lowest and the highest "
        "eigenvector; the white line is the value at the checkpoint."
    )
    return Drawn("Slices along eigenvectors", figure, table, caption, numbers)
