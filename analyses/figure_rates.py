"""Over the whole grid the rate of all else counts for more than that of E

As panel c of the first figure, at both sizes; line: σ_max(E)/σ_max(W) at equal rates.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from primary import STEP, by_diagonal, grids
from tables import Scale, main, scales


def surface(axis: Axes, scale: Scale) -> None:
    """Draw the grid of a size."""
    steps = pd.DataFrame(grids(scale)).fillna(np.inf).median(axis=1).replace(np.inf, np.nan)
    table = steps.unstack("lr")
    edges = [np.r_[of / STEP**0.5, of[-1] * STEP**0.5] for of in (table.columns.to_numpy(), table.index.to_numpy())]
    mesh = axis.pcolormesh(*edges, table, cmap="viridis_r", norm=mpl.colors.LogNorm(), rasterized=False)
    bar = axis.figure.colorbar(mesh, ax=axis, label="step of grokking")
    bar.ax.yaxis.set_major_formatter("{x:g}")
    bar.ax.yaxis.set_minor_formatter(mpl.ticker.FuncFormatter(lambda x, _: f"{x:g}" if f"{x:g}"[0] in "25" else ""))
    best = [of.loc[of["step"].idxmin()] for of in by_diagonal(steps).values()]
    axis.plot([of["lr"] for of in best], [of["lr_E"] for of in best], "o", color="#d55e00", ms=5, label="best")
    ratio = scale.runs("rates", lr_E=0.01, lr=0.01)["sigma_ratio"].median()
    x = np.array([edges[0][0], edges[0][-1]])
    axis.plot(x, ratio * x, color="#d55e00", lw=1.5, label="Proposition 4.1")
    axis.plot(x, x, color="0.3", lw=1, ls="--", label="equal rates")
    axis.set(xscale="log", yscale="log", xlabel="η of all else", ylabel="η of E", xlim=x, ylim=edges[1][[0, -1]])
    axis.grid(visible=False)


def figure(root: Path) -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, scale in zip(axes, scales(root, ("quick", "mid")), strict=True):
        surface(axis, scale)
        axis.set_title(scale.name)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


if __name__ == "__main__":
    main(figure)
