"""What `--status` says of files that were removed, or that are of another sweep."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import h5py
import pytest
from helpers.commands import Refusal
from helpers.sweeps import SHORT, arguments

from landscape.cli import main as cli
from landscape.files.writing import sole_writer
from landscape.jobs.journal import JOBS, LEASES
from landscape.jobs.leases import Holder
from landscape.jobs.plan import DEFINITION, SweepConfig, sweep_runs
from landscape.jobs.status import FileStatus, status

pytestmark = pytest.mark.usefixtures("without_workers")
SWEEP: dict[str, Any] = {
    "train": SHORT,
    "seeds": [0, 1],
    "hessian": [{"steps": "20", "blocks": ["E"], "device": "cpu"}],
}


def found(folder: Path, sweep: dict[str, Any]) -> list[FileStatus]:
    return status(SweepConfig(**json.loads(json.dumps(sweep))), folder).files


def states(folder: Path, sweep: dict[str, Any]) -> list[str]:
    return [file.state for file in found(folder, sweep)]


def test_a_changed_sweep(tmp_path: Path) -> None:
    """Files of other options are what the sweep refuses; what it would add to is waiting."""
    assert cli.run(arguments(tmp_path, SWEEP)) == 0
    assert states(tmp_path, SWEEP) == ["done"] * 4
    run, other = sweep_runs(SweepConfig(**SWEEP), tmp_path)
    changed = {**SWEEP, "train": {**SHORT, "lr": 0.5}}
    assert [(file.state, file.reason) for file in found(tmp_path, changed)] == [
        ("failed", f"{run.path}: lr is 0.5, but the run was started with 0.01"),
        ("waiting", ""),
        ("failed", f"{other.path}: lr is 0.5, but the run was started with 0.01"),
        ("waiting", ""),
    ]
    assert all("--overwrite" in file.hint for file in found(tmp_path, changed)[::2])
    for more, state in (({"steps": "0,20"}, "waiting"), ({"k": 3}, "failed")):
        assert states(tmp_path, {**SWEEP, "hessian": [{**SWEEP["hessian"][0], **more}]}) == ["done", state] * 2


def test_journals_of_another_sweep_or_of_removed_files(tmp_path: Path) -> None:
    """Journals stay after a failure; they are believed only of the same sweep, and of files that are still there."""
    first, second = sweep_runs(SweepConfig(**SWEEP), tmp_path)
    first.path.parent.mkdir()
    with sole_writer(second.path):
        assert cli.run(arguments(tmp_path, SWEEP)) == 1
    assert states(tmp_path, SWEEP) == ["done", "done", "failed", "waiting"]
    assert states(tmp_path, {**SWEEP, "train": {**SHORT, "lr": 0.5}})[:2] == ["failed", "waiting"]

    first.path.unlink()
    assert states(tmp_path, SWEEP) == ["waiting", "failed", "failed", "waiting"]
    first.hessian[""].unlink()
    assert states(tmp_path, SWEEP) == ["waiting", "waiting", "failed", "waiting"]

    # As a later attempt leaves it that is killed while it trains the run again.
    with sole_writer(second.path):
        assert cli.run(arguments(tmp_path, SWEEP)) == 1
    with h5py.File(first.path, "r+") as file:
        file.attrs["status"] = "running"
    holder = Holder(first.path.parent / JOBS / LEASES)
    object.__setattr__(holder.process, "started", "0")
    with holder:
        holder.take(first.path.name)
        trained, *_ = found(tmp_path, SWEEP)
    assert (trained.state, trained.reason) == ("failed", "its process ended")


@pytest.mark.parametrize(
    "lines",
    [
        ['{"a": 1}', "[1]"],
        ["5"],
        ["{}", '{"file": "base-s0.h5", "state": "failed", "reason": "", "hint": ""}'],
        ['{"attempt": "x", "where": "", "log": ""}'],
        ['{"attempt": 9, "where": "", "log": ""}', '{"file": "base-s0.h5", "state": "lost", "reason": "", "hint": ""}'],
    ],
)
def test_journals_that_no_sweep_wrote(lines: list[str], tmp_path: Path) -> None:
    """They say nothing, and the sweep goes on."""
    run, *_ = sweep_runs(SweepConfig(**SWEEP), tmp_path)
    jobs = run.path.parent / JOBS
    jobs.mkdir(parents=True)
    (jobs / "other.jsonl").write_text("\n".join(lines))
    assert states(tmp_path, SWEEP) == ["waiting"] * 4
    assert cli.run(arguments(tmp_path, {**SWEEP, "seeds": [0]})) == 0
    assert states(tmp_path, {**SWEEP, "seeds": [0]}) == ["done"] * 2


def test_pipes_in_the_folder_are_not_read(tmp_path: Path, assert_refused: Refusal) -> None:
    """Nobody may ever write to them."""
    run, *_ = sweep_runs(SweepConfig(**SWEEP), tmp_path)
    jobs = run.path.parent / JOBS
    jobs.mkdir(parents=True)
    os.mkfifo(run.path.with_name(DEFINITION))
    os.mkfifo(jobs / "other.jsonl")
    os.mkfifo(jobs / "other.submitted")
    assert states(tmp_path, SWEEP) == ["waiting"] * 4
    assert_refused(arguments(tmp_path, SWEEP), 1, "sweep.json is not a regular file", "move it away")
    run.path.with_name(DEFINITION).unlink()
    (jobs / LEASES).mkdir()
    os.mkfifo(jobs / LEASES / run.path.name)
    for more in ([], ["--status"]):
        argv = arguments(tmp_path, SWEEP, *more)
        assert_refused(argv, 1, f"{run.path.name} is no lease", "another program may have made it: move it away")
