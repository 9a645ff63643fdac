"""Sweeps through a real Slurm of one node."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.cluster import cluster, missing, said
from helpers.faults import everything, served_hessian
from helpers.sweeps import SHORT, arguments, descendants, wait_for

from landscape.cli import main as cli
from landscape.jobs.plan import SweepConfig, sweep_runs
from landscape.jobs.slurm import submissions

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

SWEEP: dict[str, Any] = {
    "name": "shapes",
    "train": {**SHORT, "steps": 2000, "checkpoint_every": 100, "dtype": "float64"},
    "cases": {f"h{hidden}": {"hidden": hidden} for hidden in range(8, 20)},
    "hessian": [{"steps": "0,2000", "blocks": ["E", "E,W"], "device": "cpu"}],
}
"""12 runs of a shape each: who trains beside whom changes the last bits, and here nobody does."""


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    with cluster() as env:
        for name in ("PATH", "SLURM_CONF"):
            monkeypatch.setenv(name, env[name])
        yield env


@pytest.mark.long
def test_the_files_are_those_of_the_local_executor(
    slurm: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """12 runs with 12 analyses, 4 a job: a job, a worker and a job that waits are ended, and all is resumed."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    argv = [*arguments(ours, SWEEP)[:-2], "--executor", "slurm", "--pack", "4", "--slurm", "cpus=1", "time=10"]

    def command(*more: str) -> str:
        assert cli.run([*argv, *more]) == 0
        return capsys.readouterr().out

    def listed() -> list[dict[str, str]]:
        return json.loads(command("--status", "--json"))["files"]

    def ended() -> bool:
        return not said(slurm, "squeue", "--noheader")

    assert re.fullmatch(r"submitted: Slurm array \d+, jobs: 3, files: 24\n", command())
    assert command() == "nothing to submit: everything is done or in Slurm's queue\n"

    def running() -> dict[str, str]:
        return {file["where"]: file["path"] for file in listed() if file["state"] == "running"}

    wait_for(lambda: len(running()) == 2, 0.3)
    (one, first), (two, second) = sorted(running().items())
    killed, worker = ([pid for pid in tasks() if job_of(pid) == where.split()[-1]][0] for where in (one, two))
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: bool(workers(worker)))
    for process in workers(worker):
        os.kill(process, signal.SIGKILL)
    said(slurm, "scancel", two.split()[-1].partition("_")[0] + "_2")
    wait_for(ended, 0.3)
    files = {file["path"]: file for file in listed()}
    assert files[first]["state"] == files[second]["state"] == "failed"
    assert files[first]["reason"] == "the job ended before it was done"
    assert files[second]["reason"] == "its process ended with exit code -9"
    assert Path(files[second]["log"]).exists()
    assert f"failed: {second}: its process ended with exit code -9" in command("--status")
    assert sum(file["state"] == "done" for file in files.values()) < 24

    assert command().startswith("submitted: ")
    wait_for(ended, 0.3)
    assert [file for file in listed() if file["state"] != "done"] == []
    assert command() == "nothing to submit: everything is done or in Slurm's queue\n"

    assert cli.run(arguments(theirs, SWEEP)) == 0
    pairs = zip(*(sweep_runs(SweepConfig(**SWEEP), folder) for folder in (ours, theirs)), strict=True)
    for mine, local in pairs:
        assert everything(mine.path) == everything(local.path)
        assert served_hessian(mine.hessian[""]) == served_hessian(local.hessian[""])
    left = {path.name for path in (ours / "shapes").iterdir()} - {path.name for path in (theirs / "shapes").iterdir()}
    assert left == {".jobs"}


@pytest.mark.long
def test_what_waits_is_cancelled(slurm: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More jobs than an array takes, in a folder with a difficult name, beside other jobs of the user, which stay."""
    folder = tmp_path / 'it\'s "my" é,sweep'
    folder.mkdir()
    others = ["a|b", "x\n0|PENDING", "landscape-shapes"]
    numbers = [said(slurm, "sbatch", "--parsable", "--hold", "--wrap=true", f"--job-name={name}") for name in others]
    held = ["--slurm", f"dependency=afterany:{numbers[0].strip()}"]
    argv = [*arguments(folder, SWEEP)[:-2], "--executor", "slurm", *held]
    assert cli.run(argv) == 0
    assert re.fullmatch(
        r"submitted: Slurm array \d+, jobs: 11, files: 22\nsubmitted: Slurm array \d+, jobs: 1, files: 2\n",
        capsys.readouterr().out,
    )
    assert len(submissions(folder / "shapes/.jobs")) == 2
    assert cli.run([*argv, "--overwrite"]) == 1
    assert "Slurm has 24 files of this sweep in its queue\nhint: end it with --cancel first" in capsys.readouterr().err
    assert cli.run([*argv, "--status"]) == 0
    assert capsys.readouterr().out.count(", pending") == 24
    assert cli.run([*argv, "--cancel"]) == 0
    assert capsys.readouterr().out == "cancelled: 12 jobs\n"
    wait_for(lambda: len(said(slurm, "squeue", "--noheader", "--array", "--format=%i").split()) == len(others))
    assert cli.run([*argv, "--cancel"]) == 0
    assert capsys.readouterr().out == "Slurm has no job of this sweep in its queue\n"


def tasks() -> list[int]:
    """The processes that submitit starts for jobs, not the srun that started them."""
    numbers = map(int, filter(str.isdigit, os.listdir("/proc")))
    return [pid for pid in numbers if "submitit.core._submit" in line_of(pid) and "srun" not in line_of(pid)]


def line_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def job_of(pid: int) -> str:
    """The job that a process belongs to, by its environment; "" for none."""
    try:
        env = dict(e.split("=", 1) for e in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in e)
    except OSError:
        return ""
    return f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}" if "SLURM_PROCID" in env else ""


def workers(pid: int) -> list[int]:
    """The workers of a job, without the process that cleans up after them."""
    return [p for p in descendants(pid) if "spawn_main" in line_of(p)]
