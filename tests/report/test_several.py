"""Several runs: what differs, side by side; figures by setting; analyses of a sweep beside their runs."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from conftest import TINY
from helpers.hessians import analyse
from helpers.once import made_once
from helpers.spoiling import configure

from landscape.cli import main as cli
from landscape.config import HessianConfig
from landscape.errors import FileError
from landscape.report.comparison import compared, side_by_side
from landscape.report.figures import FAMILIES, embedding, timeline
from landscape.report.figures.settings import settings
from landscape.report.figures.several import BANDS, band
from landscape.report.figures.sources import open_sources
from landscape.report.findings import findings
from landscape.report.page import write_report
from landscape.report.style import style
from landscape.training.loop import train

RATES = (0.01, 0.02)


def two_settings(folder: Path) -> None:
    """Two seeds of two learning rates, analysed."""
    for lr in RATES:
        for seed in (0, 1):
            run = folder / f"lr{lr}-s{seed}.h5"
            train(dataclasses.replace(TINY, lr=lr, seed=seed, steps=20), run, quiet=True)
            blocks = ("E", "W", "E,W")
            analyse(run, HessianConfig(blocks=blocks, steps="0,20", k=1, probes=2, device="cpu"), quiet=True)


def test_an_analysis_without_the_pair_is_not_counted(tiny_run: Path, tmp_path: Path) -> None:
    """Of two, one of which has only single blocks, the sentence on depths says that it speaks of one."""
    other = tmp_path / "other.h5"
    train(dataclasses.replace(TINY, seed=7), other, quiet=True)
    analyse(other, HessianConfig(blocks=("E", "W"), steps="20", k=1, probes=2, device="cpu"), quiet=True)
    depths = findings(open_sources([tiny_run, other]))[1]
    assert depths.startswith("In 2 analyses, each at its last step, E,W in 1 of them is curved down")
    assert " of them" not in findings(open_sources([tiny_run]))[1]


@pytest.mark.long
def test_runs_of_two_models_are_in_one_report(tiny_run: Path, tmp_path: Path) -> None:
    """An MLP and a Transformer share few blocks and no pair: every figure that one alone has is drawn of both."""
    other = tmp_path / "other.h5"
    shape = {"model": "transformer", "embed_dim": 4, "heads": 2, "hidden": 6, "tokens": 3}
    train(dataclasses.replace(TINY, steps=20, **shape), other, quiet=True)
    analyse(other, HessianConfig(steps="0,20", k=2, device="cpu"), quiet=True)
    for files in ([tiny_run, other], [other, tiny_run]):
        page = write_report(files, tmp_path / f"report-{files[0].stem}", quiet=True)
        ratios = pd.read_csv(page.parent / "figures" / "coupling_ratios.csv")
        pairs = {run: set(part["pair"]) for run, part in ratios.groupby("run")}
        assert {"E,W", "W,V"} <= pairs["tiny (seed 0)"]
        assert {"V,O", "mlp_in,mlp_out"} <= pairs["other (seed 0)"]
        assert not pairs["tiny (seed 0)"] & pairs["other (seed 0)"]


def test_titles_of_runs_in_which_nothing_came() -> None:
    """ "0 of 0 runs" says nothing."""
    assert (
        embedding._order([(None, 100), (50, None)], [])
        == "No run has both a frequency out of chance and 95 % test accuracy"
    )
    assert embedding._order([(None, 100), (50, 100)], []).endswith("in 1 of 1 runs that have both")
    nothing = dict.fromkeys((timeline._HALF, timeline._PEAK, timeline._GROKS))
    assert timeline._title([nothing, nothing], []) == "No run groks with a frequency or a coupling ratio to compare"
    grokked = {timeline._HALF: None, timeline._PEAK: 20, timeline._GROKS: 100}
    assert timeline._title([nothing, grokked], []) == "Before the network groks, κ₁ is largest in 1 of 1 runs"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The runs of `two_settings`, by rate and seed. Read only."""
    folder = made_once(tmp_path_factory, two_settings)
    return [folder / f"lr{lr}-s{seed}.h5" for lr in RATES for seed in (0, 1)]


def test_the_band_holds_every_run() -> None:
    """Three runs at steps of their own: interpolated inside each, and nothing beyond its ends; bounds count both."""
    rows = [("a", 0, 1.0), ("a", 10, 3.0), ("b", 0, 5.0), ("b", 5, 5.0), ("c", 5, np.nan), ("c", 10, 9.0)]
    table = pd.DataFrame(rows, columns=["run", "step", "x"]).assign(y=lambda at: at["x"] + 10)
    found = band(table, ("x",))
    np.testing.assert_array_equal(found, [[0, 5, 10], [1, 2, 3], [3, 3.5, 6], [5, 5, 9]])
    np.testing.assert_array_equal(band(table, ("x", "y"))[1:], [[1, 2, 3], [8, 8.5, 11], [15, 15, 19]])
    assert [len(part) for part in band(table.iloc[:0], ("x",))] == [0] * 4


def test_figures_are_by_setting(runs: list[Path]) -> None:
    """One colour a learning rate, and the median of its seeds; the CSV holds each run."""
    sources = open_sources(runs)
    assert [(group.label, len(group.sources)) for group in settings(sources)] == [("lr 0.01", 2), ("lr 0.02", 2)]
    names = ("extreme_eigenvalues", "saddle_index", "training_curves", "densities", "embedding_norms", "ratios")
    with style():
        drawn = {name: FAMILIES[name](sources) for name in names}
    points = [
        {of.get_label(): of.get_facecolor().tobytes() for of in axis.collections}
        for axis in drawn["ratios"].figure.axes
    ]
    assert [list(colours) for colours in points] == 2 * [["lr 0.01", "lr 0.02"]]
    assert points[0] == points[1]
    assert len(set(points[0].values())) == 2
    assert "coloured by setting" in drawn.pop("ratios").caption
    assert "index 0 at step" in drawn["saddle_index"].numbers[f"{sources[0].label}, E"]
    assert drawn["training_curves"].figure.axes[0].get_ylabel() == "train loss (nat)"
    for one in drawn.values():
        assert BANDS in one.caption
        assert one.data["run"].nunique() == 4
        for axis in (axis for axis in one.figure.axes if axis.axison):
            colours = {line.get_label(): line.get_color() for line in axis.lines}
            assert list(colours) == ["lr 0.01", "lr 0.02"]
            assert len(set(colours.values())) == 2
    axis = drawn["extreme_eigenvalues"].figure.axes[0]
    assert axis.get_title() == "block E,W"
    depth = []
    for run in runs[:2]:
        with h5py.File(run.with_name(f"{run.stem}.hessian.h5")) as file:
            depth.append(-file["eigenvalues"][:, 2, 0, 0])
    np.testing.assert_allclose(axis.lines[0].get_ydata(), np.median(depth, 0), rtol=1e-12)
    np.testing.assert_array_equal(axis.lines[0].get_xdata(), [0, 20])


def test_runs_side_by_side(
    runs: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what differs is named; the terminal, JSON and the report's table have the files' numbers."""
    title, *lines = side_by_side(compared(open_sources(runs)))
    table = [dict(zip(title, line, strict=True)) for line in lines]
    assert [(row["lr"], row["seed"]) for row in table] == [("0.01", "0"), ("0.01", "1"), ("0.02", "0"), ("0.02", "1")]
    assert not {"p", "optimizer", "index W,V"} & set(title)
    monkeypatch.setenv("COLUMNS", "500")
    assert cli.run(["compare", *map(str, runs)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert cli.run(["compare", "--json", *map(str, runs)]) == 0
    document = json.loads(capsys.readouterr().out)["runs"]
    for i, (run, row) in enumerate(zip(runs, table, strict=True)):
        with h5py.File(run.with_name(f"{run.stem}.hessian.h5")) as file:
            at = file["step"][()].tolist().index(int(row["analysed step"]))
            depth, index = -file["eigenvalues"][at, 2, 0, 0], file["inertia_lower"][at, 2]
        assert row["depth E,W"] == f"{depth:.4g}"
        assert row["index E,W"] == f"{index} (certified)"
        assert document[i]["numbers"]["pairs"]["E,W"]["depth"] == depth
        assert document[i]["options"] == {"lr": row["lr"], "seed": row["seed"]}
        (line,) = (line for line in said if line.lstrip().startswith("depth E,W"))
        assert line.split()[2:][i] == row["depth E,W"]
    assert document[0]["numbers"]["memorised"] is None
    assert row["95 % of test at step"] == "never"


def test_a_broken_file_does_not_keep_others_from_being_compared(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing file, a text, a broken analysis and a config that cannot be: each is named, the rest side by side."""
    folder = Path(shutil.copytree(runs[0].parent, tmp_path / "runs"))
    missing, text, first = folder / "missing.h5", folder / "text.h5", folder / runs[0].name
    text.write_text("no HDF5")
    (folder / f"{runs[1].stem}.hessian.h5").write_bytes(b"broken")
    other = folder / runs[2].name
    with h5py.File(other, "r+") as file:
        configure(file, hidden=-1)
    argv = ["compare", first, missing, text, *(folder / run.name for run in runs[1:])]
    assert cli.run([*map(str, argv), "--json"]) == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out)["runs"]
    assert [(Path(row["file"]).name, row["hessian"] is None) for row in found] == [
        (runs[0].name, False), (runs[1].name, True), (runs[3].name, False),
    ]  # fmt: skip
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    for path, line in zip((missing, text, folder / f"{runs[1].stem}.hessian.h5", other), errors, strict=True):
        assert line.startswith(f"error: {path}")
    with pytest.raises(FileError, match="missing"):
        open_sources([first, missing])


def test_a_file_that_is_named_twice_counts_once(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the same path, or by a link to it; a run and its analysis are two files."""
    (link := tmp_path / "link.h5").symlink_to(runs[0])
    analysis = runs[0].with_name(f"{runs[0].stem}.hessian.h5")
    assert len(open_sources([runs[0], analysis])) == 1
    assert capsys.readouterr().err == ""
    assert len(open_sources([runs[0], runs[1], runs[0], link])) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"note: {runs[0]} is named twice",
        f"note: {link} is {runs[0]}, and counts once",
    ]


def test_analyses_of_a_sweep_are_found_beside_their_run(runs: list[Path], tmp_path: Path) -> None:
    """RUN.hessian-NAME.h5 of the same run; one of another run is left where it is."""
    run = Path(shutil.copy(runs[0], tmp_path / "a.h5"))
    for source, name in ((runs[0], "a.hessian-late.h5"), (runs[0], "a.hessian-early.h5"), (runs[1], "a.hessian-no.h5")):
        shutil.copy(source.with_name(f"{source.stem}.hessian.h5"), tmp_path / name)
    early, late = (tmp_path / f"a.hessian-{name}.h5" for name in ("early", "late"))
    assert [(s.run, s.hessian) for s in open_sources([run])] == [(run, early), (None, late)]
    assert [(s.run, s.hessian) for s in open_sources([late])] == [(run, late)]
    assert {source.run_id for source in open_sources([run])} == {open_sources([runs[0]])[0].run_id}
