"""Titles and captions say no more than the files do."""

from __future__ import annotations

import dataclasses
import html
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import xarray
from conftest import TINY
from helpers.hessians import analyse

from landscape.cli.tables import contents
from landscape.config import HessianConfig
from landscape.files.inspect import inspect
from landscape.measure.geometry import measure_geometry
from landscape.measure.slices import Slices
from landscape.report.comparison import compared, side_by_side
from landscape.report.figures import FAMILIES, embedding, timeline
from landscape.report.figures.numbers import percent
from landscape.report.figures.several import Panel, several
from landscape.report.figures.slices import slices
from landscape.report.figures.sources import Drawn, Source, open_sources
from landscape.report.film import film
from landscape.report.findings import findings
from landscape.report.page import _notes, _repetitions
from landscape.report.style import style
from landscape.training.loop import train

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


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (0.0004, "< 1 %"),
        (0.4, "40 %"),
        (0.994, "99 %"),
        (0.9996, "> 99 %"),
        (1.0, "100 %"),
    ],
)
def test_a_rounded_share_is_not_exact(share: float, text: str) -> None:
    """0 % and 100 % are those alone."""
    assert percent(share) == text


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


def widen(data: xarray.Dataset) -> None:
    """Only bounds of the counts of E,W are known at step 60: two below and three above what they were."""
    at = {"step": 60, "block": "E,W"}
    for name, change in (("inertia_lower", -2), ("inertia_upper", 3)):
        data[name].loc[at] += change
    data["inertia"].loc[at] = np.nan
    for name, change in (("excess_index_lower", -2), ("excess_index_upper", 3)):
        data[name].loc[{"pair": "E,W"}] += change


def test_bounds_of_an_excess_index_are_no_count(tiny_run: Path) -> None:
    def alone(data: xarray.Dataset) -> xarray.Dataset:
        widen(data)
        return data.sel(pair=["E,W"], step=[60])

    source = changed(tiny_run, alone)
    count = int(source.measured["inertia_lower"].sel(block="E,W")[0])
    found = drawn("excess_index", source)
    assert found.title == f"Coupling adds negative directions: at least {count} to E,W at step 60"
    (told,) = found.numbers.values()
    assert told.startswith(f"largest at step 60: {count} to {count + 5}, of {count} to {count + 5} in the joint block")


def test_no_line_of_the_index_where_only_bounds_are_known(tiny_run: Path, run_file: Path) -> None:
    measure_geometry(run_file)
    shutil.copy(tiny_run.with_name("tiny.hessian.h5"), run_file.with_name("run.hessian.h5"))
    index = drawn("timeline", changed(run_file, widen)).figure.axes[8]
    assert index.get_ylabel() == "saddle index"
    assert np.isnan(index.lines[0].get_ydata()).tolist() == [False, False, True]


def test_a_block_that_is_not_measured_at_the_last_step(tiny_run: Path) -> None:
    """As an analysis leaves it that is stopped while it adds a block."""

    def stop(data: xarray.Dataset) -> None:
        for name, values in data.data_vars.items():
            if values.dtype.kind == "f":
                for axis in {"block", "other_block"} & {*values.dims}:
                    data[name].loc[{"step": 60, axis: "E"}] = np.nan

    for name in ("densities", "saddle_index", "extreme_eigenvalues", "excess_index", "tracking"):
        found = drawn(name, changed(tiny_run, stop))
        assert not re.search(r"\bnan\b", f"{found.title} {found.caption} {found.numbers}"), found
    assert "apart" not in drawn("densities", changed(tiny_run, stop)).title


def test_rates_that_are_0_have_no_ratio(tiny_run: Path) -> None:
    def freeze(data: xarray.Dataset) -> None:
        data["lr_E"][:], data["lr_W"][:] = 0, 0

    told = findings([changed(tiny_run, freeze, "metrics")])
    assert any(one.endswith("; the ratio in use is not known.") for one in told)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("grokked", [50, None])
def test_events_behind_lost_rows_are_bounds(
    is_lost: bool, grokked: int | None, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a network memorised and grokked at a step whose row damage took, nobody knows."""

    def change(data: xarray.Dataset) -> xarray.Dataset:
        data["train_accuracy"][:] = data["metric_step"] >= 40
        data["test_accuracy"][:] = data["metric_step"] >= (grokked or np.inf)
        return data.sel(metric_step=data["metric_step"] != 30) if is_lost else data

    source = changed(tiny_run, change, "metrics")
    at, never = ("by", "not seen to have grokked") if is_lost else ("at", "never grokked")
    told = f"grokked {at} step {grokked}" if grokked else never
    assert drawn("training_curves", source).title == f"Memorised {at} step 40; {told}"
    ends = f"groks {at} step {grokked}" if grokked else "is not seen to grok" if is_lost else "does not grok"
    assert embedding._order([(10, grokked)], [source]).endswith(f"; the network {ends}")
    if grokked:
        assert timeline._title([{timeline._GROKS: grokked}], [source]) == f"The network groks {at} step {grokked}"
    lines = side_by_side(compared([source]))
    row = dict(zip(*lines, strict=True))
    assert row["99 % of train at step"] == ("<=40" if is_lost else "40")
    unseen = "not seen" if is_lost else "never"
    assert row["95 % of test at step"] == ("<=" * is_lost + str(grokked) if grokked else unseen)
    both = drawn("training_curves", source, changed(tiny_run, lambda data: None, "metrics")).title
    assert both.endswith("; 1 lacks rows of metrics") == is_lost
    monkeypatch.setitem(source.__dict__, "diverged", 60)
    if not grokked:
        assert embedding._order([(10, None)], [source]).endswith("; the network diverges at step 60")


def test_a_kappa_stays_small() -> None:
    whole = [Source(None, None)]
    assert timeline._title([{timeline._PEAK: 0, timeline._GROKS: None}], whole) == "κ₁ is largest at step 0"
    assert timeline._title([{timeline._PEAK: None, timeline._GROKS: 9}], whole) == "The network groks at step 9"


def test_a_search_that_has_not_converged_proves_no_block_semidefinite(tiny_run: Path) -> None:
    def hide(data: xarray.Dataset) -> None:
        data["eigenvalues"].loc[{"end": "lowest"}] = 1e-3
        data["converged"].loc[{"end": "lowest"}] = 0

    source = changed(tiny_run, hide)
    found = drawn("extreme_eigenvalues", source)
    assert found.title == "No negative curvature was found"
    assert "at every step: no block." in found.caption
    assert ", E,W has no negative curvature that was found, index " in findings([source])[1]


def test_stars_are_explained(tiny_run: Path, tmp_path: Path) -> None:
    hessian = tmp_path / "lanczos.hessian.h5"
    few = {"steps": "0", "blocks": ("E,W",), "method": "lanczos", "k": 1, "max_hvps": 5, "probes": 2}
    analyse(tiny_run, HessianConfig(**few, device="cpu"), hessian, quiet=True)
    for path, is_starred in ((hessian, True), (tiny_run, False)):
        assert any(note.startswith("*: not every") for note in _notes(open_sources([path]))) == is_starred


def test_unknown_seeds_are_not_counted(tiny_run: Path) -> None:
    def of(*seeds: int) -> str:
        sources = [Source(tiny_run, None) for _ in seeds]
        for i, (source, seed) in enumerate(zip(sources, seeds, strict=True)):
            source.__dict__.update(run_attrs={"run_id": str(i)}, config={"seed": seed})
        return _repetitions(sources)

    assert of(3) == "1 run, 1 seed: one seed supports no general claim."
    assert of(3, 3) == "2 runs, 1 seed: one seed supports no general claim."
    assert of(-1) == "1 run, seed not known of 1: one seed supports no general claim."
    assert of(-1, -1, 4) == "3 runs, 1 seed, seed not known of 2: the figures show the spread."


def test_a_hessian_file_of_another_run_with_the_name_of_this_one(tiny_run: Path, tmp_path: Path) -> None:
    """As training again with --overwrite leaves it: two sources, which share nothing."""
    train(dataclasses.replace(TINY, steps=20), tmp_path / "tiny.h5", quiet=True)
    old = shutil.copy(tiny_run.with_name("tiny.hessian.h5"), tmp_path)
    sources = open_sources([tmp_path / "tiny.h5", Path(old)])
    labels = [source.label for source in sources]
    assert len({*labels}) == 2
    told = findings(sources)
    assert "did not grok by step 20" in told[0]
    assert told[1].startswith("steps 60: at the last analysed step, 60, E,W is curved down")


def test_losses_below_0_are_drawn(tiny_run: Path) -> None:
    """As those of densities: a logarithmic axis would be empty."""

    def lower(data: xarray.Dataset) -> None:
        for name in ("train_loss", "test_loss"):
            data[name][:] -= 10

    for change, scale in ((lower, "linear"), (lambda data: None, "log")):
        axis = drawn("training_curves", changed(tiny_run, change, "metrics")).figure.axes[0]
        assert axis.get_yscale() == scale


def test_no_depth_of_several_runs_is_not_missing(tiny_run: Path) -> None:
    """It was measured, and none is negative."""
    first, second = (Source(tiny_run, None, shows_folder) for shows_folder in (False, True))
    rows = [source.table(step=[0, 1], x=[1.0, 2.0], y=[np.nan] * 2) for source in (first, second)]
    with style():
        figure = several([first, second], [Panel(name, pd.concat(rows), (name,), "block E") for name in ("x", "y")])
    assert figure.axes[1].texts[0].get_text() == "block E\ny:\nnone known"


@pytest.mark.parametrize(("unit", "label"), [("nat", "objective (nat)"), ("", "objective")])
def test_a_slice_of_a_loss_of_ones_own_has_no_unit(unit: str, label: str) -> None:
    t, plane = np.linspace(-1, 1, 5), np.add.outer(np.arange(3.0), np.arange(3.0))
    ends = {"slope": np.zeros(2), "eigenvalues": np.ones(2), "names": ("lowest 1", "highest 1")}
    at = {"run": "run.h5", "step": 0, "block": "all", "objective": "data", "agreement": 0.0, "unit": unit}
    with style():
        figure = slices(Slices(t, np.outer(np.ones(2), t**2), 1.0, **ends, plane_t=t[1:4], plane=plane, **at)).figure
    assert [figure.axes[i].get_ylabel() for i in (0, 2)] == [label, label]


def test_the_film_marks_what_has_not_converged(tiny_run: Path) -> None:
    def stop(data: xarray.Dataset) -> None:
        data["converged"].loc[{"step": 20, "block": "E,W", "end": "highest", "rank": 1}] = 0
        data["coupling_ratio_error"].loc[{"step": 20, "pair": "E,W"}] = np.nan

    shown = film(changed(tiny_run, stop))
    assert shown is not None
    marks = [
        (one["step"], block, mark)
        for one in shown["steps"]
        for block, held in one["blocks"].items()
        for mark, is_marked in (("*", not held["is_sure"]), (">=", held["is_kappa_bound"]))
        if is_marked
    ]
    assert marks == [(20, "E,W", "*"), (20, "E,W", ">=")]


def test_the_film_leaves_out_a_density_that_is_not_known(tiny_run: Path) -> None:
    def lose(data: xarray.Dataset) -> None:
        data["E,W"].loc[{"step": 20}] = np.nan

    shown = film(changed(tiny_run, lose, "densities"))
    assert shown is not None
    lost = [
        (one["step"], block)
        for one in shown["steps"]
        for block, held in one["blocks"].items()
        if held["density"] is None
    ]
    assert lost == [(20, "E,W")]


def test_one_is_no_plural(tiny_run: Path) -> None:
    def one(data: xarray.Dataset) -> None:
        for name in ("inertia_lower", "inertia_upper"):
            data[name].loc[{"block": "E,W"}] = 1

    assert " in 1 direction (" in findings([changed(tiny_run, one)])[1]


def test_one_row_of_a_file(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    out = run_file.with_name("one.hessian.h5")
    analyse(run_file, HessianConfig(steps="60", blocks=("E",), k=1, probes=2, device="cpu"), out, quiet=True)
    assert re.search("  1 row of eigenvalues", contents(inspect(out)))


def test_copies_of_a_run_have_the_analyses_beside_them(tiny_run: Path, tmp_path: Path) -> None:
    """The first copy has two: its second one is no analysis of the other copy."""
    hessian = tiny_run.with_name("tiny.hessian.h5")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copy(tiny_run, tmp_path / name)
        shutil.copy(hessian, tmp_path / name)
    more = Path(shutil.copy(hessian, tmp_path / "a/tiny.hessian-more.h5"))
    sources = open_sources([tmp_path / "a/tiny.h5", tmp_path / "b/tiny.h5"])
    assert [source.hessian for source in sources] == [tmp_path / f"{n}/tiny.hessian.h5" for n in ("a", "b")] + [more]
