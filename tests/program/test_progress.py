"""Progress: a terminal sees a bar, a file gets a line now and then."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.hessians import analyse

from landscape import progress
from landscape.config import HessianConfig
from landscape.measure import forecast
from landscape.measure.forecast import Blocks
from landscape.progress import Bar
from landscape.workers import Workers, tell


def test_a_terminal_sees_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is drawn as a unit begins and as it ends."""
    terminal, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    with os.fdopen(slave, "w") as stderr, monkeypatch.context() as context:
        context.setattr(sys, "stderr", stderr)
        with Bar(2, "block") as bar:
            bar.set_postfix_str("all")
            bar.update(2)
        drawn = b""
        while b"2/2" not in drawn:  # a terminal may hand over part of what was written
            drawn += os.read(terminal, 65536)
    os.close(terminal)
    assert b"0/2" in drawn
    assert b"all" in drawn
    assert b"2/2" in drawn


def test_elsewhere_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole lines without carriage returns; short work and quiet work say nothing."""
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    with Bar(2, "block") as bar:
        bar.update(2)
    assert said.getvalue() == ""
    monkeypatch.setattr(progress, "ELSEWHERE", 0.0)
    with Bar(2, "block", quiet=True) as bar:
        bar.update(2)
    assert said.getvalue() == ""
    with Bar(3, "block") as bar:
        bar.set_postfix_str("all")
        bar.update(3)
    lines = said.getvalue().splitlines()
    assert re.match(r" *0%\|.*\| 0/3 ", lines[0])
    assert re.match(r" *100%\|.*\| 3/3 ", lines[-1])
    assert "\r" not in said.getvalue()


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
    positions = {}
    for jobs in (0, 1):
        out = tmp_path / f"{jobs}.h5"
        for steps in ("0,60", "0,20,60"):
            shown.clear()
            analyse(tiny_run, HessianConfig(blocks=("E", "W"), steps=steps, k=1, device="cpu"), out, jobs=jobs)
            assert bars[-1].n == bars[-1].total
            positions[jobs, steps] = list(shown)
    assert (
        positions[1, "0,60"]
        == positions[0, "0,60"]
        == [(b, d, s) for s in (0, 60) for b in "EW" for d in (False, True)]
    )
    assert sorted(positions[1, "0,20,60"]) == sorted(positions[0, "0,20,60"])
    assert {step for *_, step in positions[1, "0,20,60"]} == {0, 20, 60}


def test_the_clock_does_not_run_past_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six times 0.3 s is more than 1.8 s in float64; tqdm warns of a bar beyond its end."""
    seen: list[float] = []
    monkeypatch.setattr(forecast, "_EVERY", 0.001)
    monkeypatch.setattr(Blocks, "refresh", lambda self, *_, **__: seen.append(self.n))
    stages = SimpleNamespace(stages=("E",))
    with Blocks(stages, 6, seconds={"E": 0.3}) as bar:  # type: ignore[arg-type]
        for done in [0, 1] * 6:
            bar.show("E", done)
        seen.clear()
        while len(seen) < 3:
            time.sleep(0.001)
    assert set(seen) == {bar.total}
