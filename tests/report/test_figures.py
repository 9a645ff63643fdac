"""Figures draw the numbers of the files, by block in one colour, and nothing where there is nothing to draw."""

from __future__ import annotations

import dataclasses
import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from conftest import TINY
from helpers.hessians import analyse
from helpers.once import made_once
from matplotlib.colors import to_hex

from landscape import HessianConfig, train
from landscape import geometry as measure_geometry
from landscape.cli import main as cli
from landscape.errors import ConfigError, FileError
from landscape.report.comparison import compared, side_by_side
from landscape.report.figures import FIGURES, curvature, embedding, overview, training
from landscape.report.figures.panels import Drawn, readable_number
from landscape.report.sources import Frames, frames, open_sources
from landscape.report.style import chosen_formats, palette, save_figure, style
from landscape.report.words import digits

RATES = (0.01, 0.02)


@pytest.fixture(autouse=True)
def in_style() -> Iterator[None]:
    with style():
        yield


def measured(run: Path) -> Frames:
    return frames(open_sources([run]))


def drawn(figure: Drawn | None) -> Drawn:
    assert figure is not None
    return figure


def curves(figure: Drawn, axis: int) -> dict[str, tuple[list[float], list[float]]]:
    """The lines of a panel with their colours' names in the legend."""
    axes = figure.figure.axes[axis]
    handles = {to_hex(handle.get_color()): text.get_text() for handle, text in zip(
        figure.figure.legends[0].legend_handles, figure.figure.legends[0].get_texts(), strict=True
    )}  # fmt: skip
    return {
        handles[to_hex(line.get_color())]: (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.lines
        if len(line.get_xdata()) > 2
    }


def two_settings(folder: Path) -> None:
    """Two seeds of two learning rates, analysed."""
    for lr in RATES:
        for seed in (0, 1):
            run = folder / f"lr{lr}-s{seed}.h5"
            train(dataclasses.replace(TINY, lr=lr, seed=seed, steps=20), run, quiet=True)
            blocks = ("E", "W", "E,W")
            config = HessianConfig(blocks=blocks, steps="0,20", k=1, probes=2, curve=True, device="cpu")
            analyse(run, config, quiet=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The runs of `two_settings`, by rate and seed. Read only."""
    folder = made_once(tmp_path_factory, two_settings)
    return [folder / f"lr{lr}-s{seed}.h5" for lr in RATES for seed in (0, 1)]


def test_lines_and_tables_are_the_files_numbers(tiny_run: Path) -> None:
    """λ_max of every block, and the count of its negative eigenvalues."""
    extremes, index = (
        drawn(draw(measured(tiny_run))) for draw in (curvature.extreme_eigenvalues, curvature.saddle_index)
    )
    with h5py.File(tiny_run.with_name("tiny.hessian.h5")) as file:
        blocks = [name.decode() for name in file["block"][()]]
        for i, block in enumerate(blocks):
            steps, values = curves(extremes, 0)[block]
            assert steps == file["step"][()].tolist()
            np.testing.assert_array_equal(values, file["eigenvalues"][:, i, 1, 0])
            rows = extremes.data[(extremes.data["quantity"] == "lambda_max") & (extremes.data["block"] == block)]
            np.testing.assert_array_equal(rows["value"], file["eigenvalues"][:, i, 1, 0])
            np.testing.assert_array_equal(curves(index, 0)[block][1], file["inertia_lower"][:, i])
        depth = min(file["eigenvalues"][:, blocks.index("E,W"), 0, 0])
    assert extremes.title.startswith(f"λ_min falls to {depth:.3g} in E,W".replace("-", "−"))


def test_training_curves_and_couplings(tiny_run: Path) -> None:
    accuracies, ratios = (
        drawn(draw(measured(tiny_run))) for draw in (training.training_curves, curvature.coupling_ratios)
    )
    with h5py.File(tiny_run) as run, h5py.File(tiny_run.with_name("tiny.hessian.h5")) as file:
        np.testing.assert_array_equal(curves(accuracies, 0)["test"][1], run["metrics/test_accuracy"])
        np.testing.assert_array_equal(curves(accuracies, 1)["train"][1], run["metrics/train_loss"])
        pair = [name.decode() for name in file["pair"][()]].index("E,W")
        np.testing.assert_array_equal(curves(ratios, 0)["E,W"][1], file["coupling_ratios"][:, pair, 0])
        np.testing.assert_array_equal(curves(ratios, 1)["E,W"][1], file["coupling_index"][:, pair])


def test_the_overview_is_the_files(tiny_run: Path) -> None:
    """Test accuracy beside the counts of the pair, of all parameters and of the control."""
    figure = drawn(overview.overview(measured(tiny_run)))
    with h5py.File(tiny_run) as run, h5py.File(tiny_run.with_name("tiny.hessian.h5")) as file:
        np.testing.assert_array_equal(curves(figure, 0)["test"][1], run["metrics/test_accuracy"])
        blocks = [name.decode() for name in file["block"][()]]
        for block in ("E,W", "W,V", "all"):
            np.testing.assert_array_equal(curves(figure, 2)[block][1], file["inertia_lower"][:, blocks.index(block)])
        first, last = file["inertia_lower"][[0, -1], blocks.index("E,W")]
    assert figure.title.endswith(f"; negative eigenvalues of E,W: {first} at the first step, {last} at the last")


def test_densities_and_spectra_are_the_files(tiny_run: Path) -> None:
    """Each curve of eigenvalues begins and ends at the extreme ones; the distances are those of the last step."""
    tables = measured(tiny_run)
    density, spectrum = drawn(curvature.densities(tables)), drawn(curvature.spectra(tables))
    with h5py.File(tiny_run.with_name("tiny.hessian.h5")) as file:
        blocks = [name.decode() for name in file["block"][()]]
        for i, block in enumerate(blocks):
            rows = density.data[density.data["block"] == block]
            np.testing.assert_array_equal(rows["density"], file[f"density/{block}"][-1])
            ends = spectrum.data[(spectrum.data["block"] == block) & (spectrum.data["step"] == 60)]["eigenvalue"]
            lowest, highest = file["eigenvalues"][-1, i, :, 0]
            np.testing.assert_allclose([ends.iloc[0], ends.iloc[-1]], [lowest, highest], rtol=1e-9, atol=1e-12)
        distances = file["jensen_shannon"][-1]
    texts = [float(text.get_text()) for text in density.figure.axes[1].texts]
    np.testing.assert_allclose(texts, np.round(distances, 2).ravel(), atol=1e-12)


def test_index_curves_are_the_files(tiny_run: Path) -> None:
    """A panel a step, with the counts of every block by tolerance; the title has those of the pair."""
    figure = drawn(curvature.index_curves(measured(tiny_run)))
    with h5py.File(tiny_run.with_name("tiny.hessian.h5")) as file:
        taus, counts = file["tau"][()], file["index_curve_lower"][()]
        for step, at_step in zip(range(3), counts, strict=True):
            for i, block in enumerate(name.decode() for name in file["block"][()]):
                at, values = curves(figure, step)[block]
                assert at == sorted(taus)
                np.testing.assert_array_equal(values, at_step[i][::-1])
        pair = [name.decode() for name in file["block"][()]].index("E,W")
    assert f"E,W has {counts[-1, pair, 2]} eigenvalues below −10⁻² ‖H‖ and {counts[-1, pair, 10]} below" in figure.title
    assert list(figure.data["tau"].unique()) == list(taus)


def test_index_curves_are_by_setting(runs: list[Path]) -> None:
    """At the last step, a panel for each block with negative eigenvalues; the title has the median of all runs."""
    figure = drawn(curvature.index_curves(frames(open_sources(runs))))
    assert [axis.get_title() for axis in figure.figure.axes] == ["E,W, last step"]
    counts = {run: h5py.File(run.with_name(f"{run.stem}.hessian.h5"))["index_curve_lower"][1, 2] for run in runs}
    lines = curves(figure, 0)
    for i, lr in enumerate(RATES):
        seeds = [counts[run] for run in runs[2 * i : 2 * i + 2]]
        np.testing.assert_array_equal(lines[f"lr {lr}"][1], np.mean(seeds, axis=0)[::-1])
    most = [count[10] for count in counts.values()]
    assert f"and {np.median(most):,.0f}" in figure.title


def test_a_band_spans_what_is_not_known(tiny_run: Path, tmp_path: Path) -> None:
    """Of a matrix-free block the 95 % interval of the estimate; the line is the estimate."""
    out = tmp_path / "h.h5"
    asked = {"method": "lanczos", "factor_limit": 0, "curve": True, "probes": 2}
    config = HessianConfig(steps="0,60", blocks=("E,W",), device="cpu", **asked)
    analyse(tiny_run, config, out, quiet=True)
    figure = drawn(curvature.index_curves(frames(open_sources([out]))))
    at, values = figure.figure.axes[1].lines[0].get_data()
    with h5py.File(out) as file:
        low, estimate, high = (
            file[f"index_curve_{name}"][1, 0][::-1] for name in ("estimate_low", "estimate", "estimate_high")
        )
        is_open = ~np.isnan(estimate)
    assert is_open.any()
    np.testing.assert_array_equal(values[is_open], estimate[is_open])
    (band,) = figure.figure.axes[1].collections
    edges = band.get_paths()[0].vertices
    for x, *ends in zip(np.array(at)[is_open], low[is_open], high[is_open], strict=True):
        assert {*ends} <= {*edges[edges[:, 0] == x, 1]}


def test_the_geometry_is_the_files(run_file: Path) -> None:
    """Numbers lie in the plane where the geometry file has them."""
    path = measure_geometry(run_file, quiet=True)
    tables = measured(run_file)
    circles, shares = drawn(embedding.embedding_circles(tables)), drawn(embedding.fourier_shares(tables))
    assert embedding.geometry_progress(tables)
    with h5py.File(path) as file:
        plane = circles.data[circles.data["plane_frequency"] == circles.data["plane_frequency"].iloc[0]]
        np.testing.assert_array_equal(plane[["x", "y"]], file["plane_position"][-1, 0])
        np.testing.assert_array_equal(shares.data["fourier_share"], file["fourier_share"][:, 1:].ravel())


@pytest.mark.parametrize("draw", FIGURES, ids=lambda draw: draw.__name__)
def test_without_data_nothing_is_drawn(draw: object, tiny_run: Path) -> None:
    """Nor over the single step of an analysis, but for what shows one step."""
    assert callable(draw)
    tables = measured(tiny_run)
    assert draw({"runs": tables["runs"]}) is None
    one = {name: table[table["step"] == 60] if "step" in table else table for name, table in tables.items()}
    shows_a_step = draw in (curvature.spectra, curvature.densities, curvature.index_curves)
    assert (draw(one) is not None) == shows_a_step


def test_a_block_and_a_split_have_one_look(tiny_run: Path) -> None:
    """In every figure, whichever others are in it; blocks of a user's own differ while there are colours."""
    tables = measured(tiny_run)
    renamed = {"E": "first", "W": "second", "E,W": "first,second", "W,V": "third", "V": "fourth"}
    tables = {
        name: table.assign(**{axis: table[axis].replace(renamed) for axis in ("block", "pair") if axis in table})
        for name, table in tables.items()
    }
    colours: dict[str, set[str]] = {}
    markers: dict[str, set[str]] = {}
    for draw in (overview.overview, training.training_curves, curvature.extreme_eigenvalues, curvature.saddle_index,
                 curvature.coupling_ratios, curvature.tracking, curvature.densities):  # fmt: skip
        figure = drawn(draw(tables)).figure
        for handle, text in zip(figure.legends[0].legend_handles, figure.legends[0].get_texts(), strict=True):
            colours.setdefault(text.get_text(), set()).add(to_hex(handle.get_color()))
            if draw is not curvature.densities:
                markers.setdefault(text.get_text(), set()).add(handle.get_marker())
    names = (*renamed.values(), "all", "train", "test")
    assert {len(looks[name]) for looks in (colours, markers) for name in names} == {1}
    assert len({tuple(colours[name]) for name in (*renamed.values(), "all")}) == 6
    assert len({tuple(markers[name]) for name in names}) == 8
    assert len(set(palette(map(str, range(10))).values())) == 10


def test_names_are_shown_letter_by_letter(tiny_run: Path, tmp_path: Path) -> None:
    """No name is typeset as a formula, left out of a legend, or breaks the SVG."""
    names = {"E": "$x^2$", "E,W": "_hidden,$\\frac{$", "all": "<b>\x1b"}
    tables = measured(tiny_run)
    tables = {
        name: table.assign(**{axis: table[axis].replace(names) for axis in ("block", "pair") if axis in table})
        for name, table in tables.items()
    }
    for draw in (curvature.extreme_eigenvalues, curvature.saddle_index, curvature.spectra):
        drawing = drawn(draw(tables))
        path = save_figure(drawing.figure, drawing.data.drop(columns="block"), tmp_path, draw.__name__)["svg"]
        text = "".join(ET.fromstring(path.read_text()).itertext())
        assert all(name in text for name in ("$x^2$", "_hidden,$\\frac{$", "<b>\\x1b")), draw


def test_rounding_noise_is_no_negative_curvature(tiny_run: Path) -> None:
    tables = dict(measured(tiny_run))
    table = tables["by_step_block_end_rank"].copy()
    table.loc[table["end"] == "lowest", "eigenvalues"] = -1e-17
    drawing = drawn(curvature.extreme_eigenvalues({**tables, "by_step_block_end_rank": table}))
    assert drawing.title == "No block has negative curvature"
    assert "-lambda_min" not in set(drawing.data["quantity"].where(drawing.data["block"] == "E,W"))


def test_figures_are_by_setting(runs: list[Path]) -> None:
    """A colour a learning rate, and the median of its seeds with a band; the table holds each run."""
    tables = frames(open_sources(runs))
    drawing = drawn(curvature.extreme_eigenvalues(tables))
    assert [text.get_text() for text in drawing.figure.legends[0].get_texts()] == ["lr 0.01", "lr 0.02"]
    axis = drawing.figure.axes[0]
    assert axis.get_title() == "E,W"
    highest = []
    for run in runs[:2]:
        with h5py.File(run.with_name(f"{run.stem}.hessian.h5")) as file:
            highest.append(file["eigenvalues"][:, 2, 1, 0])
    np.testing.assert_allclose(axis.lines[0].get_ydata(), np.median(highest, 0), rtol=1e-12)
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((np.min(highest), np.max(highest)))
    assert drawing.data["run"].nunique() == 4


def test_runs_side_by_side(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only what differs is named; the table and JSON have the files' numbers; a broken file keeps none from it."""
    title, *lines = side_by_side(compared(open_sources(runs)))
    table = [dict(zip(title, line, strict=True)) for line in lines]
    assert [(row["lr"], row["seed"]) for row in table] == [("0.01", "0"), ("0.01", "1"), ("0.02", "0"), ("0.02", "1")]
    assert not {"p", "optimizer", "index W,V"} & set(title)
    broken = tmp_path / "broken.h5"
    broken.write_bytes(b"no")
    assert cli.run(["compare", "--json", *map(str, runs), str(broken)]) == 1
    said = capsys.readouterr()
    assert f"error: {broken} is not an HDF5 file" in said.err
    document = json.loads(said.out)["runs"]
    for run, row, full in zip(runs, table, document, strict=True):
        with h5py.File(run.with_name(f"{run.stem}.hessian.h5")) as file:
            at = file["step"][()].tolist().index(int(row["analysed step"]))
            lowest, index = file["eigenvalues"][at, 2, 0, 0], file["inertia_lower"][at, 2]
        assert row["lambda_min E,W"] == f"{lowest:.4g}"
        assert row["index E,W"] == f"{index} (certified)"
        assert full["numbers"]["pairs"]["E,W"]["lowest"] == lowest


def test_files_find_each_other(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By run id, in any order; analyses of a sweep too; one of another run is left out, one named twice counts once."""
    for run in runs[:2]:
        shutil.copy(run, tmp_path)
    run, hessian, named = (tmp_path / f"{runs[0].stem}{kind}.h5" for kind in ("", ".hessian", ".hessian-few"))
    for path in (hessian, named):
        shutil.copy(runs[0].with_name(f"{runs[0].stem}.hessian.h5"), path)
    assert [sorted(source.files) for source in open_sources([run])] == [["hessian", "run"], ["hessian"]]
    for files in ([hessian], [hessian, run], [run, hessian, run]):
        (source,) = open_sources(files)
        assert source.files == {"run": run, "hessian": hessian}
    assert f"note: {run} is named twice" in capsys.readouterr().err
    named.unlink()
    shutil.copy(runs[2].with_name(f"{runs[2].stem}.hessian.h5"), hessian)
    (source,) = open_sources([run])
    assert sorted(source.files) == ["run"]
    assert f"{hessian} is left out: it was not made from {run}" in capsys.readouterr().err
    run.unlink()
    geometry = measure_geometry(tmp_path / runs[1].name, quiet=True).rename(tmp_path / "alone.h5")
    with pytest.raises(FileError, match="its run file is not beside it"):
        open_sources([geometry])


def test_ticks_are_read_easily() -> None:
    """0.02 and 1,000; powers of ten only where a number would be long."""
    assert [readable_number(x) for x in (0.02, 0.0001, 12345, -0.5)] == ["0.02", "0.0001", "12,345", "−0.5"]
    assert [readable_number(x) for x in (1e-5, -1e-7, 2e6)] == ["10⁻⁵", "−10⁻⁷", "2×10⁶"]
    assert [digits(x) for x in (8740.3, 1.5e6, 0.00123)] == ["8,740", "1.5e+06", "0.00123"]


def test_a_figure_in_further_formats(tiny_run: Path, tmp_path: Path) -> None:
    """The same data give the same bytes; counts that are not known are empty cells."""
    texts = []
    for name in ("a", "b"):
        drawing = drawn(curvature.saddle_index(measured(tiny_run)))
        paths = save_figure(drawing.figure, drawing.data, tmp_path, name, chosen_formats("png, pdf"))
        texts.append([paths[form].read_bytes() for form in ("svg", "png", "pdf", "csv")])
    assert texts[0] == texts[1]
    assert texts[0][1].startswith(b"\x89PNG")
    assert texts[0][2].startswith(b"%PDF")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a.csv"), drawing.data, check_dtype=False)
    with pytest.raises(ConfigError, match="unknown format of figures: 'gif'"):
        chosen_formats("png,gif")
