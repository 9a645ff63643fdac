"""A file that cannot be locked is said to be just that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
from helpers.recording import small

from landscape import Recorder, RunReader

LOCK = "#include <errno.h>\nint flock(int file, int how) {{ errno = {number}; return -1; }}\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Recorder(tmp_path / "run.h5", small()) as recorder:
        recorder.checkpoint(0)
    return tmp_path / "run.h5"


@pytest.mark.slow
def test_a_file_that_another_program_writes(run: Path) -> None:
    """Readers and writers say so, and the hint helps."""
    with h5py.File(run, "a"):
        for argv in (["info", run], ["train", "--resume", "--p", "7", "--steps", "9", "--out", run]):
            done = subprocess.run([sys.executable, "-m", "landscape", *argv], capture_output=True, text=True)
            assert done.returncode == 1
            assert "error: " in done.stderr
            assert "run.h5 is locked: another program, such as a notebook, has it open for writing" in done.stderr
            assert "hint: close it there; HDF5_USE_FILE_LOCKING=FALSE" in done.stderr
        unlocked = {**os.environ, "HDF5_USE_FILE_LOCKING": "FALSE"}
        assert subprocess.run([sys.executable, "-m", "landscape", "info", run], env=unlocked).returncode == 0
    with RunReader(run) as reader:
        assert reader.steps == [0]


@pytest.mark.slow
@pytest.mark.parametrize("number", [37, 524])
def test_a_file_system_without_locks(number: int, run: Path) -> None:
    """As NFS without its lock daemon: the hint helps."""
    code, library = run.with_name("lock.c"), run.with_name("lock.so")
    code.write_text(LOCK.format(number=number))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, code], check=True)
    argv = [sys.executable, "-m", "landscape", "info", str(run)]
    without = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(argv, capture_output=True, text=True, env=without)
    assert done.returncode == 1
    assert "run.h5 cannot be locked: its file system has no locks" in done.stderr
    assert "hint: set HDF5_USE_FILE_LOCKING=FALSE in the environment" in done.stderr
    as_hinted = {**without, "HDF5_USE_FILE_LOCKING": "FALSE"}
    assert subprocess.run(argv, capture_output=True, env=as_hinted).returncode == 0
