"""Files of every released schema version open for ever; tests/data/ holds one of each, made by the commands of then.

The numbers below were printed by h5dump, not by this package.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

import landscape
from landscape.cli import main as cli
from landscape.errors import FileError
from landscape.storage import schema, schema_hessian
from landscape.storage.hessians import HessianReader
from landscape.storage.inspect import inspect, repair
from landscape.storage.runs import RunReader

DATA = Path(__file__).parent / "data"
RUN, HESSIAN = DATA / "run-1.0.h5", DATA / "run-1.0.hessian.h5"
ENTRY = [-1.0621131658554077, 1.2981716394424438, -1.2653588056564331]
"""/checkpoints/E[2, 4]: step 20, token 4."""
LOWEST = [-0.071778698227063661, -0.065129382424759366, -0.058836798165887688, -0.047265403376968183]
HIGHEST = [1.3174997878111769, 0.34043613855767013, 0.2962482406622346, 0.21487483943382082]
"""/eigenvalues[1, 2]: step 20, block E,W."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The run alone, where it may be written beside."""
    return Path(shutil.copy(RUN, tmp_path / "old.h5"))


def test_a_run_of_1_0() -> None:
    """Parameters, moments, metrics, tokens, data and the resume slot."""
    with RunReader(RUN) as reader:
        assert (reader.attrs["schema_version"], reader.attrs["status"]) == ("1.0", "complete")
        assert reader.config["embed_dim"] == 3
        assert reader.steps == [0, 10, 20]
        last = reader.checkpoint(20)
        assert list(last) == ["E", "W", "b1", "V", "b2"]
        assert last["E"][4].tolist() == ENTRY
        assert last["b2"].tolist()[:2] == [0.018841393291950226, -0.53953403234481812]
        assert float(reader.checkpoint(0)["V"][0, 0]) == 0.03822501003742218
        moments = reader.second_moments(20)
        assert moments is not None
        assert moments["W"][0, :2].tolist() == [4.0788449950923678e-07, 1.5141677067731507e-06]
        metrics, tokens, data = reader.metrics(), reader.tokens(), reader.data()
        assert metrics["metric_step"].tolist() == [0, 10, 20]
        assert metrics["test_loss"].tolist() == [1.7134723663330078, 1.8234742879867554, 2.0226955413818359]
        assert metrics["sigma_max_E"].tolist() == [3.2381606101989746, 3.195345401763916, 3.1964414119720459]
        assert tokens["count"][2].tolist() == [20] * 5
        assert tokens["grad_norm"][2, :2].tolist() == [0.30774289835244417, 0.21743760397657752]
        assert data["labels"][:6].tolist() == [0, 1, 2, 3, 4, 1]
        assert data["split"][:6].tolist() == [1, 0, 0, 1, 0, 1]
        state = reader.resume_state()
        assert (state["step"], state["rng"][0]) == (20, 2430809085585311188)


def test_a_hessian_file_of_1_0() -> None:
    """Eigenvalues, indices, coupling ratios, spectra and densities."""
    reader = HessianReader(HESSIAN)
    assert (reader.attrs["schema_version"], reader.attrs["status"]) == ("1.0", "complete")
    assert (reader.steps, reader.blocks, reader.pairs) == ([0, 20], ["E", "W", "E,W"], ["E,W", "W,V", "E,V"])
    row = reader.row(20)
    assert row["eigenvalues"][2].tolist() == [LOWEST, HIGHEST]
    assert row["inertia"].tolist() == [[0, 3, 12], [0, 8, 16], [12, 6, 21]]
    assert row["inertia_level"].tolist() == [3, 3, 3]
    assert row["saddle_index_gauge_free"].tolist() == [-1, -1, 10]
    assert row["coupling_ratios"][0, :2].tolist() == [2071430.5203714934, 95497.11819510255]
    assert (row["saddle_bound"], row["saddle_rank_bound"]) == (0.077606737621127894, 15)
    assert reader.spectra(20)["E"][-2:].tolist() == [0.039905285496821027, 0.077621879160720872]
    assert reader.densities(20)["E,W"][255:257].tolist() == [10.31724114779677, 10.182954459707279]


def test_views_of_1_0() -> None:
    """`open_run` and `open_hessian` select by label."""
    run, hessian = landscape.open_run(RUN), landscape.open_hessian(HESSIAN)
    assert run["E"].sel(step=20, token=4).values.tolist() == ENTRY
    assert run["test_accuracy"].sizes == {"metric_step": 3}
    assert hessian["eigenvalues"].sel(step=20, block="E,W", end="lowest").values.tolist() == LOWEST


def test_a_run_of_1_0_is_analysed(copy: Path) -> None:
    """`landscape hessian` finds the stored eigenvalues again, relative to the norm of the block."""
    argv = ["hessian", "--ckpt", str(copy), "--steps", "0,20", "--blocks", "E", "W", "E,W", "--k", "4", "--quiet"]
    assert cli.run([*argv, "--device", "cpu"]) == 0
    old, new = HessianReader(HESSIAN), HessianReader(copy.with_name("old.hessian.h5"))
    assert new.attrs["parent_sha256"] == old.attrs["parent_sha256"]
    assert new.steps == old.steps
    for step in old.steps:
        then, now = old.row(step), new.row(step)
        error = np.abs(now["eigenvalues"] - then["eigenvalues"]).max(axis=(1, 2))
        assert (error <= 1e-9 * then["operator_norm"]).all()
        assert now["inertia"].tolist() == then["inertia"].tolist()


def test_a_run_of_1_0_goes_on(copy: Path) -> None:
    """`landscape train --resume` adds steps to it; what it held stays bit for bit."""
    argv = ["train", "--resume", "--out", str(copy), "--steps", "30", "--device", "cpu", "--quiet"]
    assert cli.run(argv) == 0
    with RunReader(RUN) as old, RunReader(copy) as new:
        assert new.steps == [0, 10, 20, 30]
        for step in old.steps:
            for name, array in old.checkpoint(step).items():
                assert new.checkpoint(step)[name].tobytes() == array.tobytes()


@pytest.fixture
def younger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset that files have only from now on."""
    field = schema.Field("younger", ("block",), "f8", "a later quantity", since=schema.VERSION)
    table = dataclasses.replace(schema_hessian.ROOT, fields=(*schema_hessian.ROOT.fields, field))
    monkeypatch.setattr(schema_hessian, "ROOT", table)


@pytest.mark.usefixtures("younger")
def test_a_file_without_a_younger_dataset(tmp_path: Path) -> None:
    """It is read as before, `info` names what it lacks, and a rewritten one keeps its version."""
    copy = Path(shutil.copy(HESSIAN, tmp_path / "old.hessian.h5"))
    with h5py.File(copy) as file:
        then = {name: file[name][()].tobytes() for name in file["crc32"].attrs["fields"].split()}
    repair(copy)
    reader = HessianReader(copy)
    assert reader.attrs["schema_version"] == "1.0"
    assert reader.row(20)["eigenvalues"][2].tolist() == [LOWEST, HIGHEST]
    assert any("younger" in note and note.endswith("younger than schema 1.0") for note in inspect(copy).notes)
    with h5py.File(copy) as file:
        assert {name: file[name][()].tobytes() for name in then} == then


@pytest.mark.usefixtures("younger")
def test_a_file_of_now_must_hold_a_younger_dataset(tmp_path: Path) -> None:
    """Only an older version excuses a file from it."""
    copy = Path(shutil.copy(HESSIAN, tmp_path / "now.hessian.h5"))
    with h5py.File(copy, "r+") as file:
        file.attrs["schema_version"] = schema.VERSION
    with pytest.raises(FileError, match="is missing"):
        HessianReader(copy)


@pytest.mark.slow
def test_files_of_1_0_are_reported(tmp_path: Path) -> None:
    """`landscape report` makes its page of them, where they lie."""
    assert cli.run(["report", str(RUN), "--out", str(tmp_path / "report"), "--quiet"]) == 0
    assert "run-1.0" in (tmp_path / "report/report.md").read_text()
    assert len(list((tmp_path / "report").rglob("*.png"))) >= 8
    assert sorted(path.name for path in DATA.iterdir()) == [RUN.name, HESSIAN.name]
