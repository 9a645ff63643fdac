"""An import that is stopped halfway leaves no file, and the same command then makes a whole one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import a_state, same

from landscape.cli import main as cli

STOPS = """
import sys, time
from landscape.cli.main import main
from landscape.training import importers

read = importers._read


def stop(checkpoint, *more):
    if checkpoint.step == 2:
        print("in the midst", file=sys.stderr, flush=True)
        time.sleep(3600)
    return read(checkpoint, *more)


importers._read = stop
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_import_whose_process_is_ended(number: signal.Signals, tmp_path: Path) -> None:
    """Halfway through its checkpoints: no run file; the same command then makes a whole one, and leaves no other."""
    for step in range(4):
        torch.save(a_state(step), tmp_path / f"a{step}.pt")
    argv = ["import", str(tmp_path / "a*.pt"), "--out", str(tmp_path / "run.h5"), "--quiet"]
    with subprocess.Popen([sys.executable, "-c", STOPS, *argv], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "in the midst\n"
        process.send_signal(number)
        process.stderr.read()
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert not (tmp_path / "run.h5").exists()
    assert cli.run(argv) == 0
    same(tmp_path / "run.h5", {step: a_state(step) for step in range(4)})
    assert {p.name for p in tmp_path.iterdir()} == {"run.h5", *(f"a{step}.pt" for step in range(4))}
