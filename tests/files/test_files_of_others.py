"""A file of another writer stays as it is: under whatever name it has, and if it is there in the last instant."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest
from conftest import TINY
from helpers.apart import SERVER
from helpers.hessians import refine
from helpers.recording import small, states

from landscape import Recorder, train
from landscape.cli import main as cli
from landscape.config import AnalysisConfig
from landscape.errors import FileError
from landscape.files.inspect import inspect, repair

REFUSED = "is being written by a process that opened it under another name, or whose lock file was removed"


def resume(path: Path) -> None:
    Recorder(path, small(), resume=True)


def overwrite(path: Path) -> None:
    train(TINY, path, overwrite=True, quiet=True)


@pytest.mark.parametrize("write", [repair, resume, overwrite])
@pytest.mark.parametrize("name", [Path.rename, lambda path, other: os.link(path, other)], ids=["renamed", "linked"])
def test_nobody_else_writes_it(
    name: Callable[[Path, Path], object], write: Callable[[Path], object], tmp_path: Path
) -> None:
    """Every row that is acknowledged after the attempt is in the file, too, as are those before."""
    path, other = tmp_path / "run.h5", tmp_path / "other.h5"
    recorder = Recorder(path, small())
    assert recorder.checkpoint(0)
    name(path, other)
    with pytest.raises(FileError, match=REFUSED):
        write(other)
    assert recorder.checkpoint(1)
    # One that was renamed cannot be trimmed at its former path.
    with contextlib.nullcontext() if path.exists() else pytest.warns(UserWarning, match="was moved, deleted"):
        recorder.close()
    repair(other)
    assert states(other).keys() == {0, 1}
    assert not list(tmp_path.glob("*.lock"))


def read(path: Path) -> None:
    """In a process of its own, as every other program: open a file with the locks of HDF5."""
    with h5py.File(path, locking=True) as file:
        assert file["checkpoints/step"][0] == 0


def test_others_read_it_and_know_that_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The mark keeps no reader out, and `landscape info` and `check` tell of a writer that no lock file names."""
    path, moved = tmp_path / "run.h5", tmp_path / "moved.h5"
    recorder = Recorder(path, small())
    recorder.checkpoint(0)
    path.rename(moved)
    reader = SERVER.Process(target=read, args=(moved,))
    reader.start()
    reader.join()
    assert reader.exitcode == 0
    with h5py.File(moved, locking=True):
        assert recorder.checkpoint(1)
    assert cli.run(["check", str(moved)]) == 3
    assert f"whole so far, {REFUSED.removeprefix('is ')}\n" in capsys.readouterr().out
    with pytest.warns(UserWarning, match="was moved, deleted"):
        recorder.close()
    assert not inspect(moved).writer


def test_systems_without_such_locks_have_that_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(fcntl, "F_OFD_SETLK")
    monkeypatch.delattr(fcntl, "F_OFD_GETLK")
    with Recorder(tmp_path / "run.h5", small()) as recorder:
        assert recorder.checkpoint(0)
        with pytest.raises(FileError, match="is being written by"):
            resume(tmp_path / "run.h5")
    assert states(tmp_path / "run.h5").keys() == {0}


def search(run: Path, out: Path) -> None:
    refine(run, 60, AnalysisConfig(blocks=("E", "W"), device="cpu"), out, quiet=True)


@pytest.mark.parametrize("write", [lambda run, out: train(TINY, out, quiet=True), search], ids=["train", "critical"])
def test_a_file_that_is_there_once_it_is_locked_stays(
    write: Callable[[Path, Path], object], tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has finished it just before it gave its lock back."""
    out, lock = tmp_path / "out.h5", fcntl.flock

    def late(handle: int, how: int) -> None:
        if not out.exists():
            out.write_bytes(b"theirs")
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(FileError, match="out.h5 exists"):
        write(tiny_run, out)
    assert out.read_bytes() == b"theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["out.h5"]
