"""The figures of C6: top eigenvalues with the events, and the events against each other."""

from __future__ import annotations

import numpy as np
import pandas as pd
from c5_measures import CASES
from c6_measures import RISEN
from evidence import MEMORISED, Panel

from landscape.report.figures.axes import step_axis
from landscape.report.style import colour, marker, new_figure

TOGETHER = 2.0
"""Factor between the steps of two events that count as one."""


def curves_figure(table: pd.DataFrame, found: pd.DataFrame, setup: str) -> Panel:
    """Top eigenvalues over steps with the events, one panel per seed under Adam."""
    figure = new_figure(3, height=2.4, rows=2)
    adam, rows = table[table["case"] == "c1"], found[found["case"] == "c1"]
    panels = list(figure.axes)
    for axes, (_, row) in zip(panels, rows.iterrows(), strict=False):
        for block in ("W", "E"):
            part = adam[(adam["seed"] == row["seed"]) & (adam["block"] == block)]
            axes.plot(
                part["step"],
                part["lambda_max"],
                color=colour(block),
                label=block,
                **marker(block) | {"markersize": 3.0},
            )
            line = {"color": colour(block), "linewidth": 1.2, "linestyle": {"W": "-", "E": "-."}[block]}
            axes.axvline(row[f"fall_{block}"], label=f"{block} starts to fall", **line)
        axes.axvline(row["train"], color="black", linestyle="--", linewidth=1.0, label="training done")
        axes.axvline(row["test"], color="black", linestyle=":", linewidth=1.4, label="test risen")
        step_axis(axes, int(adam["step"].max()))
        axes.set(title=f"seed {row['seed']}", yscale="log", ylabel=r"$\lambda_{\max}$")
    for axes in panels[len(rows) :]:
        axes.axis("off")
    last = panels[min(len(rows), len(panels) - 1)]
    last.legend(*panels[0].get_legend_handles_labels(), loc="center", fontsize="small")
    caption = (
        "Top eigenvalues of the blocks W and E under Adam, one panel a seed, and when they start to fall, when "
        f"training accuracy reaches {100 * MEMORISED:g} % and test accuracy {100 * RISEN:g} %. {setup} Hessian of the "
        "data loss in float64, at points that are not critical."
    )
    return Panel("curves", figure, adam[["seed", "step", "block", "lambda_max"]], caption)


def events_figure(found: pd.DataFrame, setup: str) -> Panel:
    """Each accuracy event against the fall of each block, one point per run."""
    figure = new_figure(2, height=3.4)
    titles = {"train": f"training {100 * MEMORISED:g} %", "test": f"test {100 * RISEN:g} %"}
    span = found[["train", "test", "fall_E", "fall_W"]].to_numpy()
    ends = np.array([np.nanmin(span) / 2, np.nanmax(span) * 2])
    for axes, (event, title) in zip(figure.axes, titles.items(), strict=True):
        axes.plot(ends, ends, color="0.5", linewidth=1)
        axes.fill_between(ends, ends / TOGETHER, ends * TOGETHER, color="0.9", zorder=0)
        for block, shape in (("W", "s"), ("E", "o")):
            for case, name in CASES.items():
                part = found[found["case"] == case]
                face = colour(block) if case == "c1" else "none"
                style = {"marker": shape, "linestyle": "none", "color": colour(block), "markerfacecolor": face}
                axes.plot(part[f"fall_{block}"], part[event], label=f"{block}, {name}", **style)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title=title)
        axes.set(xlabel=r"step at which $\lambda_{\max}$ starts to fall", ylabel="step of the event")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    caption = (
        f"Step at which accuracy gets there against the step at which the top eigenvalue of W and of E starts to fall, "
        f"one point a run and block. Grey: within a factor of {TOGETHER:g}. "
        f"{found['test'].isna().sum()} of {len(found)} runs never came to {100 * RISEN:g} % test accuracy. {setup}"
    )
    return Panel("events", figure, found, caption)
