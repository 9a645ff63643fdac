"""The figures of C7's scripts, from their tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from landscape.report.style import new_figure

PREDICTION = {"gradient": "σ_max(E)/σ_max(W)", "curvature": "(σ_max(E)/σ_max(W))²"}
PHASES = ("fitting", "plateau", "grokked")
OPTIMIZERS = {"adam": "Adam", "sgd": "SGD"}
Numbers = dict[str, tuple[float, float, float]]
SIDEWAYS = 0.25
"""log2 units by which marks of one prediction are parted."""
LABELS = {"predicted": "predicted at the start", "predicted_median": "predicted over training"}


def balance(table: pd.DataFrame, found: dict[tuple[str, str], Numbers]) -> Figure:
    """Ratio against prediction, one panel for each ratio and optimizer."""
    figure = new_figure(2, height=3.0, rows=2)
    colours = dict(zip(PHASES, sns.color_palette("colorblind", 3), strict=True))
    for axes, ((quantity, optimizer), number) in zip(figure.axes, found.items(), strict=False):
        part = table[(table["quantity"] == quantity) & (table["optimizer"] == optimizer)]
        for phase, rows in part.groupby("phase"):
            axes.plot(rows["predicted"], rows["observed"], ".", color=colours[phase], alpha=0.5, markersize=3)
        ends = np.array([part["predicted"].min(), part["predicted"].max()])
        axes.plot(ends, ends, "k--", label="prediction")
        axes.plot(ends, number["intercept"][0] + number["slope"][0] * ends, "k-", label="fit")
        axes.set_title(f"{quantity.capitalize()} ratio, {OPTIMIZERS[optimizer]}")
        axes.set_xlabel(f"log₂ {PREDICTION[quantity]}")
        axes.set_ylabel(f"log₂ {quantity} ratio W/E")
    for axes in figure.axes[len(found) :]:
        axes.set_axis_off()
    for phase, colour in colours.items():
        figure.axes[0].plot([], [], "o", color=colour, label=phase)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def constants(known: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Ratio over prediction along training: median and middle 80 % over runs."""
    figure, drawn = new_figure(2), []
    for axes, quantity in zip(figure.axes, PREDICTION, strict=True):
        for (optimizer, name), colour in zip(OPTIMIZERS.items(), sns.color_palette("colorblind", 2), strict=True):
            part = known[(known["quantity"] == quantity) & (known["optimizer"] == optimizer)]
            if part.empty:
                continue
            at = 10 ** (np.round(np.log10(part["step"].clip(lower=0.5)) * 4) / 4)
            curve = (2 ** (part["observed"] - part["predicted"])).groupby(at).quantile([0.1, 0.5, 0.9]).unstack()
            axes.fill_between(curve.index, curve[0.1], curve[0.9], color=colour, alpha=0.25, linewidth=0)
            axes.plot(curve.index, curve[0.5], color=colour, label=name, marker={"adam": "o", "sgd": "s"}[optimizer])
            named = curve.set_axis(["low", "median", "high"], axis=1).rename_axis("step").reset_index()
            drawn.append(named.assign(quantity=quantity, optimizer=optimizer))
        axes.axhline(1, color="k", linestyle="--", linewidth=1)
        axes.set_xscale("log")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set(xlabel="step (step 0 is drawn at 0.5)", ylabel="measured / predicted")
        axes.set_title(f"{quantity.capitalize()} ratio")
        axes.legend()
    # One scale for both panels.
    table = pd.concat(drawn, ignore_index=True)
    for axes in figure.axes:
        axes.set_ylim(table["low"].min() / 1.1, table["high"].max() * 1.1)
    return figure, table


def ratios_along_x(axes: Axes) -> None:
    """An axis of factors of 2 with plain numbers."""
    axes.set_xscale("log", base=2)
    axes.set(xlim=(0.4, 40), xticks=[0.5, 1, 2, 4, 8, 16, 32])
    axes.xaxis.set_major_formatter("{x:g}")


def sweep(runs: pd.DataFrame, groups: pd.DataFrame, cases: pd.DataFrame) -> Figure:
    """Steps to grokking against c, a panel for each optimizer and initial scale."""
    panels = list(cases.groupby(["optimizer", "case"], sort=False))
    figure = new_figure(3, height=2.2, rows=-(-len(panels) // 3))
    colours = dict(zip(OPTIMIZERS.values(), sns.color_palette("colorblind", 2), strict=True))
    for axes, ((optimizer, case), row) in zip(figure.axes, panels, strict=False):
        mine = [t[(t["optimizer"] == optimizer) & (t["case"] == case)] for t in (runs, groups)]
        top = mine[0]["last"].max()
        late = mine[0]["grokked"].isna()
        axes.plot(mine[0]["lr_ratio"], mine[0]["grokked"], ".", color="0.55", label="run")
        axes.plot(mine[0]["lr_ratio"][late], mine[0]["last"][late], "^", color="0.55", mfc="w", label="not yet")
        line = mine[1].replace(np.inf, np.nan)
        axes.plot(line["lr_ratio"], line["median"], "-o", color=colours[optimizer], markersize=4, label="median")
        for name, dash in (("predicted", "--"), ("predicted_median", ":")):
            axes.axvline(row[name].item(), color="k", linestyle=dash, linewidth=1.2, label=LABELS[name])
        axes.set(yscale="log", title=f"{optimizer}, {case}", xlabel="c = lr_E / lr_W", ylabel="steps to 95 %")
        ratios_along_x(axes)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set(ylim=(runs["grokked"].min() / 1.3, top * 1.3))
    for axes in figure.axes[len(panels) :]:
        axes.set_axis_off()
    handles = {label: h for h, label in zip(*figure.axes[0].get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5)
    return figure


def best(cases: pd.DataFrame) -> Figure:
    """Best c against predicted c, at the start and over training: a marker per initial scale, a colour an optimizer."""
    figure = new_figure(2, height=3.4)
    markers = dict(zip(cases["case"].unique(), "osD^v", strict=False))
    colours = dict(zip(OPTIMIZERS.values(), sns.color_palette("colorblind", 2), strict=True))
    for axes, name in zip(figure.axes, LABELS, strict=True):
        known = cases[cases["best"].notna()]
        # Offset scales with the same prediction, so that none hides another.
        aside = 2.0 ** np.linspace(-SIDEWAYS, SIDEWAYS, len(known))
        for (_, row), factor in zip(known.iterrows(), aside, strict=True):
            xerr, yerr = ([[abs(row[of] - row[f"{of}_{end}"])] for end in ("low", "high")] for of in (name, "best"))
            style = {"color": colours[row["optimizer"]], "marker": markers[row["case"]], "capsize": 2, "alpha": 0.8}
            axes.errorbar(row[name] * factor, row["best"], yerr, np.multiply(xerr, factor), **style)
        ends = np.array([0.5, 32])
        axes.plot(ends, ends, "k--", linewidth=1)
        ratios_along_x(axes)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set(xlabel=f"c {LABELS[name]}", ylabel="best c of the sweep")
    for case, marker in markers.items():
        figure.axes[0].plot([], [], marker, color="0.4", label=case)
    for optimizer, colour in colours.items():
        figure.axes[0].plot([], [], "-", color=colour, label=optimizer)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=7, columnspacing=1)
    return figure
