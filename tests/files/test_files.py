"""The files: what stands in them, what a commit record is worth, who may write."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from conftest import TINY
from helpers.apart import Kill, run_apart
from helpers.hessians import HessianReader, analyse
from helpers.marking import cases

import landscape
from landscape.cli import main as cli
from landscape.config import HessianConfig
from landscape.errors import FileError
from landscape.files import schema
from landscape.files.files import sha256
from landscape.files.runs import RunReader
from landscape.files.writer import Writer
from landscape.files.writing import is_written, sole_writer
from landscape.training.loop import train


def datasets(path: Path) -> dict[str, h5py.Dataset]:
    items: dict[str, h5py.Dataset] = {}
    file = h5py.File(path)
    file.visititems(lambda name, item: items.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    return items


@pytest.fixture
def hessian_path(tiny_run: Path, tiny_hessian: HessianReader) -> Path:
    return tiny_run.with_name("tiny.hessian.h5")


@pytest.mark.parametrize("kind", ["run", "hessian"])
def test_every_axis_is_named_and_every_dataset_described(kind: str, tiny_run: Path, hessian_path: Path) -> None:
    """Dimension scales with names of their own, units, long_name, portable types, no filters, contiguous."""
    for name, data in datasets(tiny_run if kind == "run" else hessian_path).items():
        assert data.attrs["units"], name
        assert data.attrs["long_name"], name
        assert data.compression is None, name
        assert data.chunks is None, name
        text = h5py.check_string_dtype(data.dtype)
        assert data.dtype.str[1:] in ("f4", "f8", "i1", "i4", "i8", "u8") or (text and text.encoding == "utf-8"), name
        if data.is_scale:
            continue
        scales = [data.dims[axis][0].name for axis in range(data.ndim)]
        assert all(len(data.dims[axis]) == 1 for axis in range(data.ndim)), name
        assert len(set(scales)) == data.ndim, name


def test_run_attributes(tiny_run: Path) -> None:
    """Schema, identity, config and provenance stand at the root."""
    with h5py.File(tiny_run) as file:
        attrs = dict(file.attrs)
    assert (attrs["schema"], attrs["schema_version"], attrs["status"]) == ("landscape.run", schema.VERSION, "complete")
    assert json.loads(attrs["config"])["hidden"] == TINY.hidden
    names = "run_id created seed git_commit git_dirty python_version torch_version numpy_version h5py_version"
    assert set(f"{names} hdf5_version landscape_version device hostname argv".split()) <= set(attrs)


def test_files_are_datasets(tiny_run: Path, hessian_path: Path) -> None:
    """One lazy dataset each, with named axes, attributes and only committed rows."""
    with landscape.open(tiny_run) as file:
        run = file.to_xarray()
        assert {"E", "W", "train_loss", "count", "tokens", "split"} <= set(run.variables)
        assert run["E"].dims == ("step", "token", "embed")
        assert run.attrs["schema"] == "landscape.run"
        assert float(run["E"].sel(step=60).isnull().sum()) == 0
    with landscape.open(hessian_path) as file:
        assert file.to_xarray()["coupling_ratios"].sel(pair="E,W").dims == ("step", "rank")


def test_a_damaged_checkpoint_is_named_and_the_others_are_served(tiny_run: Path, tmp_path: Path) -> None:
    """One flipped bit in a stored matrix fails that checkpoint's record and no other."""
    path = Path(shutil.copy(tiny_run, tmp_path / "run.h5"))
    with h5py.File(path, "r+") as file:
        row = list(file["checkpoints/step"][()]).index(20)
        raw = file["checkpoints/W"][row]
        raw.view(np.uint32)[3, 2] ^= 1
        file["checkpoints/W"][row] = raw
    with RunReader(path) as reader:
        with pytest.raises(FileError, match="the checkpoint of step 20 fails its checksum"):
            reader.checkpoint(20)
        assert np.isfinite(reader.checkpoint(60)["W"]).all()


def test_uncommitted_rows_are_not_written(tiny_run: Path, tmp_path: Path) -> None:
    """A row whose record is missing is invisible to every reader of ours, and trimmed at the next rewrite."""
    path = Path(shutil.copy(tiny_run, tmp_path / "run.h5"))
    with h5py.File(path, "r+") as file:
        row = list(file["checkpoints/step"][()]).index(20)
        file["checkpoints/crc32"][row] = 0
        total = len(file["checkpoints/step"])
    with RunReader(path) as reader:
        assert 20 not in reader.steps
        kept = {s: reader.checkpoint(s) for s in reader.steps}
    with landscape.open(path) as file:
        assert 20 not in file.steps
    Writer.extend(path, {"status": "complete"}, {}).close()
    with h5py.File(path) as file:
        assert len(file["checkpoints/step"]) == total - 1
        assert (file["checkpoints/crc32"][()] > 0).all()
    with RunReader(path) as reader:
        for step, values in kept.items():
            for name, array in reader.checkpoint(step).items():
                assert array.tobytes() == values[name].tobytes()


def test_a_finished_file_has_no_unwritten_row(tiny_run: Path) -> None:
    """Space reserved for rows that an early stop never wrote is gone."""
    with h5py.File(tiny_run) as file:
        assert all((file[group]["crc32"][()] > 0).all() for group in ("checkpoints", "metrics", "tokens", "resume"))


def test_rows_are_copied_in_blocks(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trimmed file holds every row of the old one with its checksum, also where a row is left out between others."""
    monkeypatch.setattr("landscape.files.writer.BLOCK", 3 * 7 * 4 * 4)
    path = Path(shutil.copy(tiny_run, tmp_path / "run.h5"))
    with h5py.File(path, "r+") as file:
        group = file["checkpoints"]
        group["W"][list(group["step"][()]).index(40)] += 1
    with RunReader(path) as reader:
        before = {step: reader.checkpoint(step) for step in reader.steps}
        metrics = reader.metrics()
    assert 40 not in before
    Writer.extend(path, {"status": "complete"}, {}).close()
    with RunReader(path) as reader:
        assert not reader.damage
        assert reader.steps == list(before)
        assert len(reader.steps) > 3
        for step, row in before.items():
            stored = reader.checkpoint(step)
            assert all(np.array_equal(stored[name], values) for name, values in row.items())
        assert all(np.array_equal(reader.metrics()[n], v, equal_nan=True) for n, v in metrics.items())


def test_a_torn_row_never_counts(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that dies before its commit record, at any dataset, leaves the older resume slot in force."""
    for dies_at in range(4):
        path = Path(shutil.copy(tiny_run, tmp_path / f"run{dies_at}.h5"))
        with RunReader(path) as reader:
            before = reader.resume_state()
        with h5py.File(path, "r+") as file:
            fields = str(file["resume/crc32"].attrs["fields"]).split()
            age = file["resume/step"][()]
            state = {name: before[name] for name in fields}
            state["step"], state["W"] = 999, before["W"] + 1
            for name in fields[: dies_at * 3 + 1]:
                file["resume"][name][int(age.argmin())] = state[name]
        with RunReader(path) as reader:
            after = reader.resume_state()
        assert int(after["step"]) == int(before["step"])
        assert after["W"].tobytes() == before["W"].tobytes()


def test_extending_keeps_old_rows(tiny_run: Path, tmp_path: Path) -> None:
    """Room for more rows is made by rewriting; what was there stays, bit for bit."""
    path = Path(shutil.copy(tiny_run, tmp_path / "run.h5"))
    with Writer.extend(path, {"status": "running"}, {"checkpoints": 500, "metrics": 500}):
        pass
    with RunReader(path) as new, RunReader(tiny_run) as old:
        assert new.steps == old.steps
        assert new.attrs["run_id"] == old.attrs["run_id"]
        assert new.attrs["status"] == "running"
        for step in old.steps:
            for name, array in old.checkpoint(step).items():
                assert new.checkpoint(step)[name].tobytes() == array.tobytes()
    with h5py.File(path) as file:
        assert len(file["checkpoints/E"]) == len(old.steps) + 500


def test_a_full_disk_is_an_error_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes needed and bytes free are named, and nothing is left behind."""

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FileError, match=r"has [\d,]+ bytes free; this file needs [\d,]+") as error:
        train(TINY, tmp_path / "run.h5", quiet=True)
    assert "write elsewhere" in error.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_one_writer(tmp_path: Path) -> None:
    """A second writer is refused while the first lives; the lock of a dead process is taken over."""
    path = tmp_path / "run.h5"
    with sole_writer(path), pytest.raises(FileError, match="is being written by another process"):
        train(TINY, path, quiet=True)
    train(TINY, path, quiet=True)
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]


def test_the_lock_of_another_writer_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the working folder has changed, and where somebody removed a lock and another writer made the next."""
    one, other = tmp_path / "one/run.h5", tmp_path / "other/run.h5"
    for path in (one, other):
        path.parent.mkdir()
    monkeypatch.chdir(one.parent)
    with sole_writer(other):
        with sole_writer(Path("run.h5")):
            os.chdir(other.parent)
        assert is_written(other)
        assert list(one.parent.iterdir()) == []
        first = contextlib.ExitStack()
        first.enter_context(sole_writer(one))
        one.with_name("run.h5.lock").unlink()
        with sole_writer(one):
            first.close()
            assert is_written(one)
    assert list(one.parent.iterdir()) == list(other.parent.iterdir()) == []


def test_parent_of_a_hessian_file(tiny_run: Path, hessian_path: Path) -> None:
    """A Hessian file names its run by id and by the SHA-256 of its bytes."""
    with RunReader(tiny_run) as reader:
        attrs = HessianReader(hessian_path).attrs
        assert attrs["parent_run_id"] == reader.attrs["run_id"]
    assert attrs["parent_sha256"] == sha256(tiny_run)
    assert attrs["objective"] == "data"


@pytest.mark.slow
def test_a_finished_analysis_is_not_repeated(tiny_run: Path, tmp_path: Path) -> None:
    """The same command again changes not a byte."""
    out = tmp_path / "h.h5"
    config = HessianConfig(steps="0,60", blocks=("E",))
    analyse(tiny_run, config, out, quiet=True)
    before, stamp = out.read_bytes(), out.stat().st_mtime_ns
    analyse(tiny_run, config, out, quiet=True)
    analyse(tiny_run, config, out, overwrite=True, quiet=True)
    assert (out.read_bytes(), out.stat().st_mtime_ns) == (before, stamp)


@pytest.mark.slow
@pytest.mark.parametrize("number", cases([signal.SIGKILL, signal.SIGINT], long=[signal.SIGKILL]))
def test_an_interrupted_analysis_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    """A killed `landscape hessian` keeps its finished steps and ends as an undisturbed one does."""
    run = tmp_path / "run.h5"
    train(dataclasses.replace(TINY, steps=100, checkpoint_every=10), run, quiet=True)
    steps, blocks = ",".join(map(str, range(0, 100, 10))), ("E", "E,W")
    command = ["hessian", str(run), "--steps", steps, "--blocks", *blocks, "--quiet", "--out"]
    broken, whole = tmp_path / "broken.h5", tmp_path / "whole.h5"
    kill = Kill(at=13, number=number)
    assert run_apart(tmp_path, [*command, str(broken)], kill).code == kill.code
    done = HessianReader(broken)
    assert 2 <= len(done.steps) < 10
    assert done.attrs["status"] == "running"
    for path in (broken, whole):
        assert cli.run([*command, str(path)]) == 0
    left, right = HessianReader(broken), HessianReader(whole)
    assert left.steps == right.steps
    assert left.attrs["status"] == "complete"
    for step in left.steps:
        for name, value in left.row(step).items():
            if name != "seconds":
                np.testing.assert_array_equal(value, right.row(step)[name], err_msg=name)


def test_taking_the_lock_removes_what_killed_writers_left(tmp_path: Path) -> None:
    """Also where the command then finds nothing to write; links and other names are foreign."""
    path, link = tmp_path / "run.h5", ".run.h5.7.landscape.tmp"
    foreign = {".run.h5.tmp", ".run.h5.6.tmp", ".run.h5.landscape.tmp", "other"}
    for name in (".run.h5.123.landscape.tmp", *foreign):
        (tmp_path / name).touch()
    (tmp_path / link).symlink_to("other")
    with sole_writer(path):
        assert {p.name for p in tmp_path.iterdir()} == foreign | {link, "run.h5.lock"}
    assert {p.name for p in tmp_path.iterdir()} == foreign | {link}


def test_rows_of_small_and_large_datasets(tmp_path: Path) -> None:
    """Checksums over datasets of any sizes, in any order, agree with those of the writer; a changed byte does not."""
    wide = [(3,), (200, 100), (5,), (2,), (100, 90), (100, 80), (90, 90), (0, 4), (1,)]
    model = torch.nn.ParameterList([torch.randn(*shape) for shape in wide])
    path = tmp_path / "run.h5"
    with landscape.Recorder(path, model) as recorder:
        for step in range(3):
            recorder.checkpoint(step)
    with RunReader(path) as reader:
        assert reader.steps == [0, 1, 2]
        data = [reader.tables["checkpoints"].data[f"{i}"] for i in range(len(wide))]
        places = [(d.id.get_offset(), d[:1].nbytes) for d in data if d.size]
    for offset, length in places:
        whole = bytearray(path.read_bytes())
        whole[offset + 2 * length - 1] ^= 1
        (tmp_path / "spoilt.h5").write_bytes(whole)
        with RunReader(tmp_path / "spoilt.h5") as reader:
            assert reader.steps == [0, 2]
