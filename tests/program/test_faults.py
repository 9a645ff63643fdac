"""Faults done to real runs and analyses: nothing that was acknowledged is lost, nothing half-written is served."""

from __future__ import annotations

import datetime
import errno
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from helpers import faults
from helpers.hessians import analyse
from helpers.once import made_once

from landscape.cli import main as cli
from landscape.errors import FileError
from landscape.files.runs import RunReader
from landscape.files.writer import Writer
from landscape.training.loop import train

HERE = Path(__file__).parents[1] / "helpers"


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> faults.Undisturbed:
    """The undisturbed run and analysis. Read only."""
    return faults.Undisturbed(made_once(tmp_path_factory, faults.undisturbed))


@pytest.fixture(scope="module")
def failing_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library to preload, under which writes to HDF5 files fail."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("lib") / "failing_disk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, HERE / "failing_disk.c", "-ldl"], check=True)
    return library


NO_BYTECODE = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
"""Python would cut its files of bytecode at a limit on file sizes, too, and read them ever after."""


def landscape(*argv: str, limit: tuple[str, ...] = (), **options: Any) -> subprocess.CompletedProcess[str]:
    """`landscape` in a process of its own, started by `limit`."""
    command = [*limit, sys.executable, "-m", "landscape", *argv]
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "size"),
    [
        (faults.crash_training, {"stride": 21, "resume_every": 25}),
        (faults.crash_analysis, {"stride": 1, "resume_every": 4}),
        (faults.lose_power, {"tries": 150}),
        pytest.param(faults.kill_training, {"kills": 4}, marks=pytest.mark.long),
        (faults.kill_training, {"kills": 2, "fsync": True}),
        pytest.param(faults.kill_analysis, {"kills": 5}, marks=pytest.mark.long),
    ],
    ids=["crash train", "crash hessian", "power", "kill train", "kill train --fsync", "kill hessian"],
)
def test_nothing_is_lost_torn_or_wrong(
    fault: Callable[..., faults.Tally], size: dict[str, Any], truth: faults.Undisturbed, tmp_path: Path
) -> None:
    """What was acknowledged is served bit for bit, nothing else is, and resuming ends where an undisturbed run does."""
    tally = fault(tmp_path, truth, **size)
    assert tally.harm == (0, 0, 0), tally
    assert tally.tried >= size.get("kills", size.get("tries", 10))
    assert tally.acknowledged > 0


@pytest.mark.parametrize(("after", "number"), [(0, errno.ENOSPC), (120, errno.EIO), (200, errno.ENOSPC)])
def test_a_failing_disk(after: int, number: int, truth: faults.Undisturbed, failing_disk: Path, tmp_path: Path) -> None:
    """One error with its cause, no traceback, no crash; what was committed is served, and --resume ends right."""
    path = tmp_path / "run.h5"
    command = ["train", "--out", str(path), *faults.RUN_FLAGS, "--quiet", "--resume"]
    failing = {**os.environ, "LD_PRELOAD": str(failing_disk), "FAIL_AFTER": str(after), "FAIL_WITH": str(number)}
    done = landscape(*command, env=failing)
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.strip().splitlines()
    assert lines[-2] == f"error: {path} cannot be written: {os.strerror(number)}"
    assert lines[-1].startswith("hint: what was committed is safe")
    served = faults.served_run(path)
    assert all(truth.checkpoints[step] == content for step, content in served.items())
    assert (len(served) > 0) == (after > 0)
    assert cli.run(["check", str(path)]) == 3
    assert cli.run(command) == 0
    assert faults.everything(path) == faults.everything(truth.run)


@pytest.mark.parametrize("kind", ["run", "hessian"])
def test_no_room_at_the_start(kind: str, truth: faults.Undisturbed, tmp_path: Path) -> None:
    """A file-size limit below what is needed: it and the bytes needed are named before any work, nothing is left."""
    run, out = tmp_path / "run.h5", tmp_path / "out.h5"
    shutil.copy(truth.run, run)
    argv = ["train", *faults.RUN_FLAGS, "--quiet"] if kind == "run" else ["hessian", str(run)]
    done = landscape(*argv, "--out", str(out), limit=("prlimit", "--fsize=50000"), env=NO_BYTECODE)
    assert done.returncode == 1
    assert re.search(
        r"out\.h5 cannot be made, [\d,]+ bytes: File too large\nhint: raise the limit on file", done.stderr
    )
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]


def test_no_room_at_the_end(truth: faults.Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trimming needs room for a second file; without it the first one stays, whole, and can be finished later."""
    path, real = tmp_path / "run.h5", os.posix_fallocate
    calls: list[int] = []

    def full(*args: Any) -> None:
        calls.append(1)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(*args)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FileError, match="bytes free; this file needs"):
        train(faults.RUN, path, quiet=True)
    assert faults.served_run(path) == truth.checkpoints
    monkeypatch.undo()
    train(faults.RUN, path, resume=True, quiet=True)
    assert faults.everything(path) == faults.everything(truth.run)


def test_a_reader_polls_a_live_run(truth: faults.Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at a run while it is written serves whole checkpoints only, and ever more of them."""
    path, real, looks = tmp_path / "run.h5", os.pwrite, []
    numbers = itertools.count()

    def write(handle: int, data: Any, at: int) -> int:
        if path.exists() and next(numbers) % 10 == 0:
            looks.append(faults.served_run(path))
        return real(handle, data, at)

    monkeypatch.setattr(os, "pwrite", write)
    train(faults.RUN, path, quiet=True)
    assert len({len(served) for served in looks}) > 3
    assert all(truth.checkpoints[step] == content for served in looks for step, content in served.items())
    assert [len(served) for served in looks] == sorted(len(served) for served in looks)


@pytest.mark.long
def test_two_writers_at_once(truth: faults.Undisturbed, tmp_path: Path) -> None:
    """Of two processes started together one writes the run; the other is refused, or finds it there."""
    path = tmp_path / "run.h5"
    command = [sys.executable, "-m", "landscape", "train", "--out", str(path), *faults.RUN_FLAGS, "--quiet"]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    ended = [(process.communicate()[1], process.returncode) for process in both]
    refusals = [said for said, code in ended if code]
    # The one that starts when the other has ended finds the run and leaves it as it is.
    assert len(refusals) <= 1
    assert all("is being written by another process" in said or f"{path} exists" in said for said in refusals)
    assert faults.everything(path) == faults.everything(truth.run)


def test_a_file_moved_while_it_is_written(
    truth: faults.Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run ends with an error; the moved file holds every checkpoint, and --repair trims it."""
    path, moved = tmp_path / "run.h5", tmp_path / "moved.h5"
    original = Writer.append

    def moving(self: Writer, step: int, *args: Any, **more: Any) -> None:
        original(self, step, *args, **more)
        if step == 20:
            path.rename(moved)
            path.write_text("something else")

    monkeypatch.setattr(Writer, "append", moving)
    with pytest.raises(FileError, match="was moved, deleted or replaced while it was being written"):
        train(faults.RUN, path, quiet=True)
    assert path.read_text() == "something else"
    assert faults.served_run(moved) == truth.checkpoints
    assert cli.run(["check", str(moved)]) == 3
    assert cli.run(["check", str(moved), "--repair"]) == 3
    assert "whole but interrupted" in capsys.readouterr().out
    with h5py.File(moved) as file:
        assert len(file["checkpoints/step"]) == len(truth.checkpoints)


def test_a_clock_that_jumps(truth: faults.Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that goes backwards, far, changes no number of a run or an analysis."""

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime(1970 + next(jumps) % 90, 1, 1, tzinfo=tz)

    jumps = iter(range(10**6, 0, -7))
    monkeypatch.setattr(datetime, "datetime", Jumping)
    monkeypatch.setattr(time, "time", lambda: float(next(jumps)))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(jumps)))
    train(faults.RUN, tmp_path / "run.h5", quiet=True)
    assert faults.everything(tmp_path / "run.h5") == faults.everything(truth.run)
    analyse(truth.run, faults.ANALYSIS, tmp_path / "h.h5", quiet=True)
    assert faults.served_hessian(tmp_path / "h.h5") == truth.rows


def test_check_tells_whole_unfinished_and_damaged_apart(
    truth: faults.Undisturbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit codes 0, 3 and 1; --repair leaves damaged rows out and keeps the original; info says how to go on."""
    path = Path(shutil.copy(truth.run, tmp_path / "run.h5"))
    assert cli.run(["check", str(path)]) == 0
    assert "whole and complete" in capsys.readouterr().out
    assert cli.run(["check", str(truth.hessian)]) == 0
    capsys.readouterr()
    Writer.extend(path, {"status": "running"}, {"checkpoints": 99}).close()
    assert cli.run(["check", str(path)]) == 3
    assert "whole but running" in capsys.readouterr().out
    assert cli.run(["info", str(path)]) == 0
    assert f"landscape train --out {path} --resume" in capsys.readouterr().out
    with h5py.File(path, "r+") as file:
        file["checkpoints/W"][3, 2, 1] += 1e-3
        step = int(file["checkpoints/step"][3])
    before = path.read_bytes()
    assert cli.run(["check", str(path)]) == 1
    assert f"checkpoints: 1 of 11 rows fail the checksum: {step}" in capsys.readouterr().out
    assert cli.run(["check", str(path), "--repair"]) == 3
    kept = tmp_path / "run.h5.damaged"
    assert kept.read_bytes() == before
    with RunReader(path) as reader:
        assert reader.steps == [s for s in truth.checkpoints if s != step]
    assert cli.run(["check", str(kept), "--repair"]) == 3
    assert cli.run(["info", str(tmp_path / "none.h5")]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert cli.run(["info", str(path), "--config"]) == 0
    assert '"hidden": 24' in capsys.readouterr().out
