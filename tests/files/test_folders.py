"""Folders of results: replaced whole or not at all, with nobody else's file lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from helpers.commands import Refusal

from landscape.cli import main as cli
from landscape.errors import ConfigError, FileError
from landscape.files.folders import RECORD, replaced_folder
from landscape.report.page import write_report

PAGES = 12
FORK = multiprocessing.get_context("fork")


def write(out: Path, text: str, others: Mapping[str, str] = MappingProxyType({})) -> None:
    """A folder of a few files that all hold the same text; meanwhile somebody writes `others` into it."""
    with replaced_folder(out, "report", True) as draft:
        for name, theirs in others.items():
            out.mkdir(exist_ok=True)
            (out / name).write_text(theirs)
        (draft / "figures").mkdir()
        for i in range(PAGES):
            (draft / "figures" / f"{i}.txt").write_text(text)
        (draft / "report.html").write_text(text)


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file() and p.name != RECORD}


def whole(text: str) -> dict[str, str]:
    return {"report.html": text, **{f"figures/{i}.txt": text for i in range(PAGES)}}


def test_only_what_was_written_is_replaced(tmp_path: Path) -> None:
    """Files, folders and links that somebody added stay; an edited file is an error, and nothing is touched."""
    out = tmp_path / "r"
    write(out, "one")
    (out / "notes.md").write_text("mine")
    (out / "data").mkdir()
    (out / "data" / "run.h5").write_text("mine too")
    (out / "figures" / "own.txt").write_text("also mine")
    (out / "link").symlink_to(tmp_path / "elsewhere")
    (out / "empty").mkdir()
    mine = {"notes.md": "mine", "data/run.h5": "mine too", "figures/own.txt": "also mine"}
    for text in ("two", "three"):
        write(out, text)
        assert content(out) == {**whole(text), **mine}
        assert (out / "link").readlink() == tmp_path / "elsewhere"
        assert (out / "empty").is_dir()
    (out / "figures" / "3.txt").write_text("edited")
    with pytest.raises(FileError, match="3.txt was edited since it was written") as caught:
        write(out, "four")
    assert caught.value.hint == "move it away, or choose another folder"
    assert content(out) == {**whole("three"), **mine, "figures/3.txt": "edited"}
    (out / "figures" / "3.txt").unlink()
    write(out, "four")
    assert content(out) == {**whole("four"), **mine}
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_a_file_in_the_way_of_a_new_one(tmp_path: Path) -> None:
    """One that no record names is not written over."""
    out = tmp_path / "r"
    with replaced_folder(out, "report", False) as draft:
        (draft / "old.txt").write_text("")
    (out / "report.html").write_text("mine")
    with pytest.raises(FileError, match="report.html is in the way, and no record names it"):
        write(out, "new")
    assert content(out) == {"old.txt": "", "report.html": "mine"}
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_an_edit_while_the_new_files_are_made(tmp_path: Path) -> None:
    """It stays as it is, and so does what appears in a folder that was not there at first."""
    out = tmp_path / "r"
    write(out, "one")
    others = {"figures/3.txt": "edited", "notes.md": "mine"}
    with pytest.raises(FileError, match="3.txt was edited since it was written"):
        write(out, "two", others)
    assert content(out) == whole("one") | others
    with pytest.raises(ConfigError, match="is no report with a record"):
        write(tmp_path / "new", "one", {"notes.md": "mine"})
    assert content(tmp_path / "new") == {"notes.md": "mine"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "r"]


def overwrite_beside(out: Path, changed: str) -> None:
    """In a process of its own: overwrite `out`, in which a file changes right before the folders are exchanged."""

    def change(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.rename" and arguments[0] == str(out):
            (out / changed).write_text("mine")

    sys.addaudithook(change)
    with contextlib.suppress(FileError):
        write(out, "new")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("changed", ["notes.md", "report.html"])
def test_a_change_in_the_last_instant(changed: str, tmp_path: Path) -> None:
    """A new file is kept in the new folder; for an edited one the earlier folder stays beside it, for good."""
    out = tmp_path / "r"
    write(out, "old")
    process = FORK.Process(target=overwrite_beside, args=(out, changed))
    process.start()
    process.join()
    assert process.exitcode == 0
    write(out, "newer")
    left = [p for p in tmp_path.iterdir() if p != out]
    if changed == "notes.md":
        assert content(out) == whole("newer") | {"notes.md": "mine"}
        assert not left
    else:
        assert content(out) == whole("newer")
        assert [content(folder) for folder in left] == [whole("old") | {"report.html": "mine"}]


def test_a_folder_in_the_place_of_the_draft(tmp_path: Path) -> None:
    """Even under the number of this process it is somebody else's, and stays."""
    theirs = tmp_path / f".r.{os.getpid()}.landscape.tmp"
    theirs.mkdir()
    (theirs / "precious").write_text("mine")
    with pytest.raises(FileError, match=f"{theirs.name} cannot be made: File exists"):
        write(tmp_path / "r", "one")
    assert (theirs / "precious").read_text() == "mine"
    assert list(tmp_path.iterdir()) == [theirs]


@pytest.mark.parametrize("inside", [".", "sub"])
def test_the_working_folder_stays(
    inside: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_refused: Refusal
) -> None:
    """Replaced, it would leave the shell in a folder that is gone; whoever is in such a one may write elsewhere."""
    out = tmp_path / "here"
    (out / inside).mkdir(parents=True)
    monkeypatch.chdir(out / inside)
    argv = ["export", tiny_run, "--csv", os.path.relpath(out)]
    assert_refused(argv, 2, f"{out} is the folder that you are in, or above it", f"such as {out}/export")
    assert Path.cwd() == out / inside
    assert list(out.iterdir()) == ([] if inside == "." else [out / inside])
    shutil.rmtree(out)
    write(tmp_path / "elsewhere", "one")
    assert content(tmp_path / "elsewhere") == whole("one")


@pytest.mark.parametrize("made", ["file", "folder"])
def test_what_has_no_record_is_refused(made: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    if made == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "report.html").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is no report with a record of its files"):
        write(out, "new")
    assert (out if made == "file" else out / "report.html").read_text() == "mine"


def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    """What it points to is replaced; the link stays."""
    (tmp_path / "r").symlink_to(tmp_path / "real")
    for text in ("one", "two"):
        write(tmp_path / "r", text)
        assert (tmp_path / "r").is_symlink()
        assert content(tmp_path / "real") == whole(text)


def test_links_in_a_circle(tiny_run: Path, tmp_path: Path, assert_refused: Refusal) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for argv in (
        ["export", tiny_run, "--csv"],
        ["report", tiny_run, "--out"],
        ["slice", tiny_run, "--step", 0, "--out"],
    ):
        assert_refused([*argv, loop], 1, f"{loop}: its symbolic links lead in a circle", "choose another path")
    assert loop.is_symlink()


@pytest.mark.parametrize("made", ["deep", "pipe", "device"])
def test_what_is_no_record(made: str, tmp_path: Path) -> None:
    """A file that no parser takes, and what has no end: a folder with it is somebody else's."""
    out = tmp_path / "r"
    out.mkdir()
    if made == "deep":
        (out / RECORD).write_text("[" * 100_000)
    elif made == "pipe":
        os.mkfifo(out / RECORD)
    else:
        (out / RECORD).symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match="is no report with a record of its files"):
        write(out, "new")
    assert [p.name for p in out.iterdir()] == [RECORD]


def overwrite(number: int, out: Path) -> None:
    """In a process of its own: overwrite `out`, and die at the system call of this number."""
    calls = 0

    def count(event: str, _: object) -> None:
        nonlocal calls
        if event.split(".")[0] in ("os", "open", "shutil"):
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    write(out, "new")


def killed_at(number: int, out: Path) -> bool:
    """Whether overwriting `out` came to a system call of this number, where it was killed."""
    process = FORK.Process(target=overwrite, args=(number, out))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.long
def test_a_kill_at_any_instant(tmp_path: Path) -> None:
    """Before each system call: the old or the new report is whole, and the next one leaves nothing hidden behind."""
    number, seen = 0, set()
    while True:
        number += 1
        out = tmp_path / str(number) / "r"
        out.parent.mkdir()
        write(out, "old")
        (out / "notes.md").write_text("mine")
        if not killed_at(number, out):
            break
        whole_ones = [p for p in (out, *out.parent.glob(".r.*.landscape.old")) if p.exists()]
        assert content(whole_ones[0]) in ({**whole("old"), "notes.md": "mine"}, {**whole("new"), "notes.md": "mine"})
        seen.add(content(whole_ones[0])["report.html"])
        write(out, "next")
        assert content(out) == {**whole("next"), "notes.md": "mine"}
        assert [p.name for p in out.parent.iterdir()] == ["r"]
    assert number > 40
    assert seen == {"old", "new"}


def test_hidden_folders_of_others_stay(tmp_path: Path) -> None:
    """Only what has the name of a killed command's folder, and our record or nothing in it, is cleaned up."""
    theirs = tmp_path / ".r.1234.landscape.tmp"
    theirs.mkdir()
    (theirs / "precious").write_text("mine")
    (tmp_path / ".r.99.landscape.tmp").symlink_to(theirs)
    (tmp_path / ".r.77.landscape.tmp").mkdir()
    # Of other programs, and a copy of a report.
    (tmp_path / ".r.78.tmp").mkdir()
    (tmp_path / ".r.notes.tmp").mkdir()
    write(tmp_path / "r", "one")
    for copy in (".r.79.tmp", ".r.before.old"):
        shutil.copytree(tmp_path / "r", tmp_path / copy)
    write(tmp_path / "r", "two")
    assert (theirs / "precious").read_text() == "mine"
    names = [
        ".r.1234.landscape.tmp",
        ".r.78.tmp",
        ".r.79.tmp",
        ".r.99.landscape.tmp",
        ".r.before.old",
        ".r.notes.tmp",
        "r",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_an_input_in_the_output_folder(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a run nor its analysis is ever in a folder that is replaced."""
    out = tmp_path / "r"
    write(out, "one")
    run = Path(shutil.copy(tiny_run, out / "run.h5"))
    assert cli.run(["report", str(run), "--out", str(out), "--overwrite", "--quiet"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"error: {run} lies in {out}, which the report replaces", "hint: choose another --out"]
    assert run.read_bytes() == tiny_run.read_bytes()
    with pytest.raises(ConfigError, match="lies in"):
        write_report([run], out / ".." / "r", overwrite=True, quiet=True)
