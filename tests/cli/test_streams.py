"""Streams that are closed, full or not UTF-8, and names that no text can show."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
from helpers.commands import SMALL, forked, landscape

from landscape.cli import main as cli


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ('"$@" info RUN >&-', 0, b"", b""),
        ('"$@" info RUN 2>&- | head -c 6', 0, b"run.h5", b""),
        ('"$@" info MISSING >&- 2>&-', 1, b"", b""),
        ('"$@" info RUN --json </dev/null | head -c 3', 0, b'{"p', b""),
        ('"$@" train --help | head -c 5', 0, b"Usage", b""),
        ('"$@" check BROKEN | true', 1, b"", b""),
        ('"$@" info RUN >/dev/full', 1, b"", b"error: standard output: No space left on device\nhint: free some "),
        ('"$@" --help >/dev/full', 1, b"", b"error: standard output: No space left on device\nhint: free some "),
        ('"$@" train --hiden 2>/dev/full', 2, b"", b""),
        ('"$@" train --hiden 2>&1 | true', 2, b"", b""),
    ],
)
def test_standard_streams(line: str, code: int, out: bytes, err: bytes, run_file: Path) -> None:
    """Closed, full and abandoned streams: the exit code is the command's own, and nobody else hears of it."""
    broken = Path(shutil.copy(run_file, run_file.with_name("broken.h5")))
    with h5py.File(broken, "r+") as file:
        file["checkpoints/W"][0, 0, 0] += 1
    line = line.replace("RUN", run_file.name).replace("BROKEN", broken.name).replace("MISSING", "missing.h5")
    command = ["bash", "-c", f"set -o pipefail; {line}", "-", sys.executable, "-m", "landscape"]
    # Unbuffered streams have nothing left to write when Python ends.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, capture_output=True, cwd=run_file.parent, env=env)
    assert done.returncode == code, done.stderr
    assert done.stdout == out
    assert done.stderr.startswith(err) if err else done.stderr == b""


@pytest.mark.slow
def test_closed_streams_take_no_file(tmp_path: Path) -> None:
    """With stdout and stderr closed, no file gets their numbers, in which stray prints would end."""
    out = tmp_path / "run.h5"
    line = f'"$@" train --out {out} {" ".join(SMALL[:-1])} >&- 2>&- <&-'
    done = subprocess.run(["bash", "-c", line, "-", sys.executable, "-m", "landscape"])
    assert done.returncode == 0
    assert cli.run(["check", str(out)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("argv", [["--help"], ["train", "--help"], ["train", "--hiden", "3"], ["hessian"]])
def test_a_terminal_of_ascii(argv: list[str]) -> None:
    """Whatever is printed, help and usage errors too, is told with ASCII if need be."""
    done = landscape(*argv, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.stdout + done.stderr).isascii()
    assert b"Traceback" not in done.stderr
    assert done.returncode == (0 if "--help" in argv else 2)
    assert bool(done.stdout) == ("--help" in argv)
    if done.returncode:
        first, second = done.stderr.decode().splitlines()
        assert first.startswith("error: ")
        assert len(first) > 20
        assert second.startswith("hint: ")


@pytest.mark.slow
def test_progress_in_ascii(run_file: Path, tmp_path: Path) -> None:
    """Bars, captions and tables, too."""
    out, step = ["--out", str(tmp_path / "x")], ["--step", "60"]
    for argv in (
        ["train", "--out", str(tmp_path / "x.h5"), *SMALL[:-1]],
        ["hessian", str(run_file), "--steps", "60", "--blocks", "E", "W", "E,W", "--out", str(tmp_path / "é.h5")],
        ["slice", str(run_file), *step, *out],
        ["report", str(run_file), "--out", str(tmp_path / "é")],
        ["critical", str(run_file), *step, "--search-hvps", "9"],
    ):
        done = forked(*argv, env={"PYTHONIOENCODING": "ascii"})
        assert done.returncode in (0, 3), done.stderr
        assert (done.stdout + done.stderr).isascii()


@pytest.mark.long
def test_names_that_are_not_utf8(run_file: Path, tmp_path: Path) -> None:
    """Every command takes such names for inputs and outputs; stdout and reports show them escaped."""
    folder = os.fsencode(tmp_path)
    run, trained = folder + b"/caf\xe9.h5", folder + b"/n\xffew/b.h5"
    os.rename(run_file, run)
    for argv in (
        ["train", "--out", trained, *SMALL],
        ["info", run],
        ["check", run],
        ["hessian", run, "--steps", "0,60", "--blocks", "E", "W", "E,W", "--quiet"],
        ["report", run, "--out", folder + b"/r\xe9", "--quiet"],
        ["slice", run, "--step", "60", "--out", folder + b"/s\xe9"],
        ["critical", run, "--step", "60", "--search-hvps", "9", "--quiet"],
        ["info", folder + b"/caf\xe9.critical-60.h5"],
    ):
        done = forked(*argv)
        assert done.returncode in (0, 3), (argv, done.stderr)
        # A busy machine may take long enough for a line of progress.
        assert not any(line.startswith((b"error", b"warning", b"Traceback")) for line in done.stderr.splitlines())
        done.stdout.decode()
    done = forked("info", run, "--json")
    assert os.fsencode(json.loads(done.stdout)["path"]) == run
    assert r"caf\udce9" in Path(os.fsdecode(folder + b"/r\xe9"), "report.html").read_text()
    done = landscape("info", folder + b"/no\xe9.h5")
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: ")
    assert rb"no\udce9.h5 does not exist" in done.stderr
