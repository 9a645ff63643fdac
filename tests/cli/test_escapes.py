"""Text from files and names, wherever it is shown: nothing in it acts on a terminal, a page or a spreadsheet."""

from __future__ import annotations

import csv
import html.parser
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import pandas as pd
import pytest
from helpers.fuzz_reader import seal
from helpers.hessians import HessianReader
from hypothesis import given
from hypothesis import strategies as st

from landscape.cli import main as cli
from landscape.errors import LandscapeError, complain, warn
from landscape.text import csv_cell, printable, write_csv

TEXTS = ("landscape_version", "git_commit", "torch_version", "device", "hostname", "created", "run_id", "argv")
ATTACK = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b31m\x00\x08\r\nfake: line\x85\u2028\u202egpj.exe\u2066\u200b\ufeff"
    "<script>alert(1)</script><img src=x onerror=y>![i](https://evil.example/i.png)[l](javascript:x)|a|`c`$x$ *b* &lt;"
)
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


@pytest.fixture
def hostile(tiny_run: Path, tmp_path: Path) -> Path:
    """A run file of which every free text is an attack, with checksums that fit, under a name that is one."""
    path = Path(shutil.copy(tiny_run, tmp_path / "a\x1b[31m\u202e=x|<b>$\\frac$_.h5"))
    with h5py.File(path, "r+") as file:
        for name in TEXTS:
            file.attrs[name] = ATTACK.replace("\x00", "")
        seal(file)
    return path


@pytest.mark.parametrize("argv", [["info"], ["check"], ["info", "--config"], ["info", "--json"], ["check", "--json"]])
def test_terminal(argv: list[str], hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """info and check print no character of a file that a terminal acts on, and no line of its own."""
    assert cli.run([*argv, str(hostile)]) == 0
    out = capsys.readouterr().out
    assert not RAW.search(out)
    assert not any(line.startswith("fake") for line in out.splitlines())
    if "--json" in argv:
        assert json.loads(out)["attributes"]["hostname"] == ATTACK.replace("\x00", "")
    elif argv == ["info"]:
        assert r"\x1b]0;owned\x07" in out
        # What is to be copied into a shell is quoted for it.
        assert f"--out '{printable(hostile)}' --resume" in out


def test_errors_and_warnings(hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, whatever the file says of itself."""
    with h5py.File(hostile, "r+") as file:
        file.attrs["status"] = ATTACK.replace("\x00", "")
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file.attrs["schema"] = ATTACK.replace("\x00", "")
    commands = (["info", str(hostile)], ["hessian", str(other)], ["info", str(tmp_path / "no\x1b[2J")])
    for argv in commands:
        assert cli.run(argv) == 1
        error = capsys.readouterr().err
        assert not RAW.search(error)
        assert [line.split(":")[0] for line in error.splitlines()] == ["error", "hint"]
    complain(LandscapeError(ATTACK, ATTACK))
    warn(ATTACK)
    error = capsys.readouterr().err
    assert not RAW.search(error)
    assert [line.split(":")[0] for line in error.splitlines()] == ["error", "hint", "warning"]


class Page(html.parser.HTMLParser):
    """The tags of a page and what its links name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "onerror")]


@pytest.mark.slow
def test_report(
    hostile: Path, tiny_hessian: HessianReader, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page shows the attack as text; it holds no tag, link or image of it, nor do the CSV files run."""
    shutil.copy(tiny_run.with_name("tiny.hessian.h5"), hostile.with_name(hostile.stem + ".hessian.h5"))
    run_id = h5py.File(tiny_run).attrs["run_id"]
    with h5py.File(hostile, "r+") as file:
        file.attrs["run_id"] = run_id
        seal(file)
    assert cli.run(["report", str(hostile), "--out", str(tmp_path / "r"), "--quiet"]) == 0
    assert not RAW.search(capsys.readouterr().out)
    page = (tmp_path / "r" / "report.html").read_text()
    assert not RAW.search(page)
    report = Page(page)
    assert "b" not in report.tags
    assert "owned" in page
    assert len(re.findall("<script|</script", page)) == 2
    ours = r"#[\w-]+|(figures|tables)/\w+\.(svg|csv)|data:image/png;base64,\S*"
    assert all(re.fullmatch(ours, link) for link in report.links)
    for path in (tmp_path / "r" / "figures").glob("*.csv"):
        for row in csv.reader(io.StringIO(path.read_text())):
            assert not RAW.search("".join(row))
            for cell in row:
                assert not cell.startswith(("=", "@", "\t")) or cell == ""


@pytest.mark.slow
@given(st.text())
def test_text_stays_readable_and_harmless(text: str) -> None:
    """Plain text is not changed; what is changed is printable, one line, and says what was there."""
    shown = printable(text)
    assert not RAW.search(shown)
    assert "\n" not in shown
    shown.encode()
    assert printable(shown) == shown
    if text.isprintable():
        assert shown == text


@given(st.text() | st.sampled_from(["-1", "+2.5", "-inf", "=1", "@x", "-x", "\t=1", "+", "-1e5", "-0\r", "E,W"]))
def test_cells(text: str) -> None:
    """Text that a spreadsheet would run gets an apostrophe; numbers, and text that is none, stay."""
    cell = csv_cell(text)
    assert cell[:1] not in tuple("=@\t\r\n")
    assert cell[:1] not in tuple("+-") or float(cell) is not None
    assert csv_cell(cell) == cell


def test_tables_keep_their_numbers(tmp_path: Path) -> None:
    """What is no text is written as pandas writes it."""
    table = pd.DataFrame({"x": [-1.5, 2.0], "n": [-1, 2], "b": [True, False], "t": ["=1+1", "E,W"], "-m": ["-1", "-a"]})
    write_csv(table, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == ("x,n,b,t,'-m\n-1.5,-1,True,'=1+1,-1\n2.0,2,False,\"E,W\",'-a\n")


@pytest.mark.slow
def test_bars_show_no_raw_names(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Progress and tables of an analysis."""
    assert cli.run(["hessian", str(hostile), "--steps", "0", "--blocks", "E"]) == 0
    captured = capsys.readouterr()
    assert not RAW.search(captured.out)
    # A bar returns to the start of its line.
    assert not RAW.search(captured.err.replace("\r", ""))
    assert "\x1b[31m" not in captured.err


def strict(text: str) -> object:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.long
def test_json_of_every_command(
    tmp_path: Path, tiny_run: Path, capsys: pytest.CaptureFixture[str], expect_json: Callable[[list[str], int], object]
) -> None:
    """One document on stdout and nothing else, also where metrics are not finite."""
    run, point = str(tmp_path / "run.h5"), str(tmp_path / "point.h5")
    small = ["--p", "7", "--embed-dim", "4", "--hidden", "8", "--batch-size", "16", "--steps", "6", "--quiet"]
    every = ["--checkpoint-every", "1", "--metrics-every", "1"]
    diverged = ["train", "--out", str(tmp_path / "nan.h5"), *small, *every, "--lr", "1e30", "--json"]
    document = expect_json(diverged, None)
    nan = json.dumps(document)
    assert "NaN" not in nan
    expect_json(["train", "--out", run, *small, "--json"], 0)
    expect_json(["train", "--out", run, *small, "--seeds", "2", "--json"], 0)
    expect_json(["info", run, "--json"], 0)
    expect_json(["info", run, "--config"], 0)
    expect_json(["check", run, "--json"], 0)
    expect_json(["info", str(tmp_path / "nan.h5"), "--json"], 0)
    expect_json(["hessian", run, "--steps", "0,6", "--quiet", "--json", "--verify", "--blocks", "E,W"], 0)
    argv = ["critical", run, "--step", "6", "--search-hvps", "5", "--quiet", "--json", "--out", point]
    expect_json(argv, 3)
    expect_json(["info", point, "--json"], 0)
    config = tmp_path / "sweep.json"
    train = {"p": 7, "embed_dim": 4, "hidden": 8, "batch_size": 16, "steps": 2}
    config.write_text(json.dumps({"train": train, "grid": {"lr": [0.01, 1e30]}}))
    argv = ["sweep", "--config", str(config), "--out", str(tmp_path / "out"), "--jobs", "1", "--quiet", "--json"]
    expect_json(argv, None)


@pytest.fixture
def expect_json(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str], int | None], object]:
    """Run a command, whose stdout must be one document of JSON as its standard has it."""

    def check(argv: list[str], code: int | None) -> object:
        status = cli.run(argv)
        captured = capsys.readouterr()
        assert status == code or code is None and status in (0, 1, 3), captured.err
        return strict(captured.out)

    return check


INTERRUPTED_IMPORT = """
import builtins, os, signal, sys
import_ = builtins.__import__

def fail_as_c_code_does(name, *args, **kwargs):
    if name == NAME:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("numpy._core.multiarray failed to import")
    return import_(name, *args, **kwargs)

builtins.__import__ = fail_as_c_code_does
from landscape.__main__ import main
sys.argv[1:] = TRAIN
main()
"""


@pytest.mark.parametrize("name", ["cyclopts", "torch._C"])
def test_ctrl_c_inside_an_import(name: str, tmp_path: Path) -> None:
    """It ends the program as the shell expects, though the library turned it into an error of its own."""
    train = ["train", "--out", str(tmp_path / "run.h5"), "--steps", "2", "--p", "7"]
    script = f"NAME, TRAIN = {name!r}, {train}{INTERRUPTED_IMPORT}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


@pytest.mark.long
def test_ctrl_c_at_any_time(tmp_path: Path, tiny_run: Path) -> None:
    """130 or the end, no traceback; what was begun can be resumed."""
    run = tmp_path / "run.h5"
    train = ["train", "--out", str(run), "--steps", "2000", "--p", "7", "--resume", "--quiet"]
    commands = (["info", str(tiny_run)], train, ["report", str(tiny_run), "--out", str(tmp_path / "r"), "--overwrite"])
    for argv in commands:
        for tenths in (0.5, 1, 2, 4, 8, 16):
            line = ["timeout", "--preserve-status", "-s", "INT", str(tenths / 10), sys.executable, "-m", "landscape"]
            done = subprocess.run([*line, *argv], capture_output=True, env=os.environ)
            # Until Python has started and called main, nobody can speak for it.
            if b"Traceback" not in done.stderr or re.search(rb"landscape/.*, in (?!<module>)", done.stderr):
                assert b"Traceback" not in done.stderr, done.stderr.decode()
                assert done.returncode in (0, 130, -2), done.stderr.decode()
    assert cli.run(train) == 0
