"""Files and folders that are written anew keep the permissions that somebody gave them."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.recording import small

from landscape import Recorder, RunReader
from landscape.errors import FileError
from landscape.storage.folders import replaced_folder
from landscape.storage.inspect import repair
from landscape.storage.writer import Writer
from landscape.storage.writing import temporary_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def resume(path: Path) -> None:
    with Recorder(path, small(), resume=True) as recorder:
        recorder.checkpoint(recorder.steps[-1] + 1)


def replace(path: Path) -> None:
    with Recorder(path, small(), overwrite=True) as recorder:
        recorder.checkpoint(0)


def test_a_run_keeps_its_permissions(tmp_path: Path) -> None:
    """While it makes room, at its end, resumed, replaced, and repaired."""
    path = tmp_path / "run.h5"
    with Recorder(path, small()) as recorder:
        path.chmod(0o640)
        recorder.checkpoint(0)
        # The first row of metrics that were not declared makes the file anew.
        recorder.metrics(0, loss=1.0)
        assert mode(path) == 0o640
    assert mode(path) == 0o640
    resume(path)
    assert mode(path) == 0o640
    replace(path)
    assert mode(path) == 0o640
    # As a killed writer would leave it.
    Writer.extend(path, {"status": "running"}, {"checkpoints": 9}).close()
    assert repair(path) is None
    with RunReader(path) as reader:
        assert reader.attrs["status"] == "interrupted"
    assert mode(path) == 0o640


def test_nobody_else_reads_what_is_not_yet_in_its_place(tmp_path: Path) -> None:
    """The new file is as open as the old one only once it is there."""
    path = tmp_path / "run.h5"
    path.touch(0o604)
    with temporary_file(path, 1) as draft:
        assert mode(draft) == 0o600
    assert mode(path) == 0o604


def test_a_folder_keeps_its_permissions(tmp_path: Path) -> None:
    """That of a report, when it is replaced."""
    out = tmp_path / "report"
    out.mkdir(0o700)
    for _ in range(2):
        with replaced_folder(out, "report", overwrite=True) as draft:
            (draft / "report.html").touch()
        assert mode(out) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("write", [resume, replace])
def test_a_protected_file_stays_as_it_is(write: Callable[[Path], object]) -> None:
    """Though whoever may write in its folder could put another one in its place."""
    # Nobody but root comes to the folders of pytest.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        path = Path(folder, "run.h5")
        replace(path)
        path.chmod(0o444)
        before = path.read_bytes()
        os.seteuid(65534)
        try:
            with pytest.raises(FileError, match=r"run\.h5 is protected from being written"):
                write(path)
        finally:
            os.seteuid(0)
        assert path.read_bytes() == before
        assert os.listdir(folder) == ["run.h5"]
