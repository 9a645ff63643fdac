"""Files and folders that are written anew keep the permissions that somebody gave them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.privileges import without_privileges
from helpers.recording import small

from landscape import Recorder
from landscape.errors import FileError
from landscape.files import schema
from landscape.files.files import refuse_foreign
from landscape.files.folders import replaced_folder
from landscape.files.inspect import repair
from landscape.files.runs import RunReader
from landscape.files.writer import Writer
from landscape.files.writing import temporary_file
from landscape.training.importers import import_checkpoints

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


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
    path.touch()
    path.chmod(0o604)
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


def give(path: Path, owner: int, group: int) -> None:
    try:
        os.chown(path, owner, group)
    except OSError:
        pytest.skip("other users have no numbers here")


@AS_ROOT
def test_a_file_keeps_its_owner(tmp_path: Path) -> None:
    """Whose run root resumes or repairs can go on with it."""
    path = tmp_path / "run.h5"
    replace(path)
    give(path, 65534, 12345)
    path.chmod(0o640)
    resume(path)
    status = path.stat()
    assert (status.st_uid, status.st_gid, mode(path)) == (65534, 12345, 0o640)


@AS_ROOT
def test_no_other_group_reads_it(tmp_path: Path) -> None:
    """Where the group cannot stay, what it was allowed is nobody's."""
    path = tmp_path / "run.h5"
    replace(path)
    give(path, 0, 12345)
    path.chmod(0o664)
    with without_privileges():
        resume(path)
    assert (path.stat().st_gid, mode(path)) == (os.getegid(), 0o604)


def imported(path: Path) -> None:
    torch.save(small().state_dict(), source := path.parent.with_suffix(".5.pt"))
    import_checkpoints([source], path, overwrite=True, quiet=True)


@pytest.mark.parametrize("write", [resume, replace, imported])
def test_a_protected_file_stays_as_it_is(write: Callable[[Path], object], tmp_path: Path) -> None:
    """Though whoever may write in its folder could put another one in its place."""
    (folder := tmp_path / "runs").mkdir()
    path = folder / "run.h5"
    replace(path)
    path.chmod(0o444)
    before = path.read_bytes()
    with without_privileges(), pytest.raises(FileError, match=r"run\.h5 is protected from being written"):
        write(path)
    assert path.read_bytes() == before
    assert os.listdir(folder) == ["run.h5"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_cannot_be_read_is_not_called_foreign(overwrite: bool, tmp_path: Path) -> None:
    """It may be what it should be, and nobody is told to remove it."""
    path = tmp_path / "run.h5"
    replace(path)
    before = path.read_bytes()
    path.chmod(0o200)
    with without_privileges(), pytest.raises(FileError, match=r"run\.h5: Permission denied") as refused:
        Recorder(path, small(), resume=not overwrite, overwrite=overwrite)
    assert "remove" not in refused.value.hint
    with without_privileges(), pytest.raises(FileError, match=r"run\.h5: Permission denied"):
        refuse_foreign(path, schema.HESSIAN)
    path.chmod(0o600)
    assert path.read_bytes() == before
