"""Progress: a terminal sees it move within a long unit, a file gets a line now and then, and nothing is left over."""

from __future__ import annotations

import io
import math
import os
import pty
import re
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
from helpers.hessians import analyse

from landscape import progress
from landscape.config import HessianConfig
from landscape.measure.measure import Blocks
from landscape.progress import Bar, clock, duration
from landscape.workers import Workers, tell


def test_a_terminal_sees_a_long_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is drawn again while no unit ends, and its thread ends with it."""
    monkeypatch.setattr(progress, "TERMINAL", 0.01)
    terminal, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    with os.fdopen(slave, "w") as stderr, monkeypatch.context() as context:
        context.setattr(sys, "stderr", stderr)
        with Bar(2, "block") as bar:
            bar.set_postfix_str("all")
            drawn = b""
            while drawn.count(b"0/2") < 5:
                drawn += os.read(terminal, 4096)
            bar.update(2)
        drawn += os.read(terminal, 65536)
    os.close(terminal)
    assert b"all" in drawn
    assert b"2/2" in drawn
    assert [t for t in threading.enumerate() if t.name.endswith("(_live)")] == []


def test_the_rest_runs_down_within_a_long_unit() -> None:
    """By the estimate before the first unit, then by the units done; it is unknown once a unit takes longer."""

    def rest() -> float:
        found = bar.format_dict
        return (found["total"] - found["n"]) / found["rate"] if found["rate"] else math.inf

    with Bar(10, "block", seconds=1e6) as bar:
        assert rest() == pytest.approx(1e6, rel=1e-2)
        bar.start_t -= 2e5
        assert rest() == pytest.approx(8e5, rel=1e-2)
        bar.update(5)
        assert rest() == pytest.approx(2e5, rel=1e-2)
        bar.start_t -= 5e4
        assert rest() == pytest.approx(1.5e5, rel=1e-2)
        bar.start_t -= 2e5
        assert rest() == math.inf
        assert "<?" in str(bar)
        bar.update(5)
        assert "<00:00" in str(bar)


@pytest.mark.parametrize("is_long", [False, True])
def test_a_clock_for_work_of_unknown_length(is_long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal sees it tick, and nothing of it stays; short work leaves no trace."""
    monkeypatch.setattr(progress, "TERMINAL", 0.01 if is_long else 1e6)
    terminal, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    with os.fdopen(slave, "w") as stderr, monkeypatch.context() as context:
        context.setattr(sys, "stderr", stderr)
        drawn = b""
        with clock("reading"):
            while is_long and drawn.count(b"reading: 00:0") < 3:
                drawn += os.read(terminal, 4096)
        stderr.write("end")
        stderr.flush()
        while b"end" not in drawn:
            drawn += os.read(terminal, 4096)
    os.close(terminal)
    assert drawn.replace(b" ", b"").endswith(b"\rend") if is_long else drawn == b"end"


def test_elsewhere_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole lines without carriage returns; short work says nothing."""
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    with Bar(2, "block") as bar:
        bar.update(2)
    assert said.getvalue() == ""
    monkeypatch.setattr(progress, "ELSEWHERE", 0.01)
    with Bar(3, "block") as bar:
        while said.getvalue().count("\n") < 3:
            time.sleep(0.005)
        bar.update(3)
    lines = said.getvalue().splitlines()
    assert re.match(r" *0%\|.*\| 0/3 ", lines[0])
    assert re.match(r" *100%\|.*\| 3/3 ", lines[-1])
    assert "\r" not in said.getvalue()


def test_quiet_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread either."""
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    before = threading.active_count()
    with Bar(2, "block", quiet=True) as bar:
        assert threading.active_count() == before
        bar.update()
    assert said.getvalue() == ""


def test_durations() -> None:
    """Rough numbers, in the unit that suits them."""
    assert [duration(x) for x in (0.2, 7.4, 38, 89, 100, 3000, 5400, 9000)] == [
        "1 s", "7 s", "40 s", "90 s", "2 min", "50 min", "1.5 h", "2.5 h",
    ]  # fmt: skip


def say_and_wait(path: Path) -> str:
    tell("begun")
    while not path.exists():
        time.sleep(0.01)
    tell("ended")
    return "result"


@pytest.mark.slow
def test_a_worker_is_heard_while_it_works(tmp_path: Path) -> None:
    """The call ends once it was heard, and its result follows what it said; in this process nobody hears it."""
    heard: list[str] = []

    def hear(what: str) -> None:
        heard.append(what)
        (tmp_path / "x").touch()

    with Workers(1) as workers:
        assert list(workers.results(say_and_wait, [(tmp_path / "x",)] * 2, hear)) == ["result"] * 2
    assert heard == ["begun", "ended"] * 2
    assert say_and_wait(tmp_path / "x") == "result"


@pytest.mark.slow
@pytest.mark.long
def test_the_bar_moves_by_block_with_processes_too(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block of each step is shown as it begins and as it ends, also those that are only followed."""
    shown: list[tuple[str, bool, int | None]] = []
    bars = []
    real = Blocks.show

    def show(self: Blocks, block: str, done: bool, step: int | None = None) -> None:
        shown.append((block, done, step))
        bars.append(self)
        real(self, block, done, step)

    monkeypatch.setattr(Blocks, "show", show)
    found = {}
    for jobs in (0, 1):
        out = tmp_path / f"{jobs}.h5"
        for steps in ("0,60", "0,20,60"):
            shown.clear()
            analyse(tiny_run, HessianConfig(blocks=("E", "W"), steps=steps, k=1, device="cpu"), out, jobs=jobs)
            assert bars[-1].n == bars[-1].total
            found[jobs, steps] = list(shown)
    assert found[1, "0,60"] == found[0, "0,60"] == [(b, d, s) for s in (0, 60) for b in "EW" for d in (False, True)]
    assert sorted(found[1, "0,20,60"]) == sorted(found[0, "0,20,60"])
    assert {step for *_, step in found[1, "0,20,60"]} == {0, 20, 60}


def test_a_bar_that_ctrl_c_stopped_while_it_was_made_closes() -> None:
    # What is left of it is closed by tqdm once nothing refers to it.
    Bar.__new__(Bar).close()
