"""Titles and captions say no more than the files do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import xarray

from landscape.report.figures import FAMILIES, Drawn, Source, open_sources
from landscape.report.style import style

Change = Callable[[xarray.Dataset], None]


def drawn(name: str, *sources: Source) -> Drawn:
    with style():
        return FAMILIES[name](sources)


def changed(run: Path, change: Change, part: str = "measured") -> Source:
    """The source of a run with other numbers in a part of its files."""
    (source,) = open_sources([run])
    data = getattr(source, part).copy(deep=True)
    change(data)
    source.__dict__[part] = data
    return source


def test_rounding_noise_is_no_negative_curvature(tiny_run: Path) -> None:
    """An eigenvalue of -1e-17 of a semidefinite block is not in the title, nor in the figure of several runs."""

    def lift(data: xarray.Dataset) -> None:
        lowest = data["eigenvalues"].sel(end="lowest")
        data["eigenvalues"].loc[{"end": "lowest"}] = np.maximum(lowest, -1e-17)

    found = drawn("extreme_eigenvalues", changed(tiny_run, lift))
    assert found.title == "No block shown has negative curvature"
    lowest = found.data.groupby("block")["lambda_min"].min()
    assert lowest["E,W"] == -1e-17


def test_the_deepest_block_where_no_pair_is_curved_down(tiny_run: Path) -> None:
    def lift(data: xarray.Dataset) -> None:
        for pair in ("E,W", "W,V"):
            data["eigenvalues"].loc[{"block": pair, "end": "lowest"}] = 1e-3

    (source,) = open_sources([tiny_run])
    lowest = float(source.measured["eigenvalues"].sel(block="all", end="lowest").min())
    assert lowest < 0
    title = drawn("extreme_eigenvalues", changed(tiny_run, lift)).title
    assert title == f"Curvature goes down: all to {lowest:.3g}".replace("-", "−")


def test_a_search_that_has_not_converged_bounds_the_depth(tiny_run: Path) -> None:
    def stop(data: xarray.Dataset) -> None:
        data["converged"].loc[{"block": "E,W", "end": "lowest", "rank": 0}] = 0

    before = drawn("extreme_eigenvalues", *open_sources([tiny_run])).title
    assert before.startswith("Curvature goes down: E,W to −")
    title = drawn("extreme_eigenvalues", changed(tiny_run, stop)).title
    assert title == before.replace("E,W to", "E,W at least to")
