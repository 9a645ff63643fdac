"""What `--status` says of files that were removed, or that are of another sweep."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from helpers.commands import Refusal
from helpers.sweeps import SHORT, arguments

from landscape.cli import main as cli
from landscape.jobs.plan import DEFINITION, SweepConfig, sweep_runs
from landscape.jobs.status import FileStatus, status

SWEEP: dict[str, Any] = {
    "train": SHORT,
    "seeds": [0, 1],
    "hessian": [{"steps": "20", "blocks": ["E"], "device": "cpu"}],
}


def listed(folder: Path, sweep: dict[str, Any]) -> list[FileStatus]:
    return status(SweepConfig(**json.loads(json.dumps(sweep))), folder).files


def states(folder: Path, sweep: dict[str, Any]) -> list[str]:
    return [file.state for file in listed(folder, sweep)]


def test_a_changed_sweep(tmp_path: Path) -> None:
    """Files of other options are what the sweep refuses; what it would add to, or make again, is waiting."""
    assert states(tmp_path, SWEEP) == ["waiting"] * 4
    assert cli.run([*arguments(tmp_path, SWEEP)[:-2], "--executor", "debug"]) == 0
    assert states(tmp_path, SWEEP) == ["done"] * 4
    run, other = sweep_runs(SweepConfig(**SWEEP), tmp_path)
    changed = {**SWEEP, "train": {**SHORT, "lr": 0.5}}
    assert [(file.state, file.reason) for file in listed(tmp_path, changed)] == [
        ("failed", f"{run.path}: lr is 0.5, but the run was started with 0.01"),
        ("waiting", ""),
        ("failed", f"{other.path}: lr is 0.5, but the run was started with 0.01"),
        ("waiting", ""),
    ]
    assert all("--overwrite" in file.hint for file in listed(tmp_path, changed)[::2])
    for more, state in (({"steps": "0,20"}, "waiting"), ({"k": 3}, "failed")):
        assert states(tmp_path, {**SWEEP, "hessian": [{**SWEEP["hessian"][0], **more}]}) == ["done", state] * 2
    other.hessian[""].unlink()
    assert states(tmp_path, SWEEP) == ["done"] * 3 + ["waiting"]
    other.path.unlink()
    assert states(tmp_path, SWEEP) == ["done"] * 2 + ["waiting"] * 2


def test_pipes_in_the_folder_are_not_read(tmp_path: Path, assert_refused: Refusal) -> None:
    """Nobody may ever write to them."""
    run, *_ = sweep_runs(SweepConfig(**SWEEP), tmp_path)
    jobs = run.path.parent / ".jobs"
    jobs.mkdir(parents=True)
    os.mkfifo(run.path.with_name(DEFINITION))
    os.mkfifo(jobs / "7.json")
    (jobs / "8.json").write_text("[")
    assert states(tmp_path, SWEEP) == ["waiting"] * 4
    assert_refused(arguments(tmp_path, SWEEP), 1, "sweep.json is not a regular file", "move it away")
