"""Figures of coupled blocks: coupling ratios, and curvature and gradient ratios against their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from landscape.models.embedding_mlp.blocks import BALANCED
from landscape.report.figures.axes import legend, nothing, outside_legend, over_steps
from landscape.report.figures.captions import control, listed, what_was_run
from landscape.report.figures.families import family
from landscape.report.figures.numbers import claimed, digits, spread
from landscape.report.figures.settings import settings
from landscape.report.figures.several import are_several, lines, pair_panels, several
from landscape.report.figures.sources import Drawn, NotDrawnError, Source, having
from landscape.report.style import colour, distinct, marker, new_figure
from landscape.text import literal

if TYPE_CHECKING:
    import xarray

_FIRST, _SECOND = BALANCED
_NORMS = rf"\sigma_{{\max}}({_FIRST})/\sigma_{{\max}}({_SECOND})"
PREDICTED = {"curvature_ratio": f"$({_NORMS})^2$", "gradient_ratio": f"${_NORMS}$"}
MEASURED = {
    "curvature_ratio": rf"$\lambda_{{\max}}(H_{{{_SECOND * 2}}})/\lambda_{{\max}}(H_{{{_FIRST * 2}}})$",
    "gradient_ratio": rf"$\|\partial L/\partial {_SECOND}\|_F\,/\,\|\partial L/\partial {_FIRST}\|_F$",
}
_UNFITTED = "Curvature and gradient ratios against their predictions"
_NEEDED = f"blocks {_FIRST} and {_SECOND} are needed"


@family(50)
def coupling_ratios(sources: Sequence[Source]) -> Drawn:
    """The leading coupling ratios of every pair over steps, with the line at 1."""
    kept = having(sources, "measured", "coupling_ratios")
    found = [pair for pair in _pairs(kept) if any(np.isfinite(_ratios(source, pair)).any() for source in kept)]
    if not found:
        raise NotDrawnError("no coupling ratio was measured: the joint block of a pair is needed")
    figure = new_figure(len(found) + 1, height=2.9)
    *panels, counts = figure.axes
    rows, numbers = [], {}
    for source in kept:
        data = source.measured
        step = data["step"].values
        for axis, pair in zip(panels, found, strict=True):
            ratios = _ratios(source, pair)
            known = np.isfinite(ratios[:, 0])
            if not known.any():
                continue
            part = data.sel(pair=pair)
            for rank in range(ratios.shape[1]):
                fade = 1.0 - 0.75 * rank / ratios.shape[1]
                axis.plot(step, ratios[:, rank], color=colour(pair), alpha=fade, linewidth=1.6 if rank == 0 else 0.9)
            count, strength = part["coupling_index"].values, part["coupling_strength"].values
            counts.plot(step, count, color=colour(pair), label=literal(pair), **marker(pair))
            at = np.flatnonzero(known)[[0, -1]]
            strengths = [spread([strength[i]]) for i in at]
            above = [f"{count[i]:.0f}" if np.isfinite(count[i]) else "not certified" for i in at]
            numbers[f"{source.label}, {pair}"] = (
                f"κ_1 {_first(part, at[0])} at step {step[at[0]]}, {_first(part, at[1])} at step {step[at[1]]}; "
                f"above 1: {above[0]} and {above[1]}; coupling strength {' and '.join(strengths)}"
            )
            kappas = {f"kappa_{rank + 1}": ratios[:, rank] for rank in range(ratios.shape[1])}
            counted = {"coupling_index": pd.array(count, "Int64"), "coupling_strength": strength}
            rows.append(source.table(step=step, pair=pair, **kappas, **counted))
    for axis, pair in zip(panels, found, strict=True):
        axis.axhline(1, color="black", linewidth=0.9, linestyle="--")
        axis.set(title=f"pair {literal(pair)}", yscale="log")
    over_steps(figure.axes, kept)
    panels[0].set_ylabel(r"coupling ratio $\kappa_i$")
    counts.set(title=r"$\kappa_i$ above 1", ylabel="saddle index of the pair", yscale="symlog")
    counts.set_ylim(0, 2 * counts.get_ylim()[1])
    legend(counts)
    ranks = sorted({len(s.measured["rank"]) for s in kept})
    caption = (
        f"{what_was_run(kept)} The {' or '.join(map(str, ranks))} largest coupling ratios κ_i of each pair, darkest "
        "first, with both diagonal blocks shifted by the tolerance τ of the joint block. Each ratio above 1 is a "
        "direction of negative curvature of the joint block (F0); ratios far above 1 mark directions with almost no "
        f"curvature of their own.{lines(kept)} {control(kept)}"
    )
    table = pd.concat(rows)
    if are_several(kept):
        shown = [(r"$\kappa_1$", "log", ("kappa_1",)), (r"$\kappa_i$ above 1", "symlog", ("coupling_index",))]
        figure = several(kept, pair_panels(table, "pair", shown))
        caption = caption.replace(", darkest first,", ", of which the largest is shown,")
    return Drawn(_largest(table), figure, table, caption.rstrip(), numbers)


def _largest(table: pd.DataFrame) -> str:
    """The largest coupling ratio of the pairs, as a title."""
    most = table.groupby("pair", sort=False)["kappa_1"].max().dropna()
    told = [f"{digits(most[pair])} for {pair}" for pair in claimed(most.index)[:2]]
    return f"The largest coupling ratio reaches {', '.join(told)}; each above 1 is a negative direction"


@family(60)
def ratios(sources: Sequence[Source]) -> Drawn:
    """Curvature ratio and gradient ratio against their predictions, with log-log slope and R^2."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    kept = having(sources, "measured", *PREDICTED, *(f"{name}_predicted" for name in PREDICTED))
    figure = new_figure(2, height=3.2)
    rows = []
    for source in kept:
        data = source.measured
        columns = {n: data[n].values for name in PREDICTED for n in (name, f"{name}_predicted")}
        rows.append(source.table(step=data["step"].values, **columns))
    table = pd.concat(rows)
    # A logarithmic axis shows positive values only.
    drawn = {name: (table[[name, f"{name}_predicted"]] > 0).all(axis=1).to_numpy() for name in PREDICTED}
    if not any(good.any() for good in drawn.values()):
        raise NotDrawnError("no curvature or gradient ratio was measured: " + _NEEDED)
    numbers, fits = {}, {}
    panels = list(figure.axes)
    groups = settings(kept)
    norm = Normalize(0, max(np.log10(max(int(table["step"].max()), 1)), 1))
    for axis, name in zip(panels, PREDICTED, strict=True):
        axis.set_title(name.replace("_", " "))
        points = table[drawn[name]]
        if points.empty:
            nothing(axis, f"not measured:\n{_NEEDED}")
            numbers[name] = "not measured"
            continue
        x, y = points[f"{name}_predicted"].to_numpy(), points[name].to_numpy()
        if len(groups) > 1:
            for group, shade in zip(groups, distinct(len(groups)), strict=True):
                of_group = group.of(points)
                at = of_group[f"{name}_predicted"], of_group[name]
                axis.scatter(*at, color=shade, s=22, zorder=3, label=literal(group.label))
        else:
            order = np.log10(np.maximum(points["step"].to_numpy(), 1))
            scatter = axis.scatter(x, y, c=order, cmap=colormaps["viridis"], norm=norm, s=22, zorder=3)
        both = np.concatenate([x, y])
        ends = np.array([both.min() / 1.5, both.max() * 1.5])
        axis.plot(ends, ends, color="0.6", linestyle="--", linewidth=1, label="prediction")
        fit = power_law(x, y)
        if fit is not None:
            line = np.array([x.min(), x.max()])
            axis.plot(line, fit.factor * line**fit.slope, color="black", linewidth=1.2, label="fit")
            axis.set_title(f"{axis.get_title()}: slope {digits(fit.slope, '.2f')}")
            fits[name] = fit
        numbers[name] = "fewer than three points: no fit" if fit is None else str(fit)
        axis.set(xscale="log", yscale="log", xlabel=PREDICTED[name], ylabel=MEASURED[name])
        if len(groups) == 1:
            axis.legend()
    if len(groups) > 1:
        outside_legend(figure, panels)
    else:
        figure.colorbar(scatter, ax=panels, label=r"$\log_{10}$ step")
    by_setting = ", coloured by setting" * (len(groups) > 1)
    caption = (
        f"{what_was_run(kept)} One point a checkpoint{by_setting}; the dashed line is the prediction, the solid one a "
        f"least-squares fit of the logarithms. {listed(numbers)} "
        "Checkpoints of one run are not independent: the intervals are too narrow for a claim about runs."
    )
    told = [f"{name.replace('_', ' ')} {digits(fit.slope, '.2f')}" for name, fit in fits.items()]
    title = f"Slopes against their predictions, where 1 is predicted: {', '.join(told)}" if told else _UNFITTED
    return Drawn(title, figure, table, caption, numbers)


class PowerLaw:
    """y = factor * x^slope by least squares of the logarithms, with a 95 % interval of the slope and R^2."""

    def __init__(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> None:
        # scipy.stats would take longer to import than the figure to draw.
        from scipy.special import stdtrit

        self.points = len(x)
        u, v = np.log(x), np.log(y)
        du, dv = u - u.mean(), v - v.mean()
        spread = du @ du
        self.slope = float(du @ dv / spread)
        self.factor = float(np.exp(v.mean() - self.slope * u.mean()))
        left = float(((dv - self.slope * du) ** 2).sum())
        self.r_squared = 1 - left / float(dv @ dv) if dv.any() else 0.0
        self.half_width = float(stdtrit(self.points - 2, 0.975) * np.sqrt(left / (self.points - 2) / spread))

    def __str__(self) -> str:
        low, high = self.slope - self.half_width, self.slope + self.half_width
        return (
            f"slope {self.slope:.3f} (95 % interval {low:.3f} to {high:.3f}), factor {self.factor:.3g}, "
            f"R² {self.r_squared:.3f}, {self.points} points"
        )


def power_law(x: NDArray[np.float64], y: NDArray[np.float64]) -> PowerLaw | None:
    """The fit of numbers above 0, or None for fewer than three points or no spread in x."""
    return PowerLaw(x, y) if len(x) >= 3 and np.ptp(np.log(x)) > 0 else None


def _first(part: xarray.Dataset, row: int) -> str:
    """The largest ratio of one step, with ≥ where nothing bounds its error."""
    ratio, error = (float(part[name][row, 0]) for name in ("coupling_ratios", "coupling_ratio_error"))
    return f"{'≥ ' if np.isnan(error) and not np.isnan(ratio) else ''}{ratio:.4g}"


def _pairs(sources: Sequence[Source]) -> list[str]:
    """The pairs of the files, in their order."""
    return list(dict.fromkeys(str(p) for s in sources for p in s.measured["pair"].values))


def _ratios(source: Source, pair: str) -> NDArray[np.float64]:
    """The ratios of a pair (step, rank); NaN in a file without it, as of another model."""
    values: NDArray[np.float64] = source.measured["coupling_ratios"].reindex(pair=[pair]).isel(pair=0).values
    return values
