"""Figures of spectra: extreme eigenvalues, full spectra, saddle indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from landscape.figures.sources import Drawn, Source, having, what_was_run
from landscape.plotting import MARKERS, block_colours, new_figure
from landscape.storage.schema import LEVELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS_SHOWN = 4
CURVE_POINTS = 400
"""Points of a drawn cumulative distribution; every eigenvalue is in the Hessian file."""


def step_axis(axis: Axes, last: int) -> None:
    """Steps on an axis that is linear up to 1 and logarithmic above, so that step 0 is seen."""
    axis.set_xscale("symlog", linthresh=1, linscale=0.4)
    axis.set(xlabel="step", xlim=(-0.1, max(last, 1) * 1.3))
    axis.set_xticks([0, *(10**i for i in range(1, len(str(last))))])


def marker(block: str) -> dict[str, Any]:
    """Line style of a block; E is hollow and large, so that W shows inside it where the two coincide."""
    size = {"E": 6.0, "W": 4.5}.get(block, 3.0)
    return {"marker": MARKERS[block], "markersize": size, "markerfacecolor": "none" if block == "E" else None}


def extreme_eigenvalues(sources: Sequence[Source]) -> Drawn:
    """lambda_max and -lambda_min of every block over steps; the saddle bound beside E,W."""
    kept = having(sources, "measured", "eigenvalues")
    colours = block_colours()
    figure = new_figure(2, height=3.2)
    left, right = figure.axes
    shown: set[str] = set()
    indefinite: set[str] = set()
    rows, numbers = [], {}
    for source in kept:
        data = source.measured
        assert data is not None
        step = data["step"].values
        for block in map(str, data["block"].values):
            values = data["eigenvalues"].sel(block=block, rank=0)
            low, high = values.sel(end="lowest").values, values.sel(end="highest").values
            label = block if source is kept[0] else None
            left.plot(step, high, color=colours[block], label=label, **marker(block))
            norm = data["operator_norm"].sel(block=block).values
            # Rounding noise of a semidefinite block is no negative curvature.
            negative = np.where(low < -1e-12 * norm, -low, np.nan)
            shown.add(block)
            if np.isfinite(negative).any():
                indefinite.add(block)
                right.plot(step, negative, color=colours[block], label=label, **marker(block))
            rows.append(
                pd.DataFrame({"run": source.label, "step": step, "block": block, "lambda_min": low, "lambda_max": high})
            )
            numbers[f"{source.label}, {block}"] = f"lambda_min from {low[0]:.4g} to {low[-1]:.4g}"
        bound = data["saddle_bound"].values
        if np.isfinite(bound).any():
            label = r"$\sigma_{\max}(G)$, bound of E,W" if source is kept[0] else None
            right.plot(step, bound, "--", color=colours["E,W"], linewidth=1.1, label=label)
            rows.append(
                pd.DataFrame({"run": source.label, "step": step, "block": "saddle_bound", "lambda_min": -bound})
            )
        step_axis(left, int(step[-1]))
        step_axis(right, int(step[-1]))
    left.set(ylabel=r"$\lambda_{\max}$", yscale="log")
    right.set(ylabel=r"$-\lambda_{\min}$ where negative", yscale="log")
    for axis in figure.axes:
        axis.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
    table = pd.concat(rows)
    semidefinite = [block for block in colours if block in shown and block not in indefinite]
    caption = (
        f"{what_was_run(kept)} Objective: {kept[0].hessian_attrs['objective']}, float64, whole training set. "
        f"λ_min ≥ −1e-12·‖H‖ at every step: {', '.join(semidefinite) or 'no block'}. W,V is the control beside the "
        "claim about E,W; −σ_max(G) bounds λ_min of E,W from below (F14, ReLU and data loss only)."
    )
    return Drawn("Extreme eigenvalues per block", figure, table, caption, numbers)


def spectra(sources: Sequence[Source]) -> Drawn:
    """All eigenvalues of the dense blocks at a few steps, as cumulative distributions on a symmetric log axis."""
    import seaborn as sns

    kept = having(sources, "spectra")[:1]
    source = kept[0]
    data = source.spectra
    assert data is not None
    blocks = [str(name) for name in data.data_vars if name != "crc32"]
    having(kept, "spectra", *(blocks or ["spectrum"]))
    step = data["step"].values
    shown = np.unique(np.linspace(0, len(step) - 1, min(STEPS_SHOWN, len(step))).round().astype(int))
    columns = min(3, len(blocks))
    figure = new_figure(columns, height=2.6, rows=-(-len(blocks) // columns))
    palette = sns.color_palette("viridis", len(shown))
    rows, numbers = [], {}
    threshold = 1e-4 * max(float(np.abs(data[b].values).max()) for b in blocks)
    for axis, block in zip(figure.axes, blocks, strict=False):
        for i, colour in zip(shown, palette, strict=True):
            values = data[block].values[i]
            at = np.unique(np.linspace(0, len(values) - 1, CURVE_POINTS).round().astype(int))
            curve = {"eigenvalue": values[at], "share_below": (at + 1) / len(values)}
            axis.step(curve["eigenvalue"], curve["share_below"], color=colour, label=f"step {step[i]}")
            rows.append(pd.DataFrame({"run": source.label, "block": block, "step": step[i], **curve}))
            numbers[f"{block}, step {step[i]}"] = f"{len(values)} eigenvalues in [{values[0]:.4g}, {values[-1]:.4g}]"
        axis.axvline(0, color="0.7", linewidth=0.8, zorder=0)
        axis.set_xscale("symlog", linthresh=threshold)
        axis.set(title=f"block {block}", xlabel="eigenvalue", ylabel="share below", ylim=(-0.02, 1.02))
        exponents = range(int(np.ceil(np.log10(threshold))), 3, 2)
        axis.set_xticks([s * 10.0**e for s in (-1, 1) for e in exponents] + [0])
        limit = max(float(np.abs(data[block].values).max()), threshold) * 2
        axis.set_xlim(min(-2 * threshold, float(data[block].values.min()) * 2), limit)
        axis.tick_params(axis="x", labelrotation=45)
    for axis in figure.axes[len(blocks) :]:
        axis.set_axis_off()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(shown))
    caption = (
        f"{what_was_run(kept)} {source.label}: every eigenvalue of each dense block, objective "
        f"{source.hessian_attrs['objective']}. The axis is linear within ±{threshold:.1e}. "
        "What lies left of 0 is negative curvature; the saddle index counts it beyond a tolerance."
    )
    return Drawn("Full spectra", figure, pd.concat(rows), caption, numbers)


def saddle_index(sources: Sequence[Source]) -> Drawn:
    """The saddle index of every block over steps with its bracket, beside tolerance and gradient norm."""
    kept = having(sources, "measured", "inertia")
    colours = block_colours()
    figure = new_figure(3, height=3.2)
    index, tolerance, gradient = figure.axes
    rows, numbers = [], {}
    for source in kept:
        data = source.measured
        assert data is not None
        step = data["step"].values
        for block in map(str, data["block"].values):
            part = data.sel(block=block)
            count = part["inertia"].sel(sign="negative").values
            lower, upper = part["inertia_lower"].values, part["inertia_upper"].values
            label = block if source is kept[0] else None
            known = np.where(count >= 0, count, np.nan)
            index.plot(step, known, color=colours[block], label=label, **marker(block))
            if (count < 0).any():
                index.fill_between(step, lower, upper, color=colours[block], alpha=0.2, linewidth=0)
            free = part["saddle_index_gauge_free"].values
            if (free >= 0).any():
                index.plot(step, np.where(free >= 0, free, np.nan), "--", color=colours[block], linewidth=1.0)
            tolerance.plot(step, part["inertia_tolerance"].values, color=colours[block], **marker(block))
            gradient.plot(step, part["grad_norm"].values, color=colours[block], **marker(block))
            levels = [LEVELS[i] for i in part["inertia_level"].values]
            rows.append(
                pd.DataFrame(
                    {
                        "run": source.label,
                        "step": step,
                        "block": block,
                        "saddle_index": count,
                        "saddle_index_gauge_free": free,
                        "lower": lower,
                        "upper": upper,
                        "level": levels,
                        "tolerance": part["inertia_tolerance"].values,
                        "grad_norm": part["grad_norm"].values,
                    }
                )
            )
            certified = sum(level == "certified" for level in levels)
            numbers[f"{source.label}, {block}"] = (
                f"index {lower[0]} to {upper[0]} at step {step[0]}, {lower[-1]} to {upper[-1]} at step {step[-1]}; "
                f"certified at {certified} of {len(step)} steps"
                + (f"; gauge-free {free.min()} to {free.max()}" if (free >= 0).all() else "")
            )
        for axis in figure.axes:
            step_axis(axis, int(step[-1]))
    index.set_ylabel(r"saddle index $n_-$")
    index.set_yscale("symlog", linthresh=1)
    index.set_ylim(-0.3, 2 * index.get_ylim()[1])
    tolerance.set(ylabel=r"tolerance $\tau$", yscale="log")
    gradient.set(ylabel="gradient norm of the block", yscale="log")
    handles, labels = index.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    smallest = min(float(s.measured["grad_norm"].min()) for s in kept if s.measured is not None)
    caption = (
        f"{what_was_run(kept)} Eigenvalues below −τ, objective {kept[0].hessian_attrs['objective']}; shaded where only "
        "a bracket is known; dashed: on the complement of the gauge directions of E and W. These are points on a "
        f"training path, not critical points: the smallest gradient norm of a block is {smallest:.2g}."
    )
    return Drawn("Saddle index", figure, pd.concat(rows), caption, numbers)
