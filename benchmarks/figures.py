"""The figures of docs/performance.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from benchmarks.harness import Numbers
from landscape.report.style import new_figure, save_figure, style

if TYPE_CHECKING:
    from matplotlib.axis import Axis

PEERS = {"GEMMs alone": (7, ""), "PyHessian": (1, "//"), "curvlinops": (2, "..")}
"""Colour of each tool, as its place in seaborn's colour-blind palette, and its hatch."""
SEARCHES = {
    "landscape": (0, "o"),
    "curvlinops": (2, "^"),
    "hessian-eigenthings": (4, "v"),
}
"""Colour and marker of each search."""


def draw(results: Mapping[str, Mapping[str, Numbers]], folder: Path) -> dict[str, str]:
    """Write every figure whose numbers exist; returns captions by file name."""
    found = {}
    with style():
        for name, (script, drawn) in FIGURES.items():
            if results.get(script):
                figure, data, caption = drawn(results[script])
                save_figure(figure, data, folder, name)
                found[name] = caption
    return found


def _plain(*axes: Axis) -> None:
    """Logarithmic axes with 1, 2 and 5 of each decade written out."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for axis in axes:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())


def products(parts: Mapping[str, Numbers]) -> tuple[Any, pd.DataFrame, str]:
    """Time of one product by preset and tool over ours, one panel a precision."""
    import seaborn as sns

    rows = [
        {"preset": p["preset"], "dtype": p["dtype"], "tool": tool, "ms": 1e3 * s["median"], "ratio": ratio}
        for p in parts.values()
        for tool, s in p["seconds"].items()
        for ratio in [s["median"] / p["seconds"]["landscape"]["median"]]
    ]
    data = pd.DataFrame(rows)
    figure, palette = new_figure(2), sns.color_palette("colorblind", 10)
    for axis, (dtype, group) in zip(figure.axes, data.groupby("dtype"), strict=False):
        presets = list(dict.fromkeys(group["preset"]))
        for i, (tool, (colour, hatch)) in enumerate(PEERS.items()):
            at = group[group["tool"] == tool].set_index("preset")["ratio"].reindex(presets)
            x = [j + 0.26 * (i - 1) for j in range(len(presets))]
            axis.bar(x, at, 0.26, color=palette[colour], hatch=hatch, edgecolor="white", label=tool)
        axis.axhline(1, color="black", linewidth=1, linestyle="--", label="landscape")
        axis.set(title=dtype, xticks=range(len(presets)), xticklabels=presets, ylabel="time of a product, over ours")
        axis.set_ylim(0, 1.45 * data["ratio"].max())
    figure.axes[0].legend(loc="upper left", fontsize="small", ncols=2)
    return figure, data, "One product with the whole Hessian over the full training set, by tool: its time over ours."


def eigenvalues(parts: Mapping[str, Numbers]) -> tuple[Any, pd.DataFrame, str]:
    """Seconds of each search by preset and block, with the pairs it found."""
    import seaborn as sns

    rows = [
        {"preset": p["preset"], "block": p["block"], "tool": tool, **{k: p[tool][k] for k in _SEARCH}}
        for p in parts.values()
        for tool in SEARCHES
    ]
    data = pd.DataFrame(rows)
    searched = list(dict.fromkeys(zip(data["preset"], data["block"], strict=True)))
    figure, palette = new_figure(1), sns.color_palette("colorblind", 10)
    (axis,) = figure.axes
    for i, (tool, (colour, marker)) in enumerate(SEARCHES.items()):
        group = data[data["tool"] == tool].set_index(["preset", "block"]).reindex(searched)
        x = [j + 0.22 * (i - 1) for j in range(len(searched))]
        axis.scatter(x, group["seconds"], marker=marker, color=palette[colour], label=tool, zorder=2)
        for at, seconds, pairs in zip(x, group["seconds"], group["pairs"], strict=True):
            axis.annotate(pairs, (at, seconds), (0, 5), textcoords="offset points", fontsize="small", ha="center")
    axis.set(xticks=range(len(searched)), xticklabels=map(", ".join, searched), ylabel="s")
    axis.set_xlim(-0.6, len(searched) - 0.4)
    axis.set_ylim(0, 1.2 * data["seconds"].max())
    figure.legend(loc="outside lower center", fontsize="small", ncols=len(SEARCHES))
    caption = "Time of each search for 20 pairs by block; the number says how many it found to a residual of 1e-6."
    return figure, data, caption


def growth(parts: Mapping[str, Numbers]) -> tuple[Any, pd.DataFrame, str]:
    """Each series relative to its first point, with the line that the counts predict."""
    import seaborn as sns

    units = [u for u in ("s", "B") if any(p["unit"] == u for p in parts.values())]
    figure, palette = new_figure(len(units), 3.8), sns.color_palette("colorblind", 10)
    rows = []
    for axis, unit in zip(figure.axes, units, strict=True):
        for i, p in enumerate(p for p in parts.values() if p["unit"] == unit):
            x, y, counted = ([v / p[key][0] for v in p[key]] for key in ("x", "y", "counted"))
            label = f"{p['axis']}: {p['slope']:.2f} ({p['expected']:.2f})"
            axis.plot(x, y, marker="osD^vP"[i], markersize=4, color=palette[i], label=label)
            axis.plot(x, counted, color=palette[i], linestyle=":", linewidth=1.2)
            rows += [
                {"what": p["what"], "axis": p["axis"], "x": a, "y": b, "unit": unit}
                for a, b in zip(p["x"], p["y"], strict=True)
            ]
        quantity = {"s": "time", "B": "memory"}[unit]
        axis.set(xscale="log", yscale="log", xlabel="size / smallest size", ylabel=f"{quantity} / first {quantity}")
        _plain(axis.xaxis, axis.yaxis)
        axis.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.2),
            ncols=3 if len(units) == 1 else 2,
            fontsize="small",
            title="slope (counted)",
            title_fontsize="small",
        )
    caption = "Growth along each axis, all else as in preset mid (eigenvalues and checkpoints: quick); dotted: counted."
    return figure, pd.DataFrame(rows), caption


_SEARCH = ("seconds", "pairs", "residual")
FIGURES = {
    "products": ("products", products),
    "eigenvalues": ("eigenvalues", eigenvalues),
    "growth": ("growth", growth),
}
