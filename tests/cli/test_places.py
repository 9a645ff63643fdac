"""Places that nothing can be written to or read from: one error, one hint, and nothing left half-made."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.commands import SMALL, Refusal
from helpers.marking import slow
from helpers.privileges import without_privileges

import landscape
from landscape.cli import main as cli
from landscape.errors import FileError
from landscape.workers import Workers


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk with room for files of this many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_a_missing_folder_is_made(flag: str, tmp_path: Path, run_file: Path) -> None:
    """--resume starts a run that is not there, and --overwrite replaces nothing: in a new folder, too."""
    out = tmp_path / "new" / "folder" / "run.h5"
    assert cli.run(["train", "--out", str(out), *SMALL, flag]) == 0
    point = tmp_path / "other" / "point.h5"
    argv = ["critical", str(run_file), "--step", "60", "--out", str(point), "--search-hvps", "50"]
    assert cli.run([*argv, "--quiet", flag]) in (0, 3)
    assert point.exists()


@pytest.mark.slow
def test_a_home_folder_that_no_shell_has_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ~ after an equals sign, in quotes or in Python is the home folder; no folder gets that name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cli.run(["train", "--out=~/run.h5", *SMALL]) == 0
    assert cli.run(["train", "--out=~/run.h5", "--resume", "--steps", "30", "--quiet"]) == 0
    assert cli.run(["hessian", "~/run.h5", "--blocks", "E", "--quiet"]) == 0
    assert cli.run(["check", "~/run.hessian.h5"]) == 0
    config = landscape.SweepConfig(seeds=(0,), train={"p": 5, "embed_dim": 2, "hidden": 3, "steps": 2})
    assert landscape.sweep(config, "~/out", jobs=0, quiet=True).failures == []
    with landscape.open("~/run.h5") as file:
        run = file.to_xarray()
        assert int(run.step[-1]) == 30
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert {path.name for path in (tmp_path / "home").iterdir()} >= {"run.h5", "run.hessian.h5", "out"}


@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_a_folder_that_cannot_be_made(flag: str, run_file: Path, assert_refused: Refusal) -> None:
    """A file where a folder should be is named."""
    inside = run_file / "x.h5"
    assert_refused(["train", "--out", inside, *SMALL, flag], 1, f"cannot write in {run_file}", "choose another place")
    argv = ["critical", run_file, "--step", "60", "--out", inside, flag]
    assert_refused(argv, 1, str(run_file), "another place" if flag == "--overwrite" else "")


@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_a_folder_without_permission(flag: str, tmp_path: Path, run_file: Path, assert_refused: Refusal) -> None:
    """Every command that writes names the folder that it cannot write in."""
    locked = tmp_path / "locked"
    locked.mkdir()
    shutil.copy(run_file, locked / "run.h5")
    locked.chmod(0o555)
    with without_privileges():
        for argv in (
            ["train", "--out", locked / "run.h5", *SMALL, flag],
            ["hessian", locked / "run.h5"],
            ["critical", locked / "run.h5", "--step", "60"],
            ["report", run_file, "--out", locked / "r"],
        ):
            assert_refused(argv, 1, f"cannot write in {locked}", "choose another place")
    assert [path.name for path in locked.iterdir()] == ["run.h5"]


def test_a_folder_that_is_protected(tmp_path: Path, run_file: Path, assert_refused: Refusal) -> None:
    """It is not replaced, nor is one with a folder whose files cannot be kept; rights of others stay as they are."""
    out, mine = tmp_path / "tables", tmp_path / "tables" / "mine"
    argv = ["export", run_file, "--csv", out]
    assert cli.run([*map(str, argv)]) == 0
    mine.mkdir()
    (mine / "notes.md").write_text("mine")
    unread = f"{mine} cannot be read: Permission denied"
    for folder, mode, error in ((out, 0o555, f"cannot write in {out}"), (mine, 0, unread)):
        folder.chmod(mode)
        with without_privileges():
            assert_refused([*argv, "--overwrite"], 1, error, "choose another place")
        folder.chmod(0o770)
        assert [path.name for path in tmp_path.iterdir() if path != run_file] == ["tables"]
    assert cli.run([*map(str, argv), "--overwrite"]) == 0
    assert (mine / "notes.md").read_text() == "mine"
    assert out.stat().st_mode & 0o777 == 0o770


def test_a_file_without_permission(run_file: Path, tmp_path: Path, assert_refused: Refusal) -> None:
    """Files that may not be read, as input and as config."""
    config = tmp_path / "c.json"
    config.write_text("{}")
    for path in (run_file, config):
        path.chmod(0)
    with without_privileges():
        assert_refused(["info", run_file], 1, f"{run_file}: Permission denied", "owner")
        assert_refused(["train", "--config", config], 1, "Permission denied", "owner")


def test_a_lock_of_another_user(tmp_path: Path, assert_refused: Refusal) -> None:
    """A lock that may not be opened is named, and stays."""
    lock = tmp_path / "run.h5.lock"
    lock.touch()
    lock.chmod(0)
    with without_privileges():
        assert_refused(["train", "--out", tmp_path / "run.h5", *SMALL], 1, str(lock), "move it away")
    assert list(tmp_path.iterdir()) == [lock]


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 2_000, slow(60_000)])
def test_a_full_disk(room: int, run_file: Path, tmp_path: Path, assert_refused: Refusal) -> None:
    """Reports, slices and files of any kind end in one error, and leave nothing half-written in their place."""
    before = sorted(tmp_path.iterdir())
    with files_of_at_most(room):
        for argv in (["report", run_file, "--quiet"], ["slice", run_file, "--step", "60"]):
            assert_refused([*argv, "--out", tmp_path / argv[0]], 1, "File too large", "ulimit -f")
        error, hint = "File too large", "ulimit -f"
        assert_refused(["train", "--out", tmp_path / "x.h5", *SMALL, "--checkpoint-every", "1"], 1, error, hint)
        assert_refused(["hessian", run_file, "--quiet"], 1, error, hint)
        argv = ["critical", run_file, "--step", "60", "--search-hvps", "9", "--quiet"]
        assert_refused(argv, 1, error, hint)
    assert {*before, tmp_path / "slice"} >= set(tmp_path.iterdir())


@pytest.mark.slow
def test_a_sweep_on_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sweep's own page, and its runs."""
    config = tmp_path / "sweep.json"
    train = {"p": 7, "embed_dim": 4, "hidden": 8, "batch_size": 16, "steps": 2}
    config.write_text(json.dumps({"name": "s", "train": train}))
    argv = ["sweep", "--config", str(config), "--out", str(tmp_path / "out"), "--jobs", "1", "--quiet"]
    for room in (0, 2_000):
        with files_of_at_most(room):
            assert cli.run(argv) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert [line.split(":")[0] for line in captured.err.splitlines()] == ["error", "hint"], captured.err
    assert cli.run(argv) == 0


@pytest.mark.slow
def test_a_failure_in_a_worker_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """What the system refuses a worker is no traceback; a bug is one."""
    with Workers(1) as workers:
        [(reason, *_)] = workers.run(os.listdir, [("/nowhere",)])
        assert reason == ("/nowhere: No such file or directory", "check the path")
        assert "Traceback" not in capfd.readouterr().err
        [(reason, *_)] = workers.run(divmod, [(1, 0)])
    assert reason is not None
    assert reason[0].startswith("ZeroDivisionError")
    assert "Traceback" in capfd.readouterr().err


def test_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that no user can make keeps its traceback."""
    with pytest.raises(ZeroDivisionError):
        cli.run(["info", _Raises(ZeroDivisionError())])  # type: ignore[list-item]


class _Raises(str):
    """An argument that raises as soon as it is looked at."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __new__(cls, error: Exception) -> _Raises:
        return super().__new__(cls)

    def __eq__(self, other: object) -> bool:
        raise self.error

    def __hash__(self) -> int:
        raise self.error


@pytest.mark.parametrize("length", [245, 300, 5000])
def test_too_long_names(length: int, tmp_path: Path, run_file: Path, assert_refused: Refusal) -> None:
    """As output and as input, in the middle of a path too."""
    name = "x" * length + ".h5"
    for flag in ("--quiet", "--resume", "--overwrite"):
        assert_refused(["train", "--out", tmp_path / name, *SMALL, flag], 1, "File name too long", "")
    assert_refused(["hessian", run_file, "--quiet", "--out", tmp_path / name], 1, "File name too long", "")
    if length > 255:
        assert_refused(["info", tmp_path / name], 1, "File name too long", "a shorter name")
        assert_refused(["report", run_file, "--out", tmp_path / name], 1, "File name too long", "a shorter name")
        assert_refused(["train", "--out", tmp_path / ("y" * length) / name, *SMALL], 1, "File name too long", "")


def test_the_longest_name(tmp_path: Path) -> None:
    """That whose temporary file has the longest name that the system allows."""
    name = "x" * (255 - len(f"..h5.{os.getpid()}.landscape.tmp")) + ".h5"
    assert cli.run(["train", "--out", str(tmp_path / name), *SMALL]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_only_the_systems_errors_are_told_as_mistakes() -> None:
    """An error without a number of the system is a bug."""
    from landscape.errors import as_landscape_error

    assert isinstance(as_landscape_error(FileNotFoundError(2, "x", "name")), FileError)
    assert as_landscape_error(OSError("no number")) is None
    assert as_landscape_error(ValueError("x")) is None


@pytest.mark.parametrize("out", [".", "/"])
def test_an_output_without_a_name(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_refused: Refusal
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(["train", *SMALL, "--out", out], 1, f"{out} is a folder", "name the .h5 file")
    assert_refused(["hessian", out, "--quiet"], 1, f"{out} is a folder", "name the .h5 file")
