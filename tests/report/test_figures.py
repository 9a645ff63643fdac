"""Every figure of whatever the commands can write: a figure, or the reason why there is none."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import TINY
from helpers.hessians import HessianReader, analyse, refine
from helpers.once import made_once

from landscape import open_geometry, open_hessian
from landscape.config import AnalysisConfig, HessianConfig
from landscape.errors import LandscapeError
from landscape.measure.geometry import measure_geometry
from landscape.models.embedding_mlp.blocks import BLOCKS
from landscape.report.figures import FAMILIES, timeline
from landscape.report.figures.sources import Drawn, NotDrawnError, open_sources
from landscape.report.findings import findings
from landscape.report.page import write_report
from landscape.report.style import style
from landscape.training.loop import train

ONE_OR_TWO = [*((block,) for block in BLOCKS), ("E", "W"), ("V", "E,W"), ("E,W", "W,V"), ("E,V", "all")]
"""Each block alone; two single ones, a single one and a pair, two pairs, and a pair and the whole."""
SHAPES = {
    "onehot": ({"model": "onehot"}, {"blocks": ("W", "V", "W,V")}),
    "tables": ({"model": "tables", "penalty": "nuclear"}, {"blocks": ("W", "W,V")}),
    "scalar": ({"model": "scalar", "seed": 5}, {"blocks": ("W", "all"), "k": 20}),
    "four": ({"tokens": 4, "bias": False, "p": 5}, {"blocks": ("W", "V")}),
    "sgd": ({"optimizer": "sgd", "task": "squares"}, {"blocks": ("E", "W", "E,W")}),
    "short": ({"steps": 0, "checkpoint_every": 0, "task": "div"}, {"blocks": ("all",), "steps": "0"}),
    "free": ({"seed": 3, "task": "sub"}, {"method": "lanczos", "k": 1, "blocks": ("E", "W", "E,W")}),
    "least": ({"p": 2, "train_fraction": 0.5, "batch_size": 2}, {}),
    "flat": ({"init_scale_E": 0.0, "activation": "quadratic", "task": "mul"}, {}),
    "seldom": ({"metrics_every": 1000, "dtype": "float64"}, {"steps": "60"}),
}
"""Options of runs and of their analyses."""
OF_GEOMETRY = ("fourier_shares", "embedding_circles", "geometry_progress")
OVER_STEPS = ("extreme_eigenvalues", "saddle_index", "coupling_ratios", "tracking")
GEOMETRY_NEEDS = ("fourier_share", "plane_position", "participation_ratio, restricted_loss")


def every_shape(made: Path) -> None:
    """A run, and one of each shape with its analysis."""
    train(TINY, made / "tiny.h5", quiet=True)
    for name, (options, settings) in SHAPES.items():
        train(dataclasses.replace(TINY, **options), made / f"{name}.h5", quiet=True)
        config = {"device": "cpu", "k": 3, "steps": "0,60", **settings}
        analyse(made / f"{name}.h5", HessianConfig(**config), quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `every_shape` makes. Read only."""
    return made_once(tmp_path_factory, every_shape)


def draw(files: Sequence[Path], names: Collection[str] = FAMILIES) -> dict[str, Drawn]:
    """Every family of these that can be drawn, by name; warnings are errors."""
    drawn = {}
    sources = open_sources(files)
    for name in names:
        with style(), contextlib.suppress(NotDrawnError):
            drawn[name] = FAMILIES[name](sources)
    assert not [name for name, one in drawn.items() if "nan" in one.caption + one.title]
    return drawn


@pytest.mark.parametrize("blocks", [("E",), ("all",), ("E,W",)], ids=str)
@pytest.mark.long
def test_a_report_of_few_blocks(blocks: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    """A whole page where one block was measured; what cannot be drawn says why."""
    hessian = tmp_path / "few.hessian.h5"
    analyse(folder / "tiny.h5", HessianConfig(blocks=blocks, steps="0,60", device="cpu"), hessian, quiet=True)
    page = write_report([folder / "tiny.h5", hessian], tmp_path / "r", quiet=True).with_name("report.md").read_text()
    assert "figures/extreme_eigenvalues.png" in page
    assert ("no coupling ratio was measured" in page) == (blocks != ("E,W",))


@pytest.mark.slow
@pytest.mark.parametrize("blocks", ONE_OR_TWO, ids=str)
def test_any_blocks(blocks: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    """What belongs to every block is drawn of any one or two."""
    hessian = tmp_path / "few.hessian.h5"
    analyse(folder / "tiny.h5", HessianConfig(blocks=blocks, steps="0,60", device="cpu", k=2), hessian, quiet=True)
    drawn = draw([folder / "tiny.h5", hessian])
    pair = any("," in block for block in blocks)
    of_pairs = {"coupling_ratios", "excess_index"}
    of_others = {"recorded_metrics", "timeline", *OF_GEOMETRY}
    assert drawn.keys() == FAMILIES.keys() - of_others - (of_pairs if not pair else set())


@pytest.mark.parametrize("name", SHAPES)
def test_any_run(name: str, folder: Path) -> None:
    """Tasks, inputs, precisions, one step, one eigenvalue, no full spectrum, hardly any metrics, zero weights."""
    drawn = draw([folder / f"{name}.h5"])
    assert drawn.keys() >= {"training_curves", "extreme_eigenvalues", "saddle_index", "densities"}
    # Without a row after step 0 there is nothing to see.
    assert name != "short" or "prop41_ratio" not in drawn
    assert ("spectra" in drawn) == (name != "free")
    assert ("tracking" in drawn) == (name not in ("short", "seldom"))
    index = drawn["saddle_index"]
    assert ("dashed: on the complement of the gauge" in index.caption) == any(
        index.data["saddle_index_gauge_free"].notna()
    )


@pytest.mark.parametrize("name", ["sgd", "free", "seldom", "four", "flat", "short"])
def test_the_geometry_of_any_run(name: str, folder: Path, tmp_path: Path) -> None:
    """Tasks with and without logarithm and restricted loss, rows that are all zero, one step; their file's numbers."""
    run = Path(shutil.copy(folder / f"{name}.h5", tmp_path / "run.h5"))
    if name == "four":
        with pytest.raises(LandscapeError, match="5 numbers have no geometry"):
            measure_geometry(run)
        return
    path = measure_geometry(run)
    (source,) = open_sources([run])
    assert source.geometry == path
    assert open_sources([path])[0].run == run
    drawn = draw([run], OF_GEOMETRY)
    assert drawn.keys() == set(OF_GEOMETRY)
    with open_geometry(path) as data:
        steps, last = data["step"].values, data.isel(step=-1)
        progress, shares = drawn["geometry_progress"].data, drawn["fourier_shares"].data
        np.testing.assert_array_equal(progress["step"], steps)
        np.testing.assert_array_equal(progress["participation_ratio"], data["participation_ratio"])
        np.testing.assert_array_equal(progress["excluded_train_loss"], data["excluded_loss"].sel(split="train"))
        np.testing.assert_array_equal(
            shares[shares["step"] == steps[-1]]["fourier_share"], last["fourier_share"].values[1:]
        )
        circles = drawn["embedding_circles"].data
        if name != "flat":
            first = circles[circles["frequency"] == int(last["plane_frequency"][0])]
            np.testing.assert_array_equal(first["x"], last["plane_position"].values[0, :, 0])
            np.testing.assert_array_equal(first["number"], data["number"])


def test_one_picture_of_a_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each panel has the numbers of its file, at the steps of that file; several runs are drawn by setting."""
    runs = []
    for name in ("sgd", "free"):
        for kind in ("h5", "hessian.h5"):
            shutil.copy(folder / f"{name}.{kind}", tmp_path)
        runs.append(tmp_path / f"{name}.h5")
        measure_geometry(runs[-1])
    (drawn,) = draw(runs[:1], ["timeline"]).values()
    with open_geometry(tmp_path / "sgd.geometry.h5") as data, open_hessian(tmp_path / "sgd.hessian.h5") as measured:
        rows = drawn.data[drawn.data["key_share"].notna()]
        np.testing.assert_array_equal(rows["step"], data["step"])
        keys = np.flatnonzero(data["frequency_in_use"].values[-1] == 1)
        np.testing.assert_allclose(rows["key_share"], data["fourier_share"].values[:, keys].sum(1))
        rows = drawn.data[drawn.data["kappa_1"].notna()]
        pair = measured.sel(pair="E,W", block="E,W")
        np.testing.assert_array_equal(rows["step"], measured["step"])
        np.testing.assert_array_equal(rows["kappa_2"], pair["coupling_ratios"].values[:, 1])
        np.testing.assert_array_equal(rows["index_upper"], pair["inertia_upper"])
        circles = drawn.data[drawn.data["number"].notna()]
        steps = sorted(set(circles["step"]))
        assert steps[0] == 0
        assert steps[-1] == data["step"][-1]
        last = circles[circles["step"] == steps[-1]]
        np.testing.assert_array_equal(last["y"], data["plane_position"].values[-1, 0, :, 1])
    # Sixty steps in float32 may grok or not; at this level they do at the first of them.
    monkeypatch.setattr(timeline, "GROK", (timeline.GROK[0], 0.0))
    (both,) = draw(runs, ["timeline"]).values()
    assert set(both.data["run"]) == {"sgd (seed 0)", "free (seed 3)"}
    assert both.title.startswith("Before the network groks")
    (tmp_path / "sgd.geometry.h5").unlink()
    with pytest.raises(NotDrawnError, match="no geometry file given holds plane_position"):
        FAMILIES["timeline"](open_sources(runs[:1]))


def test_a_geometry_file_without_its_run(folder: Path, tmp_path: Path) -> None:
    run = Path(shutil.copy(folder / "tiny.h5", tmp_path / "run.h5"))
    path = measure_geometry(run)
    run.unlink()
    with pytest.raises(LandscapeError, match="its run file is not beside it"):
        open_sources([path])
    shutil.copy(folder / "free.h5", run)
    assert open_sources([run])[0].geometry is None


@pytest.mark.parametrize("name", ["sgd", "free", "seldom"])
def test_the_excess_index_as_it_was_measured(name: str, folder: Path) -> None:
    """The numbers of the Hessian file, brackets and shares too; the title names the pair with the most."""
    found = HessianReader(folder / f"{name}.hessian.h5")
    drawn = draw([folder / f"{name}.h5"], ["excess_index"])["excess_index"]
    largest = 0
    for _, row in drawn.data.iterrows():
        measured, pair = found.row(int(row["step"])), found.pairs.index(row["pair"])
        lower, upper = (measured[f"excess_index_{end}"][pair] for end in ("lower", "upper"))
        assert (row["excess_index_lower"], row["excess_index_upper"]) == (lower, upper)
        joint = found.blocks.index(row["pair"])
        whole = {int(measured[f"inertia_{end}"][joint]) for end in ("lower", "upper")}
        if lower == upper and len(whole) == 1 and min(whole):
            assert row["share_of_joint_index"] == lower / min(whole)
        else:
            assert np.isnan(row["share_of_joint_index"])
        largest = max(largest, int(lower))
    steps = {step for step in found.steps if np.isfinite(found.row(step)["excess_index_lower"]).any()}
    assert set(drawn.data["step"]) == steps
    assert f" most, {largest} at step" in drawn.title


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.long
def test_runs_of_different_shapes_together(backwards: bool, folder: Path, tmp_path: Path) -> None:
    """One page of them all, and every figure in the other order; each axis reaches as far as the longest run."""
    files = [folder / f"{name}.h5" for name in SHAPES]
    absent = {"recorded_metrics", "timeline", *OF_GEOMETRY}
    if backwards:
        drawn = draw(files[::-1])
        assert drawn.keys() == FAMILIES.keys() - absent
    else:
        page = write_report(files, tmp_path / "r", quiet=True).with_name("report.md").read_text()
        missing = ["no run file given holds metrics recorded from another training loop."]
        missing += [f"no geometry file given holds {names}." for names in (*GEOMETRY_NEEDS, "plane_position")]
        assert re.findall("Not drawn: (.*)", page) == missing
        assert f"{len(SHAPES)} runs" in page
        drawn = draw(files, OVER_STEPS)
    for name in OVER_STEPS:
        assert all(axes.get_xlim()[1] > 60 for axes in drawn[name].figure.axes if axes.lines)
    (legend,) = drawn["coupling_ratios"].figure.legends
    assert any("onehot" in text.get_text() for text in legend.get_texts()), "settings have the colours"


def test_a_run_that_diverged(tmp_path: Path) -> None:
    """Rows of NaN in the metrics are gaps; the ratio of learning rates has no others."""
    run = tmp_path / "gone.h5"
    with contextlib.suppress(LandscapeError):
        train(dataclasses.replace(TINY, optimizer="sgd", lr=1e30), run, quiet=True)
    drawn = draw([run])
    assert "; never grokked; diverged at step " in drawn["training_curves"].title
    assert "prop41_ratio" not in drawn


@pytest.mark.slow
def test_points_that_were_refined(folder: Path, tmp_path: Path) -> None:
    """A refined point is drawn beside the run's checkpoints, not instead of them, and no caption takes it for one."""
    run = Path(shutil.copy(folder / "flat.h5", tmp_path / "flat.h5"))
    refine(run, 60, AnalysisConfig(objective="regularised", device="cpu", k=2), max_products=300, quiet=True)
    critical = run.with_name("flat.critical-60.h5")
    (alone,) = open_sources([critical])
    assert alone.is_refined
    assert "training path" not in draw([critical])["saddle_index"].caption
    hessian = Path(shutil.copy(folder / "flat.hessian.h5", tmp_path / "flat.hessian.h5"))
    both = open_sources([run, critical])
    assert [(s.run, s.hessian) for s in both] == [(run, hessian), (None, critical)]
    assert [(s.run, s.hessian) for s in open_sources([run])] == [(run, hessian), (None, critical)]
    depths = findings(both)[1]
    assert depths.startswith(findings(both[:1])[1][:-1])
    assert depths.endswith(findings(both[1:])[0][1:])
    assert "; at the point refined from step 60, " in depths
    caption = draw([run, critical])["saddle_index"].caption
    assert "objective data and regularised" in caption
    assert "points on a training path" in caption
    assert "Refined towards a critical point: flat.critical-60 (seed 0)" in caption


def test_no_file_is_left_out(folder: Path, tmp_path: Path) -> None:
    """Each Hessian file of a run, and runs of one name in two folders, have a line; a file named twice has one."""
    run, beside = (Path(shutil.copy(folder / name, tmp_path)) for name in ("sgd.h5", "sgd.hessian.h5"))
    early = tmp_path / "sgd.hessian-early.h5"
    analyse(run, HessianConfig(blocks=("E",), steps="0", device="cpu"), early, quiet=True)
    assert [(s.run, s.hessian) for s in open_sources([run, early, run, beside])] == [(run, early), (None, beside)]
    assert [(s.run, s.hessian) for s in open_sources([str(run), str(early)])] == [(run, early)]
    other = tmp_path / "other" / "sgd.h5"
    other.parent.mkdir()
    train(dataclasses.replace(TINY, optimizer="sgd", lr=0.5), other, quiet=True)
    curves = draw([run, other])["training_curves"]
    assert curves.data["run"].nunique() == len(curves.numbers) == 2


def test_captions_state_what_is_shared_and_list_what_varies(tmp_path: Path) -> None:
    """lr_E/lr_W 1, 10 and 20 are all named, and no longer given as the set-up."""
    files = []
    for ratio in (20.0, 1.0, 10.0):
        files.append(tmp_path / f"{ratio:g}.h5")
        config = dataclasses.replace(TINY, lr_ratio=ratio, steps=20, checkpoint_every=int(ratio), skew=ratio)
        train(config, files[-1], quiet=True)
    caption = draw(files)["training_curves"].caption
    assert caption.startswith("Task add, p = 7, 2 tokens, embedding input, d = 4, h = 8, relu, adam, lr 0.01, weight")
    assert "batch 16, seed 0. Varied: lr_E/lr_W 1, 10, 20; skew 1, 10, 20. " in caption
    alone = draw(files[:1])["training_curves"].caption
    assert "lr_E/lr_W 20" in alone
    assert "Varied" not in alone


def test_counts_that_are_not_known_are_empty_cells(folder: Path, tmp_path: Path) -> None:
    """No -1 in the tables beside the figures; counts stay whole numbers."""
    write_report([folder / "free.h5"], tmp_path / "r", quiet=True)
    for name, column in (("saddle_index", "saddle_index_gauge_free"), ("tracking", "crossings")):
        cells = pd.read_csv(tmp_path / "r/figures" / f"{name}.csv", dtype=str)[column].dropna()
        assert all(cell.isdigit() for cell in cells)
    assert "| -1 |" not in (tmp_path / "r/report.md").read_text()
