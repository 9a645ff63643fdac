"""Figures of curvature: eigenvalues, saddle indices, coupling, sharpness, eigenvectors and spectra."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter, NullLocator

from landscape.models.embedding_mlp.blocks import BALANCED, CLAIM
from landscape.report.figures.panels import (
    Drawn,
    Panel,
    Plain,
    label,
    legend,
    lines,
    long,
    looks,
    over_steps,
    power_of_ten,
    readable,
    readable_number,
    scaled,
    subplots,
)
from landscape.report.numbers import STABLE, claimed, is_negative
from landscape.report.sources import Frames
from landscape.report.style import GREY, INK, shades
from landscape.report.words import count, digits, spread
from landscape.results import best_known, heat_map

DEPTH = "−λ_min, where negative"
"""Label of the axis of most negative eigenvalues."""
OPTIMISER = {"sharpness_adam": "Adam", "sharpness_gd": "gradient descent"}
_STEPS, _POINTS = 4, 300
"""Steps of a spectrum that are drawn, and points of each curve."""
_PANELS = 3
"""Steps, or blocks, at which index curves are drawn."""
_DECADES = 1e-6
"""Share of its peak below which a density is not drawn."""


def extreme_eigenvalues(frames: Frames) -> Drawn | None:
    """The largest eigenvalue of every block over steps, and the smallest where it is negative."""
    table = columns(frames, "by_step_block_end_rank", "eigenvalues", "end", "rank")
    lowest = most_negative(frames)
    if table.empty or lowest is None:
        return None
    highest = long(table[(table["rank"] == 0) & (table["end"] == "highest")], "block", "eigenvalues")
    depth = long(lowest, "block", "depth")
    decay = columns(frames, "runs", "weight_decay")["weight_decay"].dropna().unique()
    bound = columns(frames, "by_step", "saddle_bound")
    if len(bound) and CLAIM in set(depth["block"]):
        depth = pd.concat([depth, long(bound, "block", "saddle_bound").assign(block=f"bound of {CLAIM}")])
    drawn = over_steps(
        frames,
        [
            Panel("lambda_max", "λ_max", highest, "log"),
            Panel("-lambda_min", DEPTH, depth, "log", float(decay[0]) if len(decay) == 1 else None),
        ],
        "block",
    )
    if drawn is None:
        return None
    title = "No block has negative curvature"
    if len(lowest):
        most = lowest.groupby(["block", "run"])["eigenvalues"].min()
        title = "λ_min falls to " + " and ".join(
            f"{spread(most[name].to_list())} in {name}" for name in joint_first(lowest)
        )
    return Drawn(title, *drawn)


def most_negative(frames: Frames) -> pd.DataFrame | None:
    """The smallest eigenvalue of each block and step where it is negative, and minus it as `depth`."""
    table = columns(frames, "by_step_block_end_rank", "eigenvalues", "end", "rank")
    norms = columns(frames, "by_step_block", "operator_norm")
    if table.empty or norms.empty:
        return None
    lowest = table[(table["rank"] == 0) & (table["end"] == "lowest")]
    lowest = lowest.merge(norms[["run", "step", "block", "operator_norm"]])
    lowest = lowest[is_negative(lowest["eigenvalues"], lowest["operator_norm"])]
    return lowest.assign(depth=-lowest["eigenvalues"])


def joint_first(lowest: pd.DataFrame) -> list[str]:
    """Two joint blocks, those of the claims or the most negative ones; the most negative block if none is joint."""
    order = lowest.groupby("block")["eigenvalues"].min().sort_values().index
    return [name for name in claimed(order) if "," in name][:2] or list(order[:1])


def saddle_index(frames: Frames) -> Drawn | None:
    """The saddle index of every block over steps between its bounds, beside the gradient norm."""
    table = columns(frames, "by_step_block", "inertia_lower", "inertia_upper", "grad_norm")
    panels = [
        Panel("saddle index", "negative eigenvalues", long(table, "block", "inertia_lower", "inertia_upper"), "symlog"),
        Panel("gradient norm", "gradient norm of the block", long(table, "block", "grad_norm"), "log"),
    ]
    if "saddle_index_gauge_free" in table and table["saddle_index_gauge_free"].notna().any():
        free = long(table, "block", "saddle_index_gauge_free")
        panels.insert(1, Panel("gauge-free saddle index", "without gauge directions", free, "symlog"))
    drawn = over_steps(frames, panels, "block")
    if drawn is None:
        return None
    last = table[table["step"] == table.groupby("run")["step"].transform("max")]
    names = claimed(name for name in last["block"].unique() if "," in name)[:2] or list(last["block"].unique()[:1])
    counts = []
    for name in names:
        rows = last[last["block"] == name]
        counts.append(f"{count(rows['inertia_lower'].to_list(), rows['inertia_upper'].to_list())} in {name}")
    return Drawn(f"Negative eigenvalues at the last step: {' and '.join(counts)}", *drawn)


def index_curves(frames: Frames) -> Drawn | None:
    """The saddle index of every block over the tolerance: at a few steps, or of several settings at the last one."""
    table = columns(frames, "by_step_block_tau", "tau", *(f"index_curve_{name}" for name in ("lower", "upper")))
    if table.empty:
        return None
    known = best_known(table, "index_curve_")
    labels = ["run", "setting", "seed", "step", "block", "tau"]
    data = known.melt(labels, ["low", "index", "high"], "column", "value").drop(columns="column")
    last = data[data["step"] == data.groupby("run")["step"].transform("max")]
    if data["setting"].nunique() > 1:
        hue, negative = "setting", last[last["value"] > 0]
        names = claimed((last if negative.empty else negative)["block"].unique())[:_PANELS]
        panels = {f"{name}, last step": last[last["block"] == name] for name in names}
    else:
        hue, runs = "block", data.groupby("step")["run"].nunique()
        # Those that most runs have.
        steps = runs.index[2 * runs >= runs.max()]
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, _PANELS).round().astype(int))]
        panels = {f"step {step:,}": data[data["step"] == step] for step in steps}
    colours, shapes = looks(frames, data[hue].unique())
    figure, axes = subplots(len(panels))
    for axis, (title, part) in zip(axes, panels.items(), strict=True):
        lines(axis, part, hue, colours, shapes, "tau")
        axis.set_xscale("log")
        axis.set(title=label(title), xlabel="τ / ‖H‖", ylabel="eigenvalues below −τ")
        axis.set_xticks([1e-9, 1e-6, 1e-3, 1])
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: power_of_ten(x)))
        axis.xaxis.set_minor_locator(NullLocator())
        scaled(axis, "symlog")
    for axis in axes:
        axis.set_ylim(top=max(other.get_ylim()[1] for other in axes))
    legend(figure, axes)
    name = claimed(sorted(last["block"].unique(), key=lambda name: "," not in name))[0]
    ends = known[(known["block"] == name) & known["step"].eq(known.groupby("run")["step"].transform("max"))]
    most, least = (spread(ends.loc[ends["tau"] == tau, "index"].to_list(), ",.0f") for tau in (1e-10, 1e-2))
    about = "" if (ends["low"] == ends["high"]).all() else "about "
    title = f"At the last step {name} has {about}{least} eigenvalues below −10⁻² ‖H‖ and {most} below −10⁻¹⁰ ‖H‖"
    return Drawn(title, figure, known[[*labels, "index", "low", "high"]])


def coupling_ratios(frames: Frames) -> Drawn | None:
    """The largest coupling ratio of each pair over steps, those above 1, and the excess index."""
    ratios = columns(frames, "by_step_pair_rank", "coupling_ratios", "rank")
    pairs = columns(frames, "by_step_pair", "coupling_index")
    largest = long(ratios[ratios["rank"] == 0] if len(ratios) else ratios, "pair", "coupling_ratios")
    panels = [
        Panel("kappa_1", "largest coupling ratio κ₁", largest, "log", line=1),
        Panel("ratios above 1", "coupling ratios above 1", long(pairs, "pair", "coupling_index"), "symlog"),
    ]
    if {"excess_index_lower", "excess_index_upper"} <= set(pairs):
        excess = long(pairs, "pair", "excess_index_lower", "excess_index_upper")
        panels.append(Panel("excess index", "excess index", excess, "symlog", line=0))
    drawn = over_steps(frames, panels, "pair")
    if drawn is None or largest.empty:
        return None
    most = largest.groupby(["pair", "run"])["value"].max()
    names = claimed(most.groupby("pair").max().sort_values(ascending=False).index)[:2]
    summary = " and ".join(f"{spread(most[name].to_list())} in {name}" for name in names)
    return Drawn(f"Coupling ratios reach {summary}; each above 1 is a negative eigenvalue", *drawn)


def sharpness(frames: Frames) -> Drawn | None:
    """The sharpness of each optimiser in units of its stable limit, over steps."""
    table = frames.get("by_step", pd.DataFrame())
    known = [name for name in STABLE if name in table and table[name].notna().any()]
    parts = [
        long(table.assign(share=table[name] / STABLE[name]), "optimiser", "share").assign(
            optimiser=f"{OPTIMISER[name]}, limit {STABLE[name]:.0f}"
        )
        for name in known
    ]
    if not parts:
        return None
    data = pd.concat(parts)
    drawn = over_steps(
        frames, [Panel("sharpness / limit", "sharpness / stable limit", data, "log", line=1)], "optimiser"
    )
    last = parts[0].sort_values("step").groupby("run")["value"].last()
    title = f"At the last step, the sharpness for {OPTIMISER[known[0]]} is {spread(last.to_list())} times"
    title += f" the stable limit of {STABLE[known[0]]:.0f}"
    return drawn and Drawn(title, *drawn)


def tracking(frames: Frames) -> Drawn | None:
    """How far the eigenspaces at both ends turn between analysed steps."""
    table = columns(frames, "by_step_block_end", "subspace_overlap", "end")
    panels = [
        Panel(
            f"overlap of the {end}",
            f"overlap, {end} eigenvalues",
            long(table[table["end"] == end], "block", "subspace_overlap"),
            "share",
        )
        for end in ("highest", "lowest")
        if len(table)
    ]
    drawn = over_steps(frames, panels, "block")
    if drawn is None:
        return None
    top, bottom = (
        spread(table.loc[table["end"] == end, "subspace_overlap"].to_list(), "%") for end in ("highest", "lowest")
    )
    return Drawn(
        f"Neighbouring analysed steps share {top} of the top eigenspace and {bottom} of the bottom one", *drawn
    )


def spectra(frames: Frames) -> Drawn | None:
    """All eigenvalues of the dense blocks of the first run at a few steps, as cumulative distributions."""
    table = columns(_first_run(frames, "spectrum_by_step_block_row"), "spectrum_by_step_block_row", "eigenvalue")
    table = table[np.isfinite(table["eigenvalue"].astype(float))] if len(table) else table
    if table.empty or not (table["eigenvalue"] != 0).any():
        return None
    steps = np.sort(table["step"].unique())
    steps = steps[np.unique(np.linspace(0, len(steps) - 1, _STEPS).round().astype(int))]
    shares = np.linspace(0, 1, _POINTS)
    curves = table[table["step"].isin(steps)].groupby(["run", "block", "step"], sort=False)["eigenvalue"]
    data = curves.apply(
        lambda x: pd.Series(np.quantile(x, shares, method="nearest"), index=pd.Index(shares, name="share_below"))
    )
    data = data.rename("eigenvalue").reset_index()
    blocks = list(data["block"].unique())[:9]
    figure, axes = subplots(len(blocks), height=2.5)
    linear = 1e-4 * float(data["eigenvalue"].abs().max())
    powers = 10.0 ** np.arange(np.ceil(np.log10(linear)) + 1, 5, 2)
    ticks = [*-powers[::-1], 0, *powers]
    data["at"] = [f"step {step:,}" for step in data["step"]]
    names = [f"step {step:,}" for step in steps]
    colours = dict(zip(names, shades()((np.arange(len(steps)) + 0.5) / len(steps)), strict=True))
    for axis, block in zip(axes, blocks, strict=True):
        sns.lineplot(
            data[data["block"] == block],
            x="eigenvalue",
            y="share_below",
            hue="at",
            palette=colours,
            estimator=None,
            sort=False,
            legend="auto" if len(steps) > 1 else False,
            ax=axis,
        )
        axis.axvline(0, color=GREY, linewidth=0.8, zorder=0)
        axis.set_xscale("symlog", linthresh=linear)
        axis.set(title=f"block {label(block)}", xlabel="eigenvalue", ylabel="share below")
        low, high = axis.dataLim.intervalx
        axis.set_xlim(-max(-2 * low, 3 * linear), max(2 * high, 3 * linear))
        axis.set_xticks([x for x in ticks if 2 * low <= x <= max(2 * high, 3 * linear)])
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: readable_number(x)))
        scaled(axis, "share")
    legend(figure, axes)
    low = data[data["step"] == steps[-1]].groupby("block")["eigenvalue"].agg(["min", "max"])
    block = low["min"].idxmin()
    ends = [digits(low[end][block]) for end in ("min", "max")]
    title = f"At step {steps[-1]:,} the eigenvalues of block {block} lie between {ends[0]} and {ends[1]}"
    return Drawn(title, figure, data.drop(columns="at"))


def densities(frames: Frames) -> Drawn | None:
    """The smoothed spectral density of every block at the last step, and the distances between blocks."""
    frames = _first_run(frames, "density_by_step_density_point")
    table = frames.get("density_by_step_density_point", pd.DataFrame())
    listed = frames["by_step_block"]["block"].unique() if "by_step_block" in frames else ()
    blocks = [str(name) for name in dict.fromkeys([*listed, *table]) if f"{name}_error" in table]
    if not blocks:
        return None
    table = table[table["step"] == table["step"].max()]
    data = table.melt(["run", "step", "eigenvalue"], blocks, "block", "density").dropna()
    peak = data["density"].max()
    seen = data["eigenvalue"][data["density"] > _DECADES * peak]
    if not peak > 0:
        return None
    step = int(data["step"].iloc[0])
    figure, (left, right) = subplots(2, height=3.2)
    shown = data.assign(block=data["block"].map(label))
    sns.lineplot(
        shown[shown["density"] > 0],
        x="eigenvalue",
        y="density",
        hue="block",
        palette={label(name): colour for name, colour in looks(frames, blocks)[0].items()},
        estimator=None,
        ax=left,
    )
    scaled(left, "log")
    left.set(ylim=(_DECADES * peak, 3 * peak), xlim=(min(seen.min(), 0), seen.max()), ylabel="spectral density")
    distances = columns(frames, "by_step_block_other_block", "jensen_shannon", "other_block")
    distances = distances[distances["step"] == step] if len(distances) else distances
    left.xaxis.set_major_formatter(Plain())
    title = f"The density of the eigenvalues at step {step:,}"
    if len(blocks) > 1 and len(distances):
        square = distances.pivot(index="block", columns="other_block", values="jensen_shannon").reindex(
            index=blocks, columns=blocks
        )
        heat_map(square, right)
        pairs = square.where(np.triu(np.ones(square.shape), 1) > 0).stack()
        first, second = pairs.idxmax()
        title = (
            f"At step {step:,} the spectra of {first} and {second} differ most: distance {pairs.max():.2f} of at most 1"
        )
    else:
        right.set_axis_off()
    legend(figure, [left])
    return Drawn(title, figure, data)


def ratios(frames: Frames) -> Drawn | None:
    """Curvature and gradient ratios against their predictions, with slopes on logarithmic axes."""
    first, second = BALANCED
    names = {
        "curvature_ratio": f"λ_max({second}) / λ_max({first})",
        "gradient_ratio": f"gradient norms, {second} / {first}",
    }
    table = columns(frames, "by_step", *names, *(f"{name}_predicted" for name in names))
    points = {name: table[(table[[name, f"{name}_predicted"]] > 0).all(axis=1)] for name in names} if len(table) else {}
    points = {name: known for name, known in points.items() if known[f"{name}_predicted"].nunique() > 2}
    if not points:
        return None
    figure, axes = subplots(len(points), height=3.2)
    shares = []
    several = table["setting"].nunique() > 1
    for axis, (name, known) in zip(axes, points.items(), strict=True):
        predicted, measured = known[f"{name}_predicted"], known[name]
        sns.scatterplot(
            x=predicted,
            y=measured,
            hue=known["setting"].map(label) if several else known["step"].clip(lower=1),
            hue_norm=None if several else LogNorm(),
            palette=looks(frames, known["setting"].map(label))[0] if several else shades(),
            ax=axis,
            legend="brief",
        )
        slope, factor = np.polyfit(np.log(predicted), np.log(measured), 1)
        ends = np.array([predicted.min(), predicted.max()])
        axis.plot(ends, ends, color=GREY, linestyle="--", linewidth=1, label="prediction")
        axis.plot(ends, np.exp(factor) * ends**slope, color=INK, linewidth=1, label="fit")
        axis.set(xscale="log", xlabel="prediction", ylabel=names[name], title=f"slope {digits(slope, '.2f')}")
        scaled(axis, "log")
        readable(axis.xaxis)
        shares.append(f"{name.replace('_', ' ')} {spread((measured / predicted).to_list(), '.2g')}")
    legend(figure, axes, "" if several else "step")
    return Drawn(
        f"Measured over predicted for two linear factors: {', '.join(shares)}",
        figure,
        table[["run", "setting", "step", *names, *(f"{name}_predicted" for name in names)]],
    )


def columns(frames: Frames, name: str, *names: str) -> pd.DataFrame:
    """A table; empty, with the columns of figures, where it or one of these is missing."""
    table = frames.get(name, pd.DataFrame())
    if set(names) <= set(table):
        return table
    return pd.DataFrame(columns=["run", "setting", "seed", "step", "block", "pair", *names])


def _first_run(frames: Frames, name: str) -> Frames:
    """The tables of the first run that has this one."""
    if name not in frames or frames[name].empty:
        return frames
    run = frames[name]["run"].iloc[0]
    return {other: table[table["run"] == run] for other, table in frames.items()}
