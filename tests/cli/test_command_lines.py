"""Command lines at random, of real options and hostile values: an exit code, an error with a hint, no traceback."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from landscape.cli import main as cli

CODES = {0, 1, 2, 3, 130}
HOSTILE = (
    "", "-1", "0", "1", "2", "-0", "1e999", "nan", "inf", "²", "٣", "1,,2", ",", "auto", "all", "full", "None", "True",
    "{None}", "--", "-", "--help=", "=", "x=1", "lr=1,2", "lr=", "E", "E,W", "W,E", "..", "/", "/dev/null", "/dev/full",
    "/proc/self/mem", "/nowhere/x.h5", "x" * 300, "\udcff", "a\nb", "\x1b[31m", "\u202e", "é", "$x$", "%s",
    "1" + "0" * 400, "9" * 5000, str(1 << 63), str(1 << 64), "-" + str(1 << 64), "0x10", "1_0", " 1 ", "1e-400",
)  # fmt: skip
"""What no option expects. Numbers that ask for long work are left out: they are no mistake."""
OPTIONS = {
    command: sorted(
        name
        for argument in cli.app()[command].assemble_argument_collection()
        for name in argument.names
        if name.startswith("--")
    )
    for command in cli.COMMANDS
}


@pytest.fixture
def folder(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run, a config and a folder, in which the commands may do what they will."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(tiny_run, "run.h5")
    Path("config.json").write_text('{"p": 7, "embed_dim": 4, "hidden": 8, "steps": 2}')
    Path("bad.json").write_text("[" * 100_000)
    torch.save({"w": torch.ones(2)}, "net1.pt")
    Path("folder").mkdir()
    return tmp_path


FILES = ("run.h5", "config.json", "bad.json", "folder", "missing.h5", "run.h5/x.h5", "new/x.h5", ".", "run.hessian.h5")
# What keeps work short, of the commands that have options; one that is drawn comes later, and wins.
BASE = {
    "train": ["--p", "7", "--embed-dim", "4", "--hidden", "8", "--batch-size", "16", "--steps", "2", "--out", "t.h5"],
    "import": ["net1.pt", "--out", "i.h5"],
    "hessian": ["run.h5", "--steps", "0", "--blocks", "E", "W", "E,W"],
    "critical": ["run.h5", "--step", "60", "--search-hvps", "3", "--blocks", "E", "W", "E,W"],
    "settle": ["run.h5", "--step", "60", "--descent-steps", "3", "--blocks", "E", "W", "E,W"],
    "slice": ["run.h5", "--step", "60", "--points", "3", "--plane-points", "3"],
    "geometry": ["run.h5"],
    "sweep": ["bad.json"],
    "export": ["bad.json"],
    "report": ["folder"],
    "compare": ["folder"],
    "info": ["bad.json"],
    "check": ["bad.json"],
    "demo": ["run.h5"],
    "completion": ["bash"],
}
# Asking for more of these is work, not a mistake.
LONG = re.compile(
    r"--(p|steps|hidden|embed-dim|extra-steps|seeds|max-hvps|search-hvps|descent-steps|probes|probe-steps|points)=[0-9]{2,}$"
)


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(sorted(BASE)))
    value = st.sampled_from(HOSTILE) | st.sampled_from(FILES) | st.integers().map(str) | st.floats().map(str)
    argv = [command, *BASE[command]]
    if command in ("info", "check", "report", "compare", "import"):
        argv[1] = draw(st.sampled_from(("run.h5", *FILES)) | value)
    for _ in range(draw(st.integers(0, 3))):
        option = draw(st.sampled_from(OPTIONS[command] or ["--unknown"]))
        argv += [option] if draw(st.integers(0, 3)) == 0 else [option, draw(value)]
    if draw(st.integers(0, 9)) == 0:
        argv.insert(draw(st.integers(0, len(argv))), draw(value))
    return argv


def judge(code: int, out: str, err: str, argv: list[str]) -> None:
    assert code in CODES, argv
    assert "Traceback" not in err, argv
    if code in (1, 2) and argv[0] != "check":
        rows = err.splitlines()
        at = max((i for i, row in enumerate(rows) if row.startswith("error: ")), default=-1)
        assert at >= 0, (argv, err)
        assert len(rows[at]) > len("error: x"), argv
        assert rows[at + 1].startswith("hint: "), (argv, err)
        assert len(rows[at + 1]) > len("hint: x"), argv


def test_every_command_is_tried() -> None:
    assert BASE.keys() == cli.COMMANDS.keys()


def execute(argv: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(argv)
    return code, out.getvalue(), err.getvalue()


def too_long(argv: list[str]) -> bool:
    """Whether this asks for more work than a test has time for."""
    joined = [f"{a}={b}" for a, b in zip(argv, argv[1:], strict=False)]
    return any(LONG.match(pair) and 2 < len(pair.partition("=")[2]) < 9 for pair in joined)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(argv=lines())
@pytest.mark.long
@pytest.mark.usefixtures("without_collection")
def test_random_command_lines(argv: list[str], folder: Path) -> None:
    """Whatever is typed ends in words."""
    if not too_long(argv):
        code, out, err = execute(argv)
        judge(code, out, err, argv)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=pytest.mark.slow if len(OPTIONS[name]) > 15 else ()) for name in sorted(BASE)],
)
@pytest.mark.long
@pytest.mark.usefixtures("without_collection")
def test_every_option_with_hostile_values(command: str, folder: Path) -> None:
    """Each option on its own, with what it cannot take and without its value."""
    for option in OPTIONS[command]:
        for more in ([option], [option, "\udcff\x1b[31m"], [option, "²"], [option, "1" + "0" * 400]):
            argv = [command, *BASE[command], *more]
            code, out, err = execute(argv)
            judge(code, out, err, argv)


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--seed", str(1 << 64)],
        ["hessian", "run.h5", "--steps", "²"],
        ["train", "--config", "bad.json"],
        ["info", b"caf\xe9.h5"],
        ["nothing"],
        ["report"],
    ],
)
def test_in_processes(argv: list[Any], folder: Path) -> None:
    """The same through the interpreter."""
    done = subprocess.run([sys.executable, "-m", "landscape", *argv], capture_output=True)
    judge(done.returncode, done.stdout.decode(), done.stderr.decode(), list(map(os.fsdecode, argv)))
    assert done.returncode in (1, 2)
    assert done.stdout == b""
