"""The figures of C4: drawn from one row per block of a checkpoint or of a critical point."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from evidence import PHASES, Panel
from matplotlib.axes import Axes

from landscape.report.figures.axes import step_axis
from landscape.report.style import colour, marker, new_figure

PAIRS = ("E,W", "W,V", "E,V")
NAMES = {
    "base": "base (ReLU)",
    "frozenE": "E frozen",
    "frozenW": "W frozen",
    "gelu": "GELU",
    "onehot": "one-hot input",
    "quadratic": "quadratic",
}
LEFT = {"frozenE": "W,V", "frozenW": "E,V"}
"""The pair that is still trained when one factor is frozen."""
PATH = (
    "One line a seed; Hessian of the data loss, float64. Points on the path are no critical points: the gradient is "
    "not zero there."
)
NARROW = {"fontsize": "small", "columnspacing": 1.0, "handlelength": 1.5}
GREY = "Grey: from the median step of 99 % training accuracy to that of 95 % test accuracy."


def draw(axes: Axes, table: pd.DataFrame, column: str, block: str, label: str = "", **line: Any) -> None:
    """One thin line per seed."""
    kept = table[(table["block"] == block) & table[column].notna()]
    for i, (_, seed) in enumerate(kept.groupby("seed")):
        style = {"color": colour(block), "linewidth": 0.8, **marker(block), **line}
        axes.plot(seed["step"], seed[column], label=label or block if i == 0 else None, **style)


def finish(axes: Axes, title: str, table: pd.DataFrame, events: pd.Series | None = None, **labels: Any) -> None:
    """Steps on the x axis, the plateau in grey, a legend."""
    step_axis(axes, int(table["step"].max()))
    if events is not None and events.notna().all():
        axes.axvspan(*events, color="0.9", zorder=0)
    axes.set(title=title, **labels)


def index_figure(table: pd.DataFrame, events: pd.Series, setup: str) -> Panel:
    """Inertia as is and free of the gauge, coupling ratios, gradient norm and tolerance of the base runs."""
    figure = new_figure(2, height=2.7, rows=2)
    index, free, kappa, slope = figure.axes
    for block in ("E", "W", *PAIRS):
        draw(index, table, "index", block)
    for block in ("E,W", "all"):
        draw(free, table, "index", block, f"{block}, as is")
        draw(free, table, "gauge_free", block, f"{block}, gauge-free", linestyle=":", markerfacecolor="none")
    for block in PAIRS:
        draw(kappa, table, "kappa_1", block)
    kappa.axhline(1, color="black", linewidth=0.9, linestyle="--")
    draw(slope, table, "grad_norm", "E,W", "gradient norm")
    draw(slope, table, "tolerance", "E,W", r"tolerance $\tau$", linestyle=":", markerfacecolor="none")
    finish(index, "as is, certified", table, events, ylabel="saddle index", yscale="symlog")
    finish(free, "off the gauge tangents", table, events, ylabel="saddle index", yscale="symlog")
    finish(kappa, "coupling ratio", table, events, ylabel=r"$\kappa_1$", yscale="log")
    finish(slope, "block E,W", table, events, ylabel=r"norm, tolerance", yscale="log")
    for axes in figure.axes:
        axes.legend(ncols=2, **NARROW)
    for axes in (index, free):
        axes.set_ylim(-0.3, 30 * axes.get_ylim()[1])
        axes.set_yticks([0, 1, 10, 100, 1000])
    kappa.set_ylim(0.5, 100 * kappa.get_ylim()[1])
    slope.set_ylim(top=300 * slope.get_ylim()[1])
    kept = table[["seed", "step", "block", "index", "gauge_free", "kappa_1", "grad_norm", "tolerance"]]
    caption = (
        "Saddle index n_- of the blocks over steps, as is and on the complement of the gauge tangents of E and W; the "
        "largest coupling ratio kappa_1, which is above 1 exactly where the pair is indefinite; gradient norm and "
        f"tolerance of block E,W. {setup} {PATH} {GREY}"
    )
    return Panel("index", figure, kept, caption)


def depth_figure(table: pd.DataFrame, events: pd.Series, setup: str) -> Panel:
    """How deep each pair goes, and where the lowest eigenvector of all parameters lies."""
    figure = new_figure(2, height=3.1)
    deep, mass = figure.axes
    table = table.assign(depth=-table["lambda_min"])
    for block in PAIRS:
        draw(deep, table, "depth", block)
    draw(deep, table, "saddle_bound", "E,W", r"bound $\sigma_{\max}(G)$", color="black", linestyle=":", marker="")
    finish(deep, "pairs", table, events, ylabel=r"$-\lambda_{\min}$", yscale="log")
    deep.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=4, **NARROW)
    parts = ("E", "W", "V", "bias")
    share = table[table["block"] == "all"].groupby(["phase", "seed"])[[f"mass_{m}" for m in parts]].mean()
    share = share.groupby("phase").mean().reindex([p for p in PHASES if p in share.index.get_level_values(0)])
    below = np.zeros(len(share))
    for part, hatch in zip(parts, ("", "//", "..", ""), strict=True):
        height = share[f"mass_{part}"].to_numpy()
        shade = "0.8" if part == "bias" else colour(part)
        mass.bar(share.index, height, bottom=below, color=shade, label=part, hatch=hatch, edgecolor="white")
        below = below + height
    mass.set(title="lowest eigenvector of all", ylabel="mass", ylim=(0, 1.25), yticks=[0, 0.5, 1])
    mass.tick_params(axis="x", labelsize="small")
    mass.legend(ncols=4, loc="upper center", **NARROW)
    lines = table[table["block"].isin(PAIRS)][["seed", "step", "block", "depth", "saddle_bound"]]
    caption = (
        f"Left: how deep the lowest eigenvalue of each pair goes, and the bound of E,W. {PATH} {GREY} Right: mass of "
        f"the lowest eigenvector of all parameters on each matrix, mean over the seeds, phase by phase. {setup}"
    )
    return Panel("depth", figure, pd.concat([lines, share.reset_index()]), caption)


def cases_figure(table: pd.DataFrame, setup: str) -> Panel:
    """The index of the pairs where a factor is frozen, with GELU and with one-hot input."""
    figure = new_figure(2, height=2.5, rows=2)
    table = table[table["case"] != "base"]
    for axes, case in zip(figure.axes, ("frozenE", "frozenW", "gelu", "onehot"), strict=True):
        for block in ("E", "W", *PAIRS):
            draw(axes, table[table["case"] == case], "index", block)
        line = {"linestyle": ":", "markerfacecolor": "none"}
        draw(axes, table[table["case"] == case], "gauge_free", "E,W", "E,W, gauge-free", **line)
        still = f", {LEFT[case]} is trained" if case in LEFT else ""
        finish(axes, NAMES[case] + still, table, ylabel="saddle index", yscale="symlog", ylim=(-0.3, 3e5))
        axes.set_yticks([0, 1, 10, 100, 1000])
        # A few late steps: no room is needed for the first ones.
        axes.set(xscale="linear", xlim=(0, 1.1 * table["step"].max()), xticks=[0, *sorted(set(table["step"]))])
        axes.legend(loc="upper left", ncols=3, **NARROW)
    caption = (
        "Saddle index of blocks and pairs where E or W stays at its initial value, with GELU, and with one-hot input, "
        f"which has no E. The index of E,W is that of the full Hessian, whatever is frozen. {setup} {PATH}"
    )
    kept = table[["case", "seed", "step", "block", "index", "gauge_free"]]
    return Panel("cases", figure, kept[kept["block"].isin(("E", "W", *PAIRS))], caption)


def refined_figure(points: pd.DataFrame, setup: str) -> Panel:
    """The gradient norm of each search before and after, and the indices where it ended."""
    order = ["case", "from_step", "seed"]
    searches = points[points["block"] == "E,W"].sort_values(order).reset_index(drop=True)
    figure = new_figure(2, height=1.4 + 0.24 * len(searches))
    slope, index = figure.axes
    draw_searches(slope, searches)
    place = pd.Series(searches.index, index=pd.MultiIndex.from_frame(searches[order]))
    for i, (block, column, fill) in enumerate(
        (("E,W", "index", "full"), ("E,W", "gauge_free", "none"), ("W,V", "index", "full"))
    ):
        rows = points[(points["block"] == block) & (points[column] >= 0)].set_index(order)
        label = f"{block}, gauge-free" if fill == "none" else block
        line = {"color": colour(block), "linestyle": "", "marker": marker(block)["marker"], "fillstyle": fill}
        # One below the other, so that equal ones are all seen.
        index.plot(rows[column], place[rows.index] + 0.25 * (i - 1), label=label, markersize=5, **line)
    names = [f"{NAMES[one.case]}, {one.phase}, step {one.from_step}, seed {one.seed}" for one in searches.itertuples()]
    for axes in figure.axes:
        axes.set(ylim=(len(searches) - 0.5, -0.5), yticks=range(len(searches)), yticklabels=[])
        axes.grid(axis="y", color="0.9")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, **NARROW)
    slope.set_yticklabels(names, fontsize="small")
    slope.set(xlabel="gradient norm", xscale="log")
    index.set(xlabel="saddle index", xscale="symlog", xlim=(-0.3, 9e3), xticks=[0, 1, 10, 100, 1000])
    caption = (
        "Searches for the critical point nearest to a checkpoint, one line each. Left: gradient norm of the loss with "
        "weight decay, all parameters, at the checkpoint and where the search ended; a full diamond is a critical "
        "point, a hollow one is none. Right: certified saddle index there of E,W, as is and on the complement of the "
        f"gauge tangents, and of the control W,V. {setup}"
    )
    kept = [*order, "phase", "status", "grad_norm_before", "grad_norm_after", "block", "index", "gauge_free"]
    return Panel("critical", figure, points.loc[points["block"].isin(("E,W", "W,V")), kept], caption)


def draw_searches(axes: Axes, searches: pd.DataFrame) -> None:
    """From the gradient norm before to that after, a line per search; what ended at a critical point is filled."""
    before, after, at = searches["grad_norm_before"], searches["grad_norm_after"], searches.index
    axes.hlines(at, after, before, color="0.6", linewidth=1)
    axes.plot(before, at, "|", color="black", markersize=9, label="checkpoint")
    for status, fill, label in (("critical", "full", "critical point"), ("", "none", "no critical point")):
        kept = (searches["status"] == "critical") == (status == "critical")
        axes.plot(after[kept], at[kept], "D", color="black", fillstyle=fill, markersize=5, label=label)
