"""Figures of spectral densities and their distances, of eigenvectors over steps, and of sharpness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from landscape.report.figures.axes import legend, legend_below, nothing, outside_legend, over_steps
from landscape.report.figures.captions import what_was_run
from landscape.report.figures.families import family
from landscape.report.figures.numbers import STABLE, STABLE_FOR, digits
from landscape.report.figures.settings import spread_over
from landscape.report.figures.several import Panel, are_several, lines, pair_panels, several
from landscape.report.figures.sources import Drawn, NotDrawnError, Source, having
from landscape.report.style import colour, marker, new_figure, palette
from landscape.text import literal

LABEL = {"sharpness_gd": "gradient descent", "sharpness_adam": "Adam"}


@family(70)
def densities(sources: Sequence[Source]) -> Drawn:
    """The smoothed spectral density of every block at the last step, and the blocks' distances over steps."""
    kept = having(sources, "densities")
    source = kept[0]
    data, blocks = source.densities, source.blocks()
    figure = new_figure(2, height=3.4)
    density, distance = figure.axes
    last = data.isel(step=-1)
    step = int(data["step"].values[-1])
    grid, width = last["eigenvalue"].values, float(last["width"])
    rows, numbers, last_distances = [], {}, []
    for block in blocks:
        values, error = last[block].values, last[f"{block}_error"].values
        density.plot(grid, values, color=colour(block), label=literal(block))
        if error.any():
            density.fill_between(grid, values - error, values + error, color=colour(block), alpha=0.2, linewidth=0)
        rows.append(source.table(step=step, block=block, eigenvalue=grid, density=values, error=error))
    drawn = np.stack([last[block].values for block in blocks])
    floor = 1e-6 * drawn[np.isfinite(drawn)].max(initial=0)
    seen = grid[(drawn > floor).any(0)]
    if not len(seen):
        raise NotDrawnError("no density is above 0")
    density.set(yscale="log", ylim=(floor, 3e6 * floor), xlim=(seen.min(), seen.max()))
    density.set(xlabel="eigenvalue", ylabel="spectral density", title=f"step {step}")
    pairs = _pairs(kept)
    for source in kept:
        measured = source.measured
        steps, blocks = measured["step"].values, source.blocks()
        for i, (a, b) in enumerate(pairs):
            if not {a, b} <= {*blocks}:
                continue
            found = measured["jensen_shannon"].sel(block=a, other_block=b).values
            look: dict[str, Any] = {"marker": "osvD^P"[i % 6], "markersize": 3.5, "color": palette(i + 1)[i]}
            distance.plot(steps, found, **look, label=literal(f"{a} and {b}"))
            if i == 0 and np.isfinite(found[-1]):
                last_distances.append(float(found[-1]))
            # A block that is not measured yet has no distance.
            if len(known := np.flatnonzero(np.isfinite(found))):
                ends = [f"{found[at]:.3f} at step {steps[at]}" for at in known[[0, -1]]]
                numbers[f"{source.label}, Jensen-Shannon distance of {a} and {b}"] = ", ".join(ends)
            rows.append(source.table(step=steps, block=f"{a} and {b}", jensen_shannon=found))
    over_steps([distance], kept)
    distance.set(ylabel="Jensen–Shannon distance", ylim=(0, 1))
    for axis in figure.axes:
        legend_below(axis)
    if not pairs:
        nothing(distance, "one block has no distance")
    caption = (
        f"{what_was_run(kept)} Left: {kept[0].label}, the density of each block's eigenvalues, smoothed by a Gaussian "
        f"of standard deviation {width:.2g}; do not read an index from it. Right: Jensen–Shannon "
        "distance (base 2) between blocks on that grid, the block heterogeneity of arXiv 2402.16788."
        f"{lines(kept) if pairs else ''}"
    )
    table = pd.concat(rows)
    if are_several(kept) and pairs:
        panels = [
            Panel("Jensen–Shannon distance", table[table["block"] == of], ("jensen_shannon",), literal(of), "linear")
            for of in [f"{a} and {b}" for a, b in pairs[:2]]
        ]
        figure = several(kept, panels)
        caption = (
            f"{what_was_run(kept)} Jensen–Shannon distance (base 2) between the smoothed densities of two blocks, the "
            f"block heterogeneity of arXiv 2402.16788.{lines(kept)}"
        )
    title = f"The density of the eigenvalues at step {step:,}"
    if pairs and last_distances:
        a, b = pairs[0]
        title = f"The spectra of {a} and {b} are {spread_over(kept)(last_distances)} apart at last (1: disjoint)"
    return Drawn(title, figure, table, caption, numbers)


def _pairs(sources: Sequence[Source]) -> list[tuple[str, str]]:
    """The pairs of single matrices that were analysed, else the first block with each of the others."""
    found: dict[tuple[str, str], None] = {}
    for source in sources:
        blocks = source.blocks()
        single = [(a, b) for i, a in enumerate(blocks) for b in blocks[i + 1 :] if len(a) == len(b) == 1]
        found |= dict.fromkeys(single or [(blocks[0], b) for b in blocks[1:]])
    return list(found)


@family(80)
def tracking(sources: Sequence[Source]) -> Drawn:
    """How far the top and bottom eigenspaces turn between analysed steps, and sharpness against its stable limit."""
    kept = having(sources, "measured", "subspace_overlap", "sharpness_gd")
    kept = [source for source in kept if len(source.measured["step"]) > 1]
    if not kept:
        raise NotDrawnError("tracking eigenvectors takes at least two analysed steps")
    figure = new_figure(3, height=3.2)
    *ends, sharp = figure.axes
    ranks = sorted({len(source.measured["rank"]) for source in kept})
    rows, numbers = [], {}
    for source in kept:
        data = source.measured
        step = data["step"].values
        for axis, end in zip(ends, ("highest", "lowest"), strict=True):
            for block in source.blocks():
                found = data["subspace_overlap"].sel(block=block, end=end).values
                axis.plot(step, found, color=colour(block), label=literal(block), **marker(block))
                crossings = data["crossings"].sel(block=block, end=end).values
                table = source.table(
                    step=step, block=block, end=end, overlap=found, crossings=pd.array(crossings, "Int64")
                )
                rows.append(table)
            axis.set(title=f"{end} {' or '.join(map(str, ranks))}", ylim=(-0.02, 1.02))
        for i, name in enumerate(LABEL):
            found, edge = data[name].values, STABLE[name]
            if np.isfinite(found).any():
                label = f"{LABEL[name]} / {edge:.0f}"
                sharp.plot(step, found / edge, marker="os"[i], markersize=3.5, color=palette(2)[i], label=label)
                known = found[np.isfinite(found)]
                numbers[f"{source.label}, {name}"] = (
                    f"{known[0]:.4g} to {known[-1]:.4g}, largest {np.nanmax(found):.4g}; stable up to {edge:.0f}"
                )
                rows.append(source.table(step=step, **{name: found}))
    over_steps(figure.axes, kept)
    ends[0].set_ylabel("overlap with the step before")
    sharp.axhline(1, color="black", linewidth=0.9, linestyle="--")
    sharp.set(title="sharpness / 2 or 38", yscale="log")
    sharp.set_ylim(top=30 * max(1.0, sharp.get_ylim()[1]))
    legend(sharp, fontsize="small", loc="upper right")
    if not any(np.isfinite(source.measured[name].values).any() for source in kept for name in STABLE):
        sharp.clear()
        nothing(
            sharp,
            "sharpness is not known:\nthe run holds no learning rates.\nRecorder(..., optimizer=...)\nstores them",
        )
    outside_legend(figure, ends[:1])
    sharpness = (
        f"λ_max of diag(lr)·H over 2, the stable limit of {STABLE_FOR['sharpness_gd']}, and of Adam's preconditioned "
        f"Hessian over 38, that of {STABLE_FOR['sharpness_adam']}."
    )
    overlap = (
        "Overlap ‖U_beforeᵀU‖²_F/k of the spans of the k eigenvectors at each end between neighbouring analysed steps."
    )
    caption = f"{what_was_run(kept)} {overlap} Right: {sharpness}{lines(kept)}"
    table = pd.concat(rows)
    known = [name for name in LABEL if name in table and table[name].notna().any()]
    if are_several(kept):
        panels = [
            Panel(
                f"sharpness / {STABLE[name]:.0f}",
                table.assign(**{name: table[name] / STABLE[name]}),
                (name,),
                LABEL[name],
            )
            for name in known
        ]
        what = sharpness
        if not known:
            at_end = table[table["end"] == "lowest"]
            panels = pair_panels(at_end, "block", [("overlap of the lowest", "linear", ("overlap",))])
            what = overlap
        figure = several(kept, panels)
        caption = f"{what_was_run(kept)} {what}{lines(kept)}"
    return Drawn(_sharpest(table), figure, table, caption, numbers)


def _sharpest(table: pd.DataFrame) -> str:
    """How near the sharpness of the optimiser came to the stable limit, else how eigenvectors turned, as a title."""
    for name, limit in STABLE.items():
        if name in table and table[name].notna().any():
            most = table.iloc[int(np.nanargmax(table[name]))]
            reached = f"{digits(most[name] / limit)} times the limit of {limit:.0f}"
            return f"The sharpness of {LABEL[name]} is largest at step {most['step']:,}, {reached}"
    overlap = digits(float(table["overlap"].median()), ".2f")
    return f"Neighbouring steps share {overlap} of the eigenvectors at the ends, in the median"
