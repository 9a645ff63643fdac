"""Titles and captions say no more than the files do."""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import xarray

from landscape.report.figures import FAMILIES, Drawn, Source, open_sources
from landscape.report.figures.several import Panel, several
from landscape.report.style import style

Change = Callable[[xarray.Dataset], xarray.Dataset | None]


def drawn(name: str, *sources: Source) -> Drawn:
    with style():
        return FAMILIES[name](sources)


def changed(run: Path, change: Change, part: str = "measured") -> Source:
    """The source of a run with other numbers in a part of its files."""
    (source,) = open_sources([run])
    data = getattr(source, part).copy(deep=True)
    source.__dict__[part] = data if (other := change(data)) is None else other
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


def letters(found: Drawn) -> str:
    """What a figure shows in letters."""
    with style(), matplotlib.rc_context({"svg.fonttype": "none"}):
        found.figure.savefig(shown := io.StringIO(), format="svg")
    return html.unescape(shown.getvalue())


@pytest.mark.parametrize("name", ["saddle_index", "extreme_eigenvalues", "tracking", "excess_index", "coupling_ratios"])
def test_names_are_shown_letter_by_letter(name: str, tiny_run: Path) -> None:
    """No name is typeset as a formula, ends in an error as half of one, or is left out of a legend."""
    names = {"E": "$x^2$", "E,W": "_hidden,$\\frac{$", "all": "$a_b"}

    def rename(data: xarray.Dataset) -> xarray.Dataset:
        return data.assign_coords(
            {axis: [names.get(label, label) for label in data[axis].values] for axis in ("block", "pair")}
        )

    found = letters(drawn(name, changed(tiny_run, rename)))
    for odd in names.values():
        assert odd in found or ("," not in odd and name in ("excess_index", "coupling_ratios"))


def test_the_legend_of_several_runs_has_every_setting(tiny_run: Path) -> None:
    """Also one that has no part in the panel with the most curves."""
    first, second = (Source(tiny_run, None, shows_folder) for shows_folder in (False, True))
    second.__dict__["config"] = first.config | {"lr": 0.5}
    nothing = [np.nan, np.nan]
    rows = [first.table(step=[0, 1], x=[1.0, 2.0], y=nothing), second.table(step=[0, 1], x=nothing, y=[1.0, 2.0])]
    with style():
        figure = several([first, second], [Panel(name, pd.concat(rows), (name,)) for name in ("x", "y")])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["lr 0.01", "lr 0.5"]
