"""Sweeps that are killed, or stopped by Ctrl-C: the same command finishes them."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import threading
from pathlib import Path

import pytest
from helpers.faults import served_hessian
from helpers.run_files import same_run
from helpers.sweeps import LONG, arguments, descendants, files, in_training, start, wait_for

from landscape.cli import main as cli
from landscape.errors import FileError
from landscape.files.inspect import inspect
from landscape.jobs.plan import SweepConfig, sweep_runs
from landscape.jobs.work import Training, claimant


def same_sweep(folder: Path, whole: Path) -> None:
    """Finished files that agree: runs to rounding, which depends on who trained beside whom; nothing else is left."""
    config = SweepConfig(**LONG)
    assert files(folder).keys() == files(whole).keys()
    for mine, theirs in zip(sweep_runs(config, folder), sweep_runs(config, whole), strict=True):
        same_run(mine.path, theirs.path, 1e-6)
        for name, path in mine.hessian.items():
            assert inspect(path).finished
            assert served_hessian(path).keys() == served_hessian(theirs.hessian[name]).keys()


def never_sees_ctrl_c(pid: int) -> bool:
    """Whether SIGINT is blocked or ignored in a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [int(mask, 16) for mask in re.findall(r"^Sig(?:Blk|Ign):\s+(\w+)$", status, re.MULTILINE)]
    return any(mask & 1 << signal.SIGINT - 1 for mask in masks)


@pytest.mark.long
@pytest.mark.usefixtures("without_workers")
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, "running"), (signal.SIGINT, "interrupted"), (signal.SIGINT, "complete")],
    ids=["kill", "Ctrl-C in training", "Ctrl-C in analysis"],
)
def test_the_same_command_finishes_it(number: signal.Signals, status: str, whole: Path, tmp_path: Path) -> None:
    """Nothing of a killed sweep keeps running; repeated, it ends as an undisturbed one. Ctrl-C: 130, no traceback."""
    runs = sweep_runs(SweepConfig(**LONG), tmp_path)
    hessian = [path for run in runs for path in run.hessian.values()]
    process = start(tmp_path, LONG)
    wait_for(lambda: any(p.exists() for p in hessian) if status == "complete" else in_training(runs[0]))
    workers = descendants(process.pid)
    assert len(workers) >= 2
    assert all(map(never_sees_ctrl_c, workers))
    # A terminal sends Ctrl-C to all processes of the group.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    out, err = process.communicate()
    assert process.returncode == (130 if number == signal.SIGINT else -9)
    assert out == ""
    assert err == ("interrupted: the same command resumes\n" if number == signal.SIGINT else "")
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    begun = {run.path: inspect(run.path) for run in runs if run.path.exists()}
    assert begun[runs[0].path].status == status
    assert not all(path.exists() for path in hessian)
    assert cli.run(arguments(tmp_path, LONG)) == 0
    same_sweep(tmp_path, whole)
    for path, state in begun.items():
        # A file without a checkpoint has nothing to go on from.
        assert not state.steps or inspect(path).attributes["run_id"] == state.attributes["run_id"], (
            "resumed, not started again"
        )


def test_ctrl_c_while_the_workers_start(tmp_path: Path) -> None:
    """Also then no traceback, no process and no lock is left."""
    process = start(tmp_path, LONG)
    wait_for(lambda: len(descendants(process.pid)) > 1)
    workers = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate() == ("", "interrupted: the same command resumes\n")
    assert process.returncode == 130
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert not list(tmp_path.rglob("*.h5*"))


@pytest.mark.long
def test_a_killed_worker_costs_nothing_else(tmp_path: Path) -> None:
    """The runs of a worker that dies are resumed one by one; one that dies alone is reported, no other."""
    runs = sweep_runs(SweepConfig(**LONG), tmp_path)
    process = start(tmp_path, LONG)
    wait_for(lambda: in_training(runs[0]))
    first = claimant(runs[0].path)
    os.kill(int(first.removeprefix("process ")), signal.SIGKILL)
    wait_for(lambda: claimant(runs[0].path) not in ("", first))
    os.kill(int(claimant(runs[0].path).removeprefix("process ")), signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 1
    assert out.count("1500 steps") == len(runs) - 1
    error, hint = err.splitlines()
    assert error == f"error: {runs[0].path}: its process ended with exit code -9"
    assert hint.startswith("hint: if memory ran out, use fewer --jobs")


def test_a_worker_that_is_told_to_stop_has_not_finished(tmp_path: Path) -> None:
    """A run that SIGTERM ended early is a failure that says where."""
    run = sweep_runs(SweepConfig(**LONG), tmp_path)[0]
    run.path.parent.mkdir()

    def stop() -> None:
        wait_for(lambda: in_training(run))
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    with pytest.raises(FileError, match=r"interrupted at step \d+"):
        Training({run.path: dataclasses.replace(run.config, steps=100_000)}).execute()
