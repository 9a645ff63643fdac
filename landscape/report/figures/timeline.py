"""One picture of a run: circles of its embedding, and frequencies, coupling, saddle index and accuracy on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from landscape.files.runs import GROK
from landscape.measure.embeddings import appears
from landscape.report.figures.axes import legend, nothing, over_steps
from landscape.report.figures.captions import what_was_run
from landscape.report.figures.embedding import draw_circle, keys_of, planes
from landscape.report.figures.families import family
from landscape.report.figures.numbers import claimed, step_text
from landscape.report.figures.several import Panel, are_several, lines, several
from landscape.report.figures.sources import Drawn, NotDrawnError, Source, having, lacking
from landscape.report.style import WIDTH, colour, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SNAPSHOTS = 5
"""Steps whose circles are drawn."""
_RATIOS = 3
"""Coupling ratios that are drawn."""
_HALF, _PEAK, _GROKS = "the top frequency is half there", "κ₁ is largest", "the network groks"


@family(140)
def timeline(sources: Sequence[Source]) -> Drawn:
    """The embedding's circles at five steps, above frequencies, coupling, saddle index and accuracy over steps."""
    measured = having(having(sources, "measured", "coupling_ratios", "pair"), "embedding", "plane_position")
    pair = _pair(measured)
    kept = [source for source in measured if pair in source.measured["pair"].values]
    tables = [_table(source, pair) for source in kept]
    table = pd.concat(tables)
    when = {source.label: _when(source, rows) for source, rows in zip(kept, tables, strict=True)}
    numbers = {
        label: "; ".join([*(f"{what} at step {step_text(step)}" for what, step in found.items()), *gaps])
        for (label, found), gaps in zip(when.items(), ([s.gaps] * bool(s.gaps) for s in kept), strict=True)
    }
    caption = (
        f"{what_was_run(kept)} Frequencies: those in use at the last step. κ and the saddle index: the pair {pair}."
    )
    if are_several(kept):
        panels = [
            Panel("accuracy on the test set", table, ("test_accuracy",), "", "linear"),
            Panel("share of the frequencies", table, ("key_share",), "", "linear"),
            Panel(r"$\kappa_1$", table, ("kappa_1",), "", "log"),
            Panel("saddle index", table, ("index_lower", "index_upper"), "", "symlog"),
        ]
        return Drawn(
            _title(list(when.values()), kept), several(kept, panels), table, f"{caption}{lines(kept)}", numbers
        )
    figure, circles = _drawn(kept[0], pair, tables[0])
    caption += (
        f" Top: {kept[0].label}, the numbers in the plane of the largest frequency at steps spread over training, grey "
        f"lines joining neighbours on the circle; triangles mark these steps.{lines(kept)}"
    )
    return Drawn(_title(list(when.values()), kept), figure, pd.concat([table, circles]), caption, numbers)


def _pair(sources: Sequence[Source]) -> str:
    """The pair that is drawn: the claim's, else the first that was measured. Raises NotDrawnError."""
    found = [str(pair) for source in sources for pair in source.measured["pair"].values if pair in source.blocks()]
    if not found:
        raise NotDrawnError("no coupling ratio was measured: the joint block of a pair is needed")
    return claimed(dict.fromkeys(found))[0]


def _table(source: Source, pair: str) -> pd.DataFrame:
    """What is drawn of a run: rows of its geometry file, of its Hessian file and of its accuracies."""
    geometry, part = source.embedding, source.measured.sel(pair=pair, block=pair)
    shares = geometry["fourier_share"].values[:, keys_of(geometry)].sum(1)
    ratios = part["coupling_ratios"].values[:, :_RATIOS]
    rows = [
        source.table(step=geometry["step"].values, key_share=shares),
        source.table(
            step=part["step"].values,
            **{f"kappa_{i + 1}": ratios[:, i] for i in range(ratios.shape[1])},
            index_lower=part["inertia_lower"].values,
            index_upper=part["inertia_upper"].values,
        ),
    ]
    names = [name for name in ("train_accuracy", "test_accuracy") if name in source.metrics]
    if names:
        known = source.metrics[names].dropna("metric_step")
        rows.append(source.table(step=known["metric_step"].values, **{name: known[name].values for name in names}))
    return pd.concat(rows, ignore_index=True)


def _when(source: Source, rows: pd.DataFrame) -> dict[str, int | None]:
    """The steps of a run's events, None for what never came."""
    data, ratio = source.embedding, rows[["step", "kappa_1"]].dropna()
    shares = data["top_frequency_share"].values, data["top_frequency_share_p"].values
    return {
        _HALF: appears(data["step"].values, *shares),
        _PEAK: int(ratio["step"].loc[ratio["kappa_1"].idxmax()]) if len(ratio) else None,
        _GROKS: source.event(*GROK),
    }


def _title(found: Sequence[dict[str, int | None]], sources: Sequence[Source]) -> str:
    """What came when in one run, or in how many of several runs it came before they grokked."""
    if len(found) == 1:
        known = sorted((step, what) for what, step in found[0].items() if step is not None)
        by = {_GROKS} if sources[0].may_be_earlier(found[0][_GROKS]) else ()
        told = ", ".join(f"{what} {'by' if what in by else 'at'} step {step:,}" for step, what in known)
        # A capital κ reads as K.
        return (told if told.startswith("κ") else told[:1].upper() + told[1:]) or "Nothing came over this training"
    counts = []
    for what in (_HALF, _PEAK):
        pairs = ((one[what], one[_GROKS]) for one in found)
        both = [(step, grok) for step, grok in pairs if step is not None and grok is not None]
        if both:
            counts.append(f"{what} in {sum(step < grok for step, grok in both)} of {len(both)} runs")
    if not counts:
        return "No run groks with a frequency or a coupling ratio to compare"
    return f"Before the network groks, {' and '.join(counts)}{lacking(sources)}"


def _drawn(source: Source, pair: str, rows: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The figure of one run, and the positions in its circles."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 7.2), layout="constrained")
    grid = figure.add_gridspec(5, _SNAPSHOTS, height_ratios=(1.3, 1, 1, 1, 1))
    top = [figure.add_subplot(grid[0, i]) for i in range(_SNAPSHOTS)]
    accuracy, share, kappa, index = panels = [figure.add_subplot(grid[i, :]) for i in range(1, 5)]
    steps, circles = _snapshots(source, top)
    blue, orange, grey = *palette(2), "0.45"
    for name, tint in (("train_accuracy", blue), ("test_accuracy", orange)):
        if name in rows:
            known = rows[["step", name]].dropna()
            accuracy.plot(known["step"], known[name], color=tint, label=name.removesuffix("_accuracy"))
    accuracy.set(ylabel="accuracy", ylim=(-0.03, 1.03))
    data = source.embedding
    for k in keys_of(data):
        share.plot(data["step"].values, data["fourier_share"].values[:, k], linewidth=1.2, label=f"{k}")
    null = data["top_frequency_share_null"].values
    share.plot(data["step"].values, null, color=grey, linestyle="--", label="chance, p = 1 %")
    share.plot(steps, np.zeros(len(steps)), "^", color="0.2", markersize=5, clip_on=False)
    share.set(ylabel="share of\nfrequency", ylim=(0, 1.3 * share.get_ylim()[1]))
    measured = rows.dropna(subset=["index_upper"])
    for i in range(_RATIOS):
        if f"kappa_{i + 1}" in rows:
            kappa.plot(measured["step"], measured[f"kappa_{i + 1}"], color=colour(pair), alpha=1 - 0.3 * i, marker=".")
    kappa.axhline(1, color="black", linewidth=0.9, linestyle="--")
    kappa.set(ylabel=rf"$\kappa_1$ to $\kappa_{_RATIOS}$", yscale="log")
    index.fill_between(
        measured["step"], measured["index_lower"], measured["index_upper"], color=colour(pair), alpha=0.25, linewidth=0
    )
    # A line at one of two bounds would read as the index.
    sure = measured["index_upper"].where(measured["index_lower"] == measured["index_upper"])
    index.plot(measured["step"], sure, color=colour(pair), marker=".")
    index.set(ylabel="saddle index", ylim=(0, None))
    last = int(rows["step"].max())
    over_steps(panels, [source], last)
    for axis in panels[:-1]:
        axis.set_xlabel("")
        axis.tick_params(labelbottom=False)
    legend(accuracy, fontsize="small", loc="upper left")
    legend(share, fontsize="small", loc="upper left", ncols=6)
    if not accuracy.lines:
        nothing(accuracy, "no accuracies without the run file")
    return figure, circles


def _snapshots(source: Source, axes: Sequence[Axes]) -> tuple[NDArray[np.int64], pd.DataFrame]:
    """Draw the numbers in the plane of the largest frequency at steps spread over training; steps and positions."""
    data, number = source.embedding, source.numbers["number"].values
    steps = data["step"].values.astype(int)
    wanted = [steps[0], *(steps[-1] / 3**i for i in reversed(range(len(axes) - 1)))]
    chosen = np.unique([int(np.abs(steps - step).argmin()) for step in wanted])
    points: Any = None
    rows = []
    for axis, at in zip(axes, chosen, strict=False):
        k, z, _, _ = planes(data.isel(step=at))[0]
        axis.set_title(f"step {steps[at]:,}\nfrequency {k}", fontsize="small")
        points = draw_circle(axis, k, z, number, 9, 0.6)
        reach = 1.1 * np.abs(z).max() or 1.0
        axis.set(xlim=(-reach, reach), ylim=(-reach, reach))
        rows.append(source.table(step=int(steps[at]), frequency=k, number=number, x=z[:, 0], y=z[:, 1]))
    for axis in axes[len(chosen) :]:
        axis.set_axis_off()
    axes[0].figure.colorbar(points, ax=list(axes), label="number", shrink=0.9)
    return steps[chosen], pd.concat(rows)
