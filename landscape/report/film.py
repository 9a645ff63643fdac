"""The film of a run for page readers: the numbers of its blocks by step, as film.js reads them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray
from matplotlib.colors import to_hex
from numpy.typing import NDArray

from landscape.files.schema import LEVELS
from landscape.report.figures.captions import network
from landscape.report.figures.embedding import keys_of, planes
from landscape.report.figures.numbers import numbers
from landscape.report.figures.sources import Source
from landscape.report.style import colour, palette, shades
from landscape.text import printable

Floats = NDArray[np.float64]

CHARTS = {
    "accuracy": (
        "Training and test accuracy over steps",
        "Accuracy: training grey, test green.",
    ),
    "ends": (
        "Ends of the spectrum of each block over the analysed steps",
        "λ_max (dashed) and depth −λ_min (points) of each block.",
    ),
    "index": (
        "Saddle index of each block over the analysed steps",
        "Saddle index; bars where only bounds are known.",
    ),
    "kappa": (
        "Coupling ratios of each pair over the analysed steps",
        "Largest coupling ratios: each above the line is a negative eigenvalue.",
    ),
}
"""Charts that film.js draws: what they show in a sentence, and their captions."""
SPECTRUM = {
    "spectrum": (
        "All eigenvalues of the dense blocks at the step of the slider",
        "Share of eigenvalues below each value; left of the line: negative.",
    ),
    "density": (
        "The smoothed spectral density of each block at the step of the slider",
        "Smoothed spectral density ± its standard error.",
    ),
}
GEOMETRY = {
    "frequencies": (
        "Shares of the embedding's frequencies over steps",
        "Shares of frequencies in use at the last step; grey: chance.",
    ),
    "circle": (
        "The numbers in the plane of the embedding's largest frequency at the step of the slider",
        "Numbers, dark to bright, in the largest frequency's plane; lines join neighbours.",
    ),
}
POINTS, ROWS = 101, 400
"""Largest numbers of points of a spectrum and of rows of accuracies that a page holds; the files hold all."""
FLOOR = 1e-6
"""Share of its peak below which the tails of a density are left out."""


def film(source: Source) -> dict[str, Any] | None:
    """What film.js shows of an analysed run; None without a measured step."""
    steps = source.measured["step"].values.astype(int).tolist() if "step" in source.measured else []
    if not steps:
        return None
    key = numbers(source)
    setting = str(source.config["model"]) if source.is_recorded else network(source.config)
    events = {"memorised": key.memorised, "grokked": key.grokked}
    by_step = {step: _blocks(source, step) for step in steps}
    named = {"run": printable(source.label), "setting": printable(setting)}
    found = assembled(by_step, _accuracy(source)) | events | named | {"largest": _largest(by_step)}
    return found | (_geometry(source, steps) if {"fourier_share", "plane_position"} <= set(source.embedding) else {})


def assembled(
    by_step: Mapping[int, Mapping[str, Mapping[str, Any]]], accuracy: Mapping[str, Sequence[float | None]]
) -> dict[str, Any]:
    """The parts of a film that all pages share: blocks by step and name, their colours, and the accuracies."""
    names = sorted({block for blocks in by_step.values() for block in blocks}, key=lambda name: (name.count(","), name))
    steps = [{"step": step, "blocks": blocks} for step, blocks in by_step.items()]
    return {"steps": steps, "colours": {name: to_hex(colour(name)) for name in names}, "accuracy": accuracy}


def resolved(grid: Floats, width: float, density: Floats, error: Floats) -> NDArray[np.int64]:
    """Positions on a grid that draw a smoothed density: at most its smoothing's width apart, without its far tails."""
    rows = np.arange(0, len(grid), max(1, int(width / (grid[1] - grid[0]))))
    seen = np.flatnonzero((density + error)[rows] > FLOOR * density.max())
    return rows[max(seen[0] - 1, 0) : seen[-1] + 2]


def smoothed(width: float, x: Iterable[float], y: Iterable[float], error: Iterable[float]) -> dict[str, Any]:
    """A density smoothed by a Gaussian of standard deviation `width`, as film.js reads it."""
    return {"width": known(width), "x": [*map(known, x)], "y": [*map(known, y)], "error": [*map(known, error)]}


def known(value: float) -> float | None:
    """A number in JSON, four digits of it; None for NaN."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _blocks(source: Source, step: int) -> dict[str, Any]:
    """The numbers of the blocks measured at a step."""
    at = source.measured.sel(step=step)
    pairs = [str(pair) for pair in at["pair"].values] if "pair" in at else []
    spectra = source.spectra.sel(step=step) if "step" in source.spectra else {}
    densities = source.densities.sel(step=step) if "step" in source.densities else {}
    found = {}
    for block in source.blocks():
        part = at.sel(block=block)
        ends = {name: known(float(part["eigenvalues"].sel(end=name, rank=0))) for name in ("lowest", "highest")}
        if None in ends.values():
            continue
        counts = [
            float(part["inertia"].sel(sign="negative")),
            float(part["inertia_lower"]),
            float(part["inertia_upper"]),
        ]
        names = ("index", "index_lower", "index_upper")
        index = {name: int(n) if math.isfinite(n) else None for name, n in zip(names, counts, strict=True)}
        ratios, errors = (
            at[name].sel(pair=block).values if block in pairs else np.empty(0)
            for name in ("coupling_ratios", "coupling_ratio_error")
        )
        is_there = part["eigenvalues"].notnull()
        values = spectra[block].values if block in spectra else np.empty(0)
        found[printable(block)] = {
            **ends,
            **index,
            "level": LEVELS[int(part["inertia_level"])],
            "is_sure": bool((part["converged"].where(is_there, 1) == 1).all()),
            "kappa": [known(ratio) for ratio in ratios[np.isfinite(ratios)]],
            "is_kappa_bound": bool((np.isfinite(ratios) & np.isnan(errors)).any()),
            "spectrum": [known(values[i]) for i in _thinned(len(values), POINTS)] if np.isfinite(values).all() else [],
            "density": _density(densities, block) if block in densities else None,
        }
    return found


def _density(densities: Mapping[Hashable, xarray.DataArray], block: str) -> dict[str, Any] | None:
    """The smoothed density of a block, None where it is not measured."""
    grid, density, error = (densities[name].values for name in ("eigenvalue", block, f"{block}_error"))
    if not np.isfinite(density).all():
        return None
    width = float(densities["width"])
    rows = resolved(grid, width, density, error)
    return smoothed(width, grid[rows], density[rows], error[rows])


def _largest(by_step: Mapping[int, Mapping[str, Any]]) -> float:
    """The largest magnitude in any spectrum."""
    found = [b["spectrum"] for blocks in by_step.values() for b in blocks.values() if b["spectrum"]]
    return max((abs(values[end]) for values in found for end in (0, -1)), default=0.0)


def _accuracy(source: Source) -> dict[str, Sequence[float | None]]:
    """Accuracies by step; no rows where they are not recorded."""
    training = [name for name in source.accuracies if "train" in name.lower()]
    others = [name for name in source.accuracies if name not in training]
    names = {"train_accuracy": training[:1], "test_accuracy": others[:1]}
    # Another training loop may record each metric at steps of its own.
    data = source.metrics[sum(names.values(), [])].dropna("metric_step", how="all") if source.accuracies else {}
    rows = _thinned(len(data["metric_step"]), ROWS) if data else []
    found: dict[str, Sequence[float | None]] = {"step": [int(data["metric_step"].values[i]) for i in rows]}
    for shown, name in names.items():
        values = data[name[0]].values[rows] if name else np.empty(0)
        whole = 100 if np.nanmax(values, initial=0) > 1 else 1
        found[shown] = [known(float(value) / whole) for value in values]
    return found


def _geometry(source: Source, steps: Sequence[int]) -> dict[str, Any]:
    """Shares of the frequencies by step, and the numbers in the plane of the largest at each of `steps` measured."""
    data = source.embedding
    n = data.sizes["place"]
    rows, keys = _thinned(data.sizes["step"], ROWS), keys_of(data)
    share = data["fourier_share"].values[rows]
    curves = [
        {"frequency": k, "colour": to_hex(tint), "share": [known(x) for x in share[:, k]]}
        for k, tint in zip(keys, palette(len(keys)), strict=True)
    ]
    chance = [known(x) for x in data["top_frequency_share_null"].values[rows]]
    circles = {}
    for step in sorted(set(steps) & set(data["step"].values.tolist())):
        k, z, part, r2 = planes(data.sel(step=step))[0]
        if k > 0:
            x, y = ([known(at) for at in axis] for axis in z.T)
            circles[str(step)] = {"frequency": k, "share": known(part), "r2": known(r2), "x": x, "y": y}
    numbers = [
        {"number": int(number), "colour": to_hex(tint)}
        for number, tint in zip(source.numbers["number"].values, shades(n), strict=True)
    ]
    of_frequencies = {"step": data["step"].values[rows].tolist(), "chance": chance, "curves": curves}
    return {"frequencies": of_frequencies, "circles": circles, "numbers": numbers}


def _thinned(count: int, most: int) -> list[int]:
    """Positions spread over all, at most so many, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist() if count else []
