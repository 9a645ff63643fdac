"""Faults of one rank in the midst of `landscape hessian`: nothing is lost, and the same command resumes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import foreign
from helpers.hessians import HessianReader
from helpers.marking import cases
from helpers.ranks import command, started

import landscape
from landscape.cli import main as cli

FAULTY = (
    foreign.TINY
    + """
import os
import signal
import threading
from pathlib import Path
from helpers.hessians import HessianReader


class Faulty(torch.nn.Sequential):
    '''Where a rank has to, it fails once a step is stored.'''

    def forward(self, x):
        fault = os.environ.get("FAULT", "")
        if fault and Path("run.hessian.h5").exists() and len(HessianReader("run.hessian.h5").steps) > 0:
            Path("struck").touch()
            if fault == "memory":
                torch.empty(1 << 48)
            if fault == "wait":
                threading.Event().wait()
            os.kill(os.getpid(), getattr(signal, fault))
        return super().forward(x)


def faulty():
    seen = x + int(os.environ.get("OTHER", "0")) * int(os.environ["RANK"])
    return ModuleProblem(Faulty(*model()).eval(), seen, y, blocks={"first": ["0.*"]})
"""
)
COMMAND = ["hessian", "run.h5", "--problem", "mine.py:faulty", "--steps", "all", "--quiet"]
LOST = "has lost another rank, which died or did not answer: "
FAULTS = {("SIGKILL", 1): LOST, ("SIGSTOP", 1): LOST, ("memory", 1): "can't allocate memory", ("wait", 0): LOST}


@pytest.fixture
def faulty(users_run: Path) -> Path:
    """The folder of a run and the problem that it is measured by."""
    users_run.with_name("mine.py").write_text(FAULTY)
    return users_run.parent


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "at"), cases(FAULTS, long=[("SIGSTOP", 1), ("wait", 0)]))
def test_a_fault_loses_nothing(fault: str, at: int, faulty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank ends with one error; the stored step stays bit for bit, and the file is finished."""
    is_stuck = fault in ("wait", "SIGSTOP")
    argv = [*COMMAND, "--patience", "10"] if is_stuck else COMMAND
    with started(faulty, 2, command, faulty, argv, env={at: {"FAULT": fault}}) as crew:
        crew.processes[1 - at].join()
        assert crew.processes[1 - at].exitcode == 1
        if is_stuck:
            assert crew.processes[at].is_alive()
            crew.processes[at].kill()
        crew.processes[at].join()
    assert (faulty / "struck").exists()
    said = crew.said()
    assert FAULTS[fault, at] in said
    assert (said.count("error: "), said.count("hint: "), said.count("Traceback")) == (1, 1, 0), said
    stored = HessianReader(faulty / "run.hessian.h5")
    assert (stored.steps, stored.attrs["status"]) == ([0], "running")
    before = {name: value.tobytes() for name, value in stored.row(0).items()}
    with started(faulty, 2, command, faulty, COMMAND) as crew:
        crew.join()
    assert (crew.codes, crew.said()) == ([0, 0], "")
    reader = HessianReader(faulty / "run.hessian.h5")
    assert (reader.steps, reader.attrs["status"]) == ([0, 5, 9], "complete")
    assert {name: value.tobytes() for name, value in reader.row(0).items()} == before
    monkeypatch.setenv("RANK", "0")
    assert cli.run([*COMMAND, "--out", "one.h5"]) == 0
    expected = HessianReader(faulty / "one.h5").row(9)["eigenvalues"]
    np.testing.assert_allclose(reader.row(9)["eigenvalues"], expected, rtol=0, atol=1e-12 * np.nanmax(np.abs(expected)))


def unlike(folder: Path, what: str) -> None:
    """The command with something about rank 1 that is not as with rank 0."""
    if os.environ["RANK"] == "1":
        if what == "torch":
            other = folder / "torch-0.0.0.dist-info"
            other.mkdir()
            (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.0.0\n")
            sys.path.insert(0, str(folder))
        elif what == "landscape":
            landscape.__version__ = "0.0.0"
        elif what == "a source":
            (folder / "other").mkdir()
            (folder / "other/mine.py").write_text(FAULTY + "# changed\n")
            (folder / "other/run.h5").symlink_to(folder / "run.h5")
            folder = folder / "other"
        elif what == "settings":
            command(folder, [*COMMAND, "--k", "2"])
    command(folder, COMMAND)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["torch", "landscape", "a source", "settings", "data"])
def test_unlike_ranks_are_refused(what: str, faulty: Path) -> None:
    """Before anything is measured, with one error that names the rank; no file is made."""
    with started(faulty, 2, unlike, faulty, what, env={1: {"OTHER": "1" if what == "data" else "0"}}) as crew:
        crew.join()
    assert crew.codes == [1, 1]
    said = crew.said().splitlines()
    assert said[0].startswith(f"error: rank 1 has {what}"), said
    assert [line.partition(": ")[0] for line in said] == ["error", "hint"]
    assert not (faulty / "run.hessian.h5").exists()
