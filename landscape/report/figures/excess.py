"""Figure of the excess index of pairs of blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from landscape.files.schema import LEVELS
from landscape.report.figures.axes import outside_legend, over_steps
from landscape.report.figures.captions import control, objectives, what_was_run
from landscape.report.figures.families import family
from landscape.report.figures.numbers import bracket
from landscape.report.figures.several import are_several, lines, pair_panels, several
from landscape.report.figures.sources import Drawn, NotDrawnError, Source, having
from landscape.report.style import colour, marker, new_figure
from landscape.text import literal


@family(55)
def excess_index(sources: Sequence[Source]) -> Drawn:
    """What the coupling of two blocks adds to their saddle indices, over steps, and its share of the joint index."""
    kept = having(sources, "measured", "excess_index_lower", "inertia_lower")
    kept = [source for source in kept if np.isfinite(source.measured["excess_index_lower"].values).any()]
    if not kept:
        raise NotDrawnError("no excess index was measured: a pair's joint block and both of its blocks are needed")
    figure = new_figure(2, height=3.2)
    excess, share = figure.axes
    rows, numbers = [], {}
    for source in kept:
        data = source.measured
        step, blocks = data["step"].values, data["block"].values.tolist()
        for i, pair in enumerate(map(str, data["pair"].values)):
            # Outlines one inside the other: shares of 1 coincide.
            look = marker(pair) | {"markerfacecolor": "none", "markersize": max(3.0, 8.0 - 1.2 * i)}
            part = data.sel(pair=pair)
            lower, upper = part["excess_index_lower"].values, part["excess_index_upper"].values
            known = np.isfinite(lower)
            if not known.any() or pair not in blocks:
                continue
            middle = np.where(lower == upper, lower, np.nan)
            excess.plot(step, middle, color=colour(pair), label=literal(pair), **look)
            if (lower < upper).any():
                excess.fill_between(step, lower, upper, color=colour(pair), alpha=0.2, linewidth=0, label=literal(pair))
            index = data.sel(block=pair)
            whole = index["inertia_lower"].values.astype(float)
            is_known = (whole == index["inertia_upper"].values) & (whole > 0)
            part_of = np.where(is_known, middle / np.where(is_known, whole, 1), np.nan)
            share.plot(step, part_of, color=colour(pair), label=literal(pair), **look)
            table = source.table(
                step=step,
                pair=pair,
                excess_index_lower=pd.array(lower, "Int64"),
                excess_index_upper=pd.array(upper, "Int64"),
                level=[LEVELS[i] for i in part["excess_level"].values],
                share_of_joint_index=part_of,
            )
            rows.append(table)
            top = int(np.nanargmax(lower))
            joint = bracket(whole[top], float(index["inertia_upper"][top]))
            numbers[f"{source.label}, {pair}"] = (
                f"largest at step {step[top]}: {bracket(lower[top], upper[top])}, of {joint} in the joint "
                f"block; at step {step[known][-1]} {bracket(lower[known][-1], upper[known][-1])}"
            )
    over_steps(figure.axes, kept)
    for axis in figure.axes:
        axis.axhline(0, color="0.7", linewidth=0.8, zorder=0)
    excess.set(ylabel="excess index (directions)", yscale="symlog")
    excess.set_ylim(min(-0.5, 2 * excess.get_ylim()[0]), max(2.0, 2 * excess.get_ylim()[1]))
    share.set(ylabel="share of the joint block's index")
    share.set_ylim(min(-0.05, share.get_ylim()[0]), 1.05)
    outside_legend(figure, [excess])
    caption = (
        f"{what_was_run(kept)} Left: n₋(H_[A,B]) − n₋(H_AA) − n₋(H_BB), all three counted below the joint block's −τ, "
        f"objective {objectives(kept)}: the directions of negative curvature that neither block has by itself; shaded "
        f"where only a bracket is known. Right: as a share of n₋(H_[A,B]), where both are known.{lines(kept)} "
        f"{control(kept)}"
    )
    table = pd.concat(rows)
    if are_several(kept):
        shown = [
            ("excess index", "symlog", ("excess_index_lower", "excess_index_upper")),
            ("share of the joint index", "linear", ("share_of_joint_index",)),
        ]
        figure = several(kept, pair_panels(table, "pair", shown))
        caption = caption.replace("Left:", "Above:").replace("Right:", "Below:")
    return Drawn(_finding(table), figure, table, caption.rstrip(), numbers)


def _finding(table: pd.DataFrame) -> str:
    """What the numbers show, as a title."""
    lower, upper = table["excess_index_lower"], table["excess_index_upper"]
    if (lower > 0).any():
        most = table.iloc[int(lower.fillna(0).to_numpy().argmax())]
        pair, count, step = most["pair"], most["excess_index_lower"], most["step"]
        if lower.max() < upper.max():
            # Another pair or step may have more.
            return f"Coupling adds negative directions: at least {count} to {pair} at step {step}"
        return f"Coupling adds negative directions: {pair} most, {count} at step {step}"
    if (upper <= 0).all():
        return "Coupling adds no negative direction to any pair of blocks"
    return "Coupling is not shown to add negative directions to any pair of blocks"
