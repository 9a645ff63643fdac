"""Geometry files: what they hold of runs of each task and model, and when they are made anew."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from conftest import SMALL_TRANSFORMER, TINY
from helpers.commands import Refusal
from matplotlib import pyplot
from torch.nn.functional import cross_entropy

import landscape
from landscape import models
from landscape.cli.main import run as command
from landscape.config import TrainConfig
from landscape.errors import FileError
from landscape.files.inspect import repair
from landscape.files.runs import RunReader
from landscape.measure import embeddings as emb
from landscape.measure.geometry import geometry as measure_geometry
from landscape.training.loop import train

SHORT = dataclasses.replace(TINY, p=11, steps=40, checkpoint_log=0)
OF_TASKS = {
    **{task: dataclasses.replace(SHORT, task=task) for task in ("add", "sub", "mul", "div", "squares")},
    "four tokens": dataclasses.replace(SHORT, tokens=4),
    "transformer": dataclasses.replace(SMALL_TRANSFORMER, p=11, steps=40, checkpoint_log=0),
}


def made(folder: Path, **options: Any) -> Path:
    train(dataclasses.replace(SHORT, **options), folder / "run.h5", quiet=True)
    return folder / "run.h5"


@pytest.mark.parametrize("name", OF_TASKS)
def test_every_stored_step_is_measured(name: str, tmp_path: Path) -> None:
    """Rows of the numbers in the group's order, and losses from torch over the pairs with a place, by hand."""
    config = OF_TASKS[name]
    train(config, tmp_path / "run.h5", quiet=True)
    out = measure_geometry(tmp_path / "run.h5")
    assert out == tmp_path / "run.geometry.h5"
    multiplies = config.task in ("mul", "div")
    with RunReader(tmp_path / "run.h5") as reader, landscape.open(out).to_xarray() as data:
        steps, n = data["step"].values, 10 if multiplies else 11
        assert steps.tolist() == reader.steps == [0, 20, 40]
        order = data["number"].values
        assert sorted(order) == list(range(11 - n, 11))
        problem, stored = models.of_run(reader), reader.data()
        a, b = stored["tokens"][:, [0, 2 if config.tokens == 4 else 1]].T
        has_place = (a > 0) & (b > 0) if multiplies else np.ones(len(a), bool)
        for step in reader.steps:
            E = reader.checkpoint(step)["E"][:11].astype(float)
            expected = emb.geometry(E[order], order)
            for quantity in ("participation_ratio", "fourier_share", "distance_r2_p", "plane_position"):
                np.testing.assert_array_equal(data[quantity].sel(step=step), expected[quantity])
            plain = problem.plain(reader.checkpoint(step))
            for part, split in enumerate(("train", "test")):
                at = has_place & (stored["split"] == part)
                logits = plain.model(torch.from_numpy(stored["tokens"][at]).long())
                loss = cross_entropy(logits, torch.from_numpy(stored["labels"][at]).long())
                assert float(data["loss"].sel(step=step, split=split)) == pytest.approx(loss.item(), rel=1e-10)
        assert bool(np.isnan(data["restricted_loss"]).all()) == (config.task == "squares")
        assert bool(np.isnan(data["excluded_loss"]).all()) == (config.task == "squares")


def test_a_split_of_pairs_without_a_place_has_no_loss(tmp_path: Path) -> None:
    """The one pair to test on is 1 * 0, and 0 has no logarithm: its loss is missing, without a warning of NumPy."""
    run = made(tmp_path, task="mul", p=7, train_fraction=0.5, test_fraction=0.03, seed=12)
    with RunReader(run) as reader:
        data = reader.data()
        assert data["tokens"][data["split"] == 1].tolist() == [[1, 0]]
    with landscape.open(measure_geometry(run)) as file:
        dataset = file.to_xarray()
        for name in ("loss", "restricted_loss", "excluded_loss"):
            assert np.isfinite(dataset[name].sel(split="train")).all()
            assert np.isnan(dataset[name].sel(split="test")).all()


def test_key_frequencies_are_those_of_the_last_step(tmp_path: Path) -> None:
    """E on the circle of frequency 3 at the end: the restricted logits of every step have these waves alone."""
    run = made(tmp_path)
    with RunReader(run) as reader, h5py.File(run) as file:
        last = {name: file[f"checkpoints/{name}"][-1] for name in ("E", "W", "b1", "V", "b2")}
        problem, stored = models.of_run(reader), reader.data()
    angle = 2 * np.pi / 11 * 3 * np.arange(11)
    last["E"] = np.stack([np.cos(angle), np.sin(angle), 0 * angle, 0 * angle], 1).astype(last["E"].dtype)
    from landscape.measure.geometry import _Run

    numbers = _Run(problem, stored)  # type: ignore[arg-type]
    keys = numbers.frequencies_in_use(last)
    assert keys.tolist() == [3]
    row = numbers.row(last, keys)
    logits = problem.logits(last, stored["tokens"]).reshape(11, 11, 11)  # type: ignore[attr-defined]
    for name, part in (("restricted_loss", emb.restricted), ("excluded_loss", emb.excluded)):
        kept = torch.from_numpy(part(logits, 1, [3])).reshape(121, 11)
        for i in range(2):
            at = stored["split"] == i
            loss = cross_entropy(kept[at], torch.from_numpy(stored["labels"][at]).long())
            assert row[name][i] == pytest.approx(loss.item())


def test_the_same_command_changes_nothing_and_more_steps_are_added(tmp_path: Path) -> None:
    """A whole file stays as it is; one of fewer steps, or that was interrupted, is made anew with the same rows."""
    run = made(tmp_path)
    out = measure_geometry(run)
    before = out.read_bytes()
    stamp = out.stat().st_mtime_ns
    assert measure_geometry(run) == out
    assert out.stat().st_mtime_ns == stamp
    with h5py.File(out, "r+") as file:
        file.attrs["status"] = "running"
    measure_geometry(run)
    with landscape.open(out) as file:
        assert file.attrs["status"] == "complete"
        _, circle = file.plot(pyplot.figure().add_subplot()).lines
        assert circle.get_label() == "top_circle_r2"
        np.testing.assert_array_equal(circle.get_ydata(), file.datasets["/"]["top_circle_r2"])
    pyplot.close("all")
    train(TrainConfig(**{**dataclasses.asdict(SHORT), "steps": 60}), run, resume=True, quiet=True)
    measure_geometry(run)
    with landscape.open(out) as file:
        data = file.to_xarray()
        assert data["step"].values.tolist() == [0, 20, 40, 60]
        (tmp_path / "old.h5").write_bytes(before)
        with landscape.open(tmp_path / "old.h5") as file:
            old = file.to_xarray()
            np.testing.assert_array_equal(data["fourier_share"][:3], old["fourier_share"])
            np.testing.assert_array_equal(data["distance_r2_p"][:3], old["distance_r2_p"])


def test_what_has_no_geometry_is_refused(tmp_path: Path, assert_refused: Refusal) -> None:
    for name, options, error, hint in (
        ("onehot", {"model": "onehot"}, "the onehot model has no embedding of numbers", "--model embedding"),
        ("composite", {"task": "mul", "p": 12}, "mul mod 12 has no discrete logarithm", "a prime --p"),
        ("few", {"p": 5, "batch_size": 8}, "5 numbers have no geometry; it takes 6", "a larger --p"),
    ):
        (tmp_path / name).mkdir()
        run = made(tmp_path / name, **{"steps": 1, **options})
        assert_refused(["geometry", run], 2, error, hint, (run,))
        assert not run.with_name("run.geometry.h5").exists()


def test_logits_that_do_not_fit(run_file: Path, assert_refused: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landscape.measure.geometry.free_bytes", lambda: 1000)
    error = "the logits of all pairs mod 7 need 0.0 GB; 0.0 GB are free"
    assert_refused(["geometry", run_file], 1, error, "a machine with more memory", (run_file,))


def test_nothing_else_is_overwritten(tmp_path: Path, tiny_run: Path, assert_refused: Refusal) -> None:
    run = Path(shutil.copy(tiny_run, tmp_path / "run.h5"))
    out = measure_geometry(run)
    other = made(tmp_path / "other")
    assert_refused(["geometry", other, "--out", out], 1, "is of run", "--overwrite", (out,))
    assert_refused(["geometry", run, "--out", run], 1, "is the run file itself", "another --out", (run,))
    for more in ([], ["--overwrite"]):
        asked = ["geometry", run, "--out", other, *more]
        assert_refused(asked, 1, "is not a geometry file", "remove it yourself", (other,))
    assert_refused(["geometry", out], 1, "is a geometry file, not a run file", "name the run it was made from", (out,))
    assert command(["geometry", str(other), "--out", str(out), "--overwrite", "--quiet"]) == 0
    with landscape.open(out) as file, RunReader(other) as reader:
        assert file.attrs["parent_run_id"] == reader.attrs["run_id"]


def test_measured_checkpoints_that_the_run_has_lost_are_kept(tmp_path: Path, assert_refused: Refusal) -> None:
    """Damage took a checkpoint, and its repair the row: only --overwrite makes a geometry file without it."""
    run = made(tmp_path)
    out = measure_geometry(run)
    with h5py.File(run, "r+") as file:
        file["checkpoints/E"][1] += 1
    before = out.read_bytes()
    with pytest.raises(FileError, match="has measured checkpoints that the run has lost: step 20"):
        measure_geometry(run)
    assert out.read_bytes() == before
    repair(run)
    error = "has measured checkpoints that the run has lost: step 20"
    assert_refused(["geometry", run, "--quiet"], 1, error, "use --overwrite to replace it", (out,))
    assert command(["geometry", str(run), "--overwrite", "--quiet"]) == 0
    with landscape.open(out) as file:
        data = file.to_xarray()
        assert data["step"].values.tolist() == [0, 40]


def test_the_command_prints_what_it_found(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sentences, or a line a quantity; JSON has everything; info, check and export know the file."""
    assert command(["geometry", str(run_file), "--quiet"]) == 0
    beats, *_ = capsys.readouterr().out.splitlines()
    assert beats.startswith("* The embedding beats chance in none of ")
    assert command(["geometry", str(run_file), "--quiet", "--tables"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[-1] == "appears at"
    assert {line.split()[0] for line in lines[1:11]} == {statistic.name for statistic in emb.STATISTICS}
    out = run_file.with_name("run.geometry.h5")
    assert command(["geometry", str(run_file), "--quiet", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    with landscape.open(out) as file:
        data = file.to_xarray()
        assert [row["step"] for row in document["steps"]] == data["step"].values.tolist()
        assert document["steps"][-1]["pls_q2"] == float(data["pls_q2"][-1])
        assert document["numbers"] == list(range(7))
    assert command(["info", str(out)]) == 0
    assert "geometry file" in capsys.readouterr().out
    assert command(["check", str(out)]) == 0
    assert command(["export", str(out), "--csv", str(run_file.with_name("csv"))]) == 0
    assert {"by_step.csv", "by_step_frequency.csv", "numbers_by_place.csv"} <= set(
        os.listdir(run_file.with_name("csv"))
    )
