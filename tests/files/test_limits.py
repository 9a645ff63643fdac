"""What a reader would refuse is refused before a file is made; locks and temporary files touch nobody else's files."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY
from helpers.hessians import analyse

from landscape.cli import main as cli
from landscape.config import HessianConfig
from landscape.errors import ConfigError, FileError, LandscapeError
from landscape.files.inspect import inspect, repair
from landscape.files.rows import ROWS
from landscape.files.runs import RunReader
from landscape.files.writer import require_room
from landscape.files.writing import is_written, lock_of, sole_writer, temporary_file
from landscape.training.loop import train
from landscape.training.member import rooms, rows_to_come
from landscape.training.tables import checkpoint_schedule, scales


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 1_100_000, "metrics_every": 1}, "metrics would have 1,100,002 rows; files have at most 1,048,576"),
        ({"steps": 10**9, "checkpoint_every": 1}, "checkpoint_every 1 asks for 1,000,000,000 checkpoints"),
        (
            {"steps": 10**9, "checkpoint_every": 0, "checkpoint_log": 10**9},
            "checkpoint_log 1000000000 asks for 9,000,000,000 checkpoints",
        ),
        ({"hidden": 10**8}, "W in checkpoints would take 3,200,000,000 bytes a step; at most 1,073,741,824"),
        ({"p": 46_000}, "order in resume would take 10,156,800,000 bytes a step"),
        ({"hidden": 10**6, "checkpoint_every": 1, "steps": 10**6}, "bytes free; this file needs"),
    ],
    ids=str,
)
def test_a_run_that_no_reader_takes_is_refused_at_once(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Before data, networks or files are made: nothing is left, however much was asked for."""
    with pytest.raises(LandscapeError, match=message.replace("(", r"\(")) as error:
        train(dataclasses.replace(TINY, **changes), tmp_path / "run.h5", quiet=True)
    assert error.value.hint
    assert list(tmp_path.iterdir()) == []


def test_the_largest_tables_are_accepted(tmp_path: Path) -> None:
    """The limits are those of the reader: at the limit a run passes, one row more and it does not."""
    config = dataclasses.replace(TINY, checkpoint_log=0, checkpoint_every=0, metrics_every=1)
    largest = dataclasses.replace(config, steps=ROWS - 2)
    require_room(tmp_path / "run.h5", rooms(largest), scales(largest))
    with pytest.raises(ConfigError, match="metrics would have 1,048,577 rows"):
        require_room(tmp_path / "run.h5", rooms(dataclasses.replace(config, steps=ROWS - 1)), scales(config))
    assert rows_to_come(dataclasses.replace(config, steps=ROWS - 2))["metrics"] == ROWS
    assert len(checkpoint_schedule(dataclasses.replace(config, steps=ROWS - 1, checkpoint_every=1))) == ROWS


@pytest.mark.slow
def test_an_extension_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    """The file stays as it was, and can be extended with fewer rows."""
    path = tmp_path / "run.h5"
    train(TINY, path, quiet=True)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"metrics would have 2,097,\d+ rows"):
        train(
            dataclasses.replace(TINY, steps=2 * ROWS, checkpoint_every=0, metrics_every=1),
            path,
            resume=True,
            quiet=True,
        )
    assert path.read_bytes() == before
    train(dataclasses.replace(TINY, steps=64), path, resume=True, quiet=True)
    with RunReader(path) as reader:
        assert reader.steps[-1] == 64


def test_texts_that_no_reader_takes(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command line or a list of steps that is too long for an attribute is refused in the reader's words."""
    monkeypatch.setattr(sys, "argv", ["landscape", "x" * (1 << 20)])
    for work in (
        lambda: train(TINY, tmp_path / "run.h5", quiet=True),
        lambda: analyse(tiny_run, HessianConfig(steps="0", blocks=("E",)), tmp_path / "h.h5", quiet=True),
    ):
        with pytest.raises(FileError, match="the attribute argv would have 1,048,58"):
            work()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_somebodys_file_is_left_alone(tmp_path: Path) -> None:
    """A link is refused; what it leads to, and a file of that name with a text, stay as they are."""
    path, victim = tmp_path / "run.h5", tmp_path / "victim"
    victim.write_text("precious")
    lock_of(path).symlink_to(victim)
    with pytest.raises(FileError, match="run.h5.lock cannot be used as a lock") as error:
        train(TINY, path, quiet=True)
    assert "move it away" in error.value.hint
    lock_of(path).unlink()
    lock_of(path).write_text("my notes")
    train(TINY, path, quiet=True)
    assert (victim.read_text(), lock_of(path).read_text()) == ("precious", "my notes")


@pytest.mark.slow
def test_a_pipe_as_a_lock_hangs_nobody(tiny_run: Path, tmp_path: Path) -> None:
    """`info` reads the file and does not wait for the pipe."""
    path = tmp_path / "run.h5"
    path.write_bytes(tiny_run.read_bytes())
    os.mkfifo(lock_of(path))
    command = [sys.executable, "-m", "landscape"]
    assert subprocess.run([*command, "info", str(path)], stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_lock_of_another_user(tmp_path: Path) -> None:
    """One line says which file is in the way, and why."""
    path = tmp_path / "run.h5"
    lock_of(path).touch(0o600)
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:2]:
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        with (
            pytest.raises(FileError, match=r"run\.h5\.lock cannot be used as a lock: Permission denied"),
            sole_writer(path),
        ):
            pass
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("name", ["*.h5", "[ab].h5", "?.h5"])
def test_a_name_with_wildcards_removes_nothing(name: str, tmp_path: Path) -> None:
    """The temporary files of other writers, and of names that only begin alike, are not those of a killed writer."""
    others = [tmp_path / f".{other}.77.landscape.tmp" for other in ("a.h5", "b.h5", f"{name}.x.h5", f"{name}.7x")]
    abandoned = tmp_path / f".{name}.77.landscape.tmp"
    for path in (*others, abandoned):
        path.write_bytes(b"\x89HDF\r\n\x1a\nunfinished")
    train(TINY, tmp_path / name, quiet=True)
    assert sorted(tmp_path.iterdir()) == sorted([*others, tmp_path / name])


def test_a_temporary_file_follows_no_link(tmp_path: Path) -> None:
    """A link under the name of the temporary file is an error; it and what it leads to stay."""
    path, victim = tmp_path / "run.h5", tmp_path / "victim"
    victim.write_text("precious")
    link = tmp_path / f".run.h5.{os.getpid()}.landscape.tmp"
    link.symlink_to(victim)
    with (
        pytest.raises(FileError, match=r"run\.h5\.\d+\.landscape\.tmp cannot be made: File exists"),
        temporary_file(path, 1),
    ):
        pass
    assert (link.is_symlink(), victim.read_text(), path.exists()) == (True, "precious", False)


def test_repair_waits_for_the_lock_before_it_looks(tiny_run: Path, tmp_path: Path) -> None:
    """A file that was finished since somebody looked is left as it is; one that is being written is refused."""
    path = tmp_path / "run.h5"
    path.write_bytes(tiny_run.read_bytes())
    before = path.stat().st_ino
    assert repair(path) is None
    assert path.stat().st_ino == before
    with sole_writer(path), pytest.raises(FileError, match="is being written by another process"):
        repair(path)


@pytest.mark.slow
def test_a_repair_that_was_killed_can_be_repeated(tiny_run: Path, tmp_path: Path) -> None:
    """The second name of the damaged file is there already; a file of another content there is in the way."""
    path, kept = tmp_path / "run.h5", tmp_path / "run.h5.damaged"
    data = bytearray(tiny_run.read_bytes())
    with RunReader(tiny_run) as reader:
        data[reader.tables["tokens"].data["grad_norm"].id.get_offset()] ^= 1
    path.write_bytes(data)
    kept.write_text("kept before")
    with pytest.raises(FileError, match=r"run\.h5\.damaged cannot be made: File exists"):
        repair(path)
    kept.unlink()
    kept.hardlink_to(path)
    assert repair(path) == kept
    assert kept.read_bytes() == data
    state = inspect(path)
    assert not state.damage
    with RunReader(path) as repaired, RunReader(kept) as damaged:
        repaired.require_whole()
        assert repaired.steps == damaged.steps


@pytest.mark.slow
def test_a_repaired_run_is_resumed(tiny_run: Path, tmp_path: Path) -> None:
    """Whatever table was damaged: the steps left are whole in all tables, and more of them follow."""
    for group in ("checkpoints", "tokens", "moments", "metrics"):
        path = tmp_path / f"{group}.h5"
        data = bytearray(tiny_run.read_bytes())
        with RunReader(tiny_run) as reader:
            data[reader.file[group]["crc32"].id.get_offset() + 16] ^= 1
        path.write_bytes(data)
        assert cli.run(["check", str(path), "--repair"]) == 3
        train(dataclasses.replace(TINY, steps=80), path, resume=True, quiet=True)
        with RunReader(path) as reader:
            reader.require_whole()
            assert reader.steps[-1] == 80


def test_a_look_does_not_keep_a_writer_out(tmp_path: Path) -> None:
    """The lock is seen while it is held, and is gone afterwards."""
    path = tmp_path / "run.h5"
    assert not is_written(path)
    with sole_writer(path):
        assert is_written(path)
    assert list(tmp_path.iterdir()) == []
