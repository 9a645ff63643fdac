"""Stopped exports and geometry files: no half of one stands where a whole one should, and the next call makes it."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from helpers.apart import SERVER, Kill, run_here, run_quietly
from helpers.sweeps import files

import landscape
from landscape import exports
from landscape.cli import main as cli
from landscape.errors import INTERRUPTED
from landscape.measure.geometry import geometry as measure_geometry

NUMBERS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])


def _export(argv: list[str], number: int, tables: int) -> None:
    """In a child: an export that gets a signal once it has written so many tables."""
    written, write = [], exports.write_csv

    def watched(table: object, path: Path) -> None:
        write(table, path)  # type: ignore[arg-type]
        written.append(path)
        if len(written) == tables:
            os.kill(os.getpid(), number)

    exports.write_csv = watched  # type: ignore[assignment]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run_quietly(argv, io.StringIO()))


@NUMBERS
@pytest.mark.parametrize("tables", [1, 2])
def test_a_stopped_export(number: signal.Signals, tables: int, tiny_run: Path, tmp_path: Path) -> None:
    """A new folder is not there, an earlier one is as it was, and the next call leaves nothing but the export."""
    argv = ["export", str(tiny_run), "--csv", str(tmp_path / "out")]
    assert cli.run(["export", str(tiny_run), "--csv", str(tmp_path / "whole")]) == 0
    whole = files(tmp_path / "whole")
    for more in ([], ["--overwrite"]):
        if more:
            (tmp_path / "out/mine.txt").write_text("mine")
        before = files(tmp_path / "out")
        child = SERVER.Process(target=_export, args=([*argv, *more], number, tables))
        child.start()
        child.join()
        assert child.exitcode == (INTERRUPTED if number == signal.SIGINT else -number)
        assert files(tmp_path / "out") == before
        assert (tmp_path / "out").exists() == bool(more)
        assert cli.run([*argv, *more]) == 0
        assert files(tmp_path / "out") == whole | ({"mine.txt": b"mine"} if more else {})
        assert {path.name for path in tmp_path.iterdir()} == {"out", "whole"}


@NUMBERS
def test_a_stopped_geometry(number: signal.Signals, tiny_run: Path, tmp_path: Path) -> None:
    """Stopped at some changes of a file: no file, or an earlier one as it was, or the whole one."""
    run = tmp_path / "run.h5"
    shutil.copy(tiny_run, run)
    first = measure_geometry(run, tmp_path / "whole" / "run.geometry.h5")
    with landscape.open(first) as file:
        whole = file.datasets["/"].load()
    out, stop = tmp_path / "run.geometry.h5", INTERRUPTED if number == signal.SIGINT else -number
    argv = ["geometry", str(run), "--quiet"]
    for at, earlier in itertools.product((1, 2, 3), (False, True)):
        out.unlink(missing_ok=True)
        if earlier:
            shutil.copy(first, out)
        more = ["--overwrite"] if earlier else []
        assert run_here(tmp_path, [*argv, *more], Kill(at=at, number=number, share=at % 2 / 2)).code == stop
        assert out.exists() or not earlier
        assert not out.exists() or cli.run(["check", str(out)]) == 0
        assert cli.run([*argv, *more]) == cli.run(["check", str(out)]) == 0
        with landscape.open(out) as file:
            assert file.datasets["/"].load().equals(whole)
        assert {path.name for path in tmp_path.iterdir()} == {"run.h5", "run.geometry.h5", "whole"}
