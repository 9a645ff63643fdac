"""Figures of spectra: extreme eigenvalues, full spectra, saddle indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from landscape.files.schema import LEVELS
from landscape.models.embedding_mlp.blocks import BALANCED, CLAIM
from landscape.report.figures.axes import legend_below, nothing, outside_legend, over_steps
from landscape.report.figures.captions import control, objectives, what_was_run, where
from landscape.report.figures.families import family
from landscape.report.figures.numbers import bracket, claimed, digits, is_negative, place
from landscape.report.figures.numbers import numbers as key_numbers
from landscape.report.figures.settings import spread_over
from landscape.report.figures.several import are_several, lines, pair_panels, several
from landscape.report.figures.sources import Drawn, NotDrawnError, Source, having
from landscape.report.style import colour, marker, new_figure, shades
from landscape.text import literal

STEPS_SHOWN = 4
BOUND_OF_TOKENS = {"operands": ":", "constants": "-."}
"""Line style of the saddle bound's part on some tokens."""
CURVE_POINTS = 400
"""Points of a drawn cumulative distribution; the Hessian file holds every eigenvalue."""


@family(20)
def extreme_eigenvalues(sources: Sequence[Source]) -> Drawn:
    """lambda_max and -lambda_min of every block over steps, and the saddle bound of its pair."""
    kept = having(sources, "measured", "eigenvalues")
    figure = new_figure(2, height=3.2)
    left, right = figure.axes
    semidefinite: dict[str, bool] = {}
    rows, numbers, has_constants = [], {}, False
    depths: list[pd.DataFrame] = []
    for source in kept:
        data = source.measured
        step = data["step"].values
        for block in source.blocks():
            values = data["eigenvalues"].sel(block=block, rank=0)
            low, high = values.sel(end="lowest").values, values.sel(end="highest").values
            left.plot(step, high, color=colour(block), label=literal(block), **marker(block))
            negative = np.where(is_negative(low, data["operator_norm"].sel(block=block).values), -low, np.nan)
            # What a search that has not converged found is at most as deep as the lowest eigenvalue.
            is_bound = np.isfinite(low) & (data["converged"].sel(block=block, end="lowest", rank=0).values == 0)
            depths.append(source.table(step=step, block=block, lambda_max=high, depth=negative, is_bound=is_bound))
            has_negative = bool(np.isfinite(negative).any())
            semidefinite[block] = semidefinite.get(block, True) and not (has_negative or is_bound.any())
            if has_negative:
                right.plot(step, negative, color=colour(block), label=literal(block), **marker(block))
            rows.append(source.table(step=step, block=block, lambda_min=low, lambda_max=high))
            if len(known := low[np.isfinite(low)]):
                numbers[f"{source.label}, {block}"] = f"lambda_min from {known[0]:.4g} to {known[-1]:.4g}"
        bound = data["saddle_bound"].values
        if np.isfinite(bound).any():
            label = rf"$\sigma_{{\max}}(G)$, bound of {CLAIM}"
            right.plot(step, bound, "--", color=colour(CLAIM), linewidth=1.1, label=label)
            rows.append(source.table(step=step, block="saddle_bound", lambda_min=-bound))
        if "saddle_bound_constants" in data and np.isfinite(data["saddle_bound_constants"]).any():
            has_constants = True
            for tokens, dashes in BOUND_OF_TOKENS.items():
                part = data[f"saddle_bound_{tokens}"].values
                label = f"its part on {tokens}"
                right.plot(step, part, linestyle=dashes, color=colour(CLAIM), linewidth=1.1, label=label)
                rows.append(source.table(step=step, block=f"saddle_bound_{tokens}", lambda_min=-part))
    left.set(ylabel=r"$\lambda_{\max}$", yscale="log")
    right.set(ylabel=r"$-\lambda_{\min}$ where negative", yscale="log")
    is_empty = not right.lines
    over_steps(figure.axes, kept)
    if is_empty:
        nothing(right, "no block has negative curvature")
    for axis in figure.axes:
        legend_below(axis)
    never = ", ".join(block for block, holds in semidefinite.items() if holds) or "no block"
    caption = (
        f"{what_was_run(kept)} Objective: {objectives(kept)}, float64, whole training set. "
        f"λ_min ≥ −1e-12·‖H‖ at every step: {never}."
    )
    if compared := control(kept):
        caption += f" {compared} −σ_max(G) bounds λ_min of {CLAIM} from below (F14, ReLU and data loss only)."
    if has_constants:
        caption += " On constants, tokens that every sample holds, it is the gradient norm of the first bias (F15)."
    caption += lines(kept)
    table = pd.concat(rows)
    measured = pd.concat(depths)
    if are_several(kept):
        shown = [
            (r"$-\lambda_{\min}$ where negative", "log", ("depth",)),
            (r"$\lambda_{\max}$", "log", ("lambda_max",)),
        ]
        figure = several(kept, pair_panels(measured, "block", shown))
    return Drawn(_deepest(measured), figure, table, caption, numbers)


def _deepest(table: pd.DataFrame) -> str:
    """How far down the pairs are curved, else the deepest block, as a title."""
    depth = table.groupby("block", sort=False)["depth"].max().dropna()
    pairs = [str(name) for name in table["block"].unique() if "," in name]
    shown = [name for name in claimed(pairs)[:2] if name in depth] or list(depth.nlargest(1).index)
    at_least = {name: "at least " * bool(part.any()) for name, part in table.groupby("block")["is_bound"]}
    told = [f"{name} {at_least[name]}to {digits(-depth[name])}" for name in shown]
    if told:
        return f"Curvature goes down: {', '.join(told)}"
    return "No negative curvature was found" if table["is_bound"].any() else "No block shown has negative curvature"


@family(30)
def spectra(sources: Sequence[Source]) -> Drawn:
    """All eigenvalues of the dense blocks at a few steps, as cumulative distributions on a symmetric log axis."""
    kept = [source for source in having(sources, "spectra") if source.spectra.data_vars][:1]
    if not kept:
        raise NotDrawnError("no full spectrum was stored: --spectra full computes those of dense blocks")
    source = kept[0]
    data = source.spectra
    blocks = [str(name) for name in data.data_vars]
    largest = max(float(np.nan_to_num(np.abs(data[b].values)).max()) for b in blocks)
    if not largest:
        raise NotDrawnError("every eigenvalue is 0")
    step = data["step"].values
    shown = np.unique(np.linspace(0, len(step) - 1, min(STEPS_SHOWN, len(step))).round().astype(int))
    columns = min(3, len(blocks))
    figure = new_figure(columns, height=2.6, rows=-(-len(blocks) // columns))
    rows, numbers = [], {}
    threshold = 1e-4 * largest
    lowest, highest = int(np.ceil(np.log10(threshold))), max(3, int(np.ceil(np.log10(largest))))
    exponents = range(lowest, highest, max(2, (highest - lowest) // 4))
    for axis, block in zip(figure.axes, blocks, strict=False):
        for i, shade in zip(shown, shades(len(shown)), strict=True):
            values = data[block].values[i]
            at = np.unique(np.linspace(0, len(values) - 1, CURVE_POINTS).round().astype(int))
            curve = {"eigenvalue": values[at], "share_below": (at + 1) / len(values)}
            axis.step(curve["eigenvalue"], curve["share_below"], color=shade, label=f"step {step[i]}")
            rows.append(source.table(block=block, step=step[i], **curve))
            numbers[f"{block}, step {step[i]}"] = f"{len(values)} eigenvalues in [{values[0]:.4g}, {values[-1]:.4g}]"
        axis.axvline(0, color="0.7", linewidth=0.8, zorder=0)
        axis.set_xscale("symlog", linthresh=threshold)
        axis.set(title=f"block {literal(block)}", xlabel="eigenvalue", ylabel="share below", ylim=(-0.02, 1.02))
        axis.set_xticks([s * 10.0**e for s in (-1, 1) for e in exponents] + [0])
        ends = np.nan_to_num([data[block].values.min(), data[block].values.max()])
        axis.set_xlim(2 * min(-threshold, ends[0]), 2 * max(threshold, *np.abs(ends)))
        axis.tick_params(axis="x", labelrotation=45)
    for axis in figure.axes[len(blocks) :]:
        axis.set_axis_off()
    outside_legend(figure, figure.axes[:1])
    caption = (
        f"{what_was_run(kept)} {source.label}: every eigenvalue of each dense block, objective "
        f"{source.hessian_attrs['objective']}. The axis is linear within ±{threshold:.1e}. "
        "Eigenvalues below 0 are negative curvature; the saddle index counts those beyond a tolerance."
    )
    block = min(blocks, key=lambda name: float(np.nan_to_num(data[name].values[-1]).min()))
    ends = [digits(float(data[block].values[-1, end])) for end in (0, -1)]
    title = f"At step {step[-1]:,} the eigenvalues of {block} lie between {ends[0]} and {ends[1]}"
    return Drawn(title, figure, pd.concat(rows), caption, numbers)


@family(40)
def saddle_index(sources: Sequence[Source]) -> Drawn:
    """The saddle index of every block over steps with its bracket, beside tolerance and gradient norm."""
    kept = having(sources, "measured", "inertia")
    figure = new_figure(3, height=3.2)
    index, tolerance, gradient = figure.axes
    rows, numbers = [], {}
    for source in kept:
        data = source.measured
        step = data["step"].values
        for block in source.blocks():
            part = data.sel(block=block)
            known = part["inertia"].sel(sign="negative").values
            lower, upper = part["inertia_lower"].values, part["inertia_upper"].values
            index.plot(step, known, color=colour(block), label=literal(block), **marker(block))
            if np.isnan(known).any():
                index.fill_between(step, lower, upper, color=colour(block), alpha=0.2, linewidth=0)
            free = part["saddle_index_gauge_free"].values
            if np.isfinite(free).any():
                index.plot(step, free, "--", color=colour(block), linewidth=1.0)
            tolerance.plot(step, part["inertia_tolerance"].values, color=colour(block), **marker(block))
            gradient.plot(step, part["grad_norm"].values, color=colour(block), **marker(block))
            levels = [LEVELS[i] for i in part["inertia_level"].values]
            table = source.table(
                step=step,
                block=block,
                saddle_index=pd.array(known, "Int64"),
                saddle_index_gauge_free=pd.array(free, "Int64"),
                lower=lower,
                upper=upper,
                level=levels,
                tolerance=part["inertia_tolerance"].values,
                grad_norm=part["grad_norm"].values,
            )
            rows.append(table)
            certified = sum(level == "certified" for level in levels)
            numbers[f"{source.label}, {block}"] = (
                f"index {bracket(lower[0], upper[0])} at step {step[0]}, "
                f"{bracket(lower[-1], upper[-1])} at step {step[-1]}; "
                f"certified at {certified} of {len(step)} steps"
                + (f"; gauge-free {free.min():.0f} to {free.max():.0f}" if np.isfinite(free).all() else "")
            )
    over_steps(figure.axes, kept)
    index.set_ylabel(r"saddle index $n_-$")
    index.set_yscale("symlog", linthresh=1)
    index.set_ylim(-0.3, 2 * index.get_ylim()[1])
    tolerance.set(ylabel=r"tolerance $\tau$", yscale="log")
    gradient.set(ylabel="gradient norm of the block", yscale="log")
    outside_legend(figure, [index])
    data = pd.concat(rows)
    gauge = f"; dashed: on the complement of the gauge directions of {' and '.join(BALANCED)}"
    caption = (
        f"{what_was_run(kept)} Eigenvalues below −τ, objective {objectives(kept)}; shaded where only a bracket is "
        f"known{gauge if data['saddle_index_gauge_free'].notna().any() else ''}. {where(kept)}{lines(kept)}"
    )
    if are_several(kept):
        figure = several(kept, pair_panels(data, "block", [("saddle index", "symlog", ("lower", "upper"))]))
        counted = f"Eigenvalues below −τ, objective {objectives(kept)}; bands hold brackets, too."
        caption = f"{what_was_run(kept)} {counted} {where(kept)}{lines(kept)}"
    return Drawn(_counts(kept, data), figure, data, caption, numbers)


def _counts(sources: Sequence[Source], table: pd.DataFrame) -> str:
    """The indices of the pairs, else of the first block, at the step that the findings speak of, as a title."""
    found = [key_numbers(source) for source in sources]
    at = zip(sources, found, strict=True)
    rows = pd.concat([table[(table["run"] == s.label) & (table["step"] == one.step)] for s, one in at])
    names = list(dict.fromkeys(rows["block"]))
    told, over = [], spread_over(sources)
    for name in claimed(name for name in names if "," in name)[:2] or names[:1]:
        ends = [over(list(rows[rows["block"] == name][end]), ",.0f") for end in ("lower", "upper")]
        told.append(f"{ends[0] if ends[0] == ends[1] else f'{ends[0]} to {ends[1]}'} of {name}")
    return f"Negative eigenvalues {place(found)}: {', '.join(told)}"
