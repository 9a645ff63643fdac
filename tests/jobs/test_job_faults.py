"""Faults of jobs: disks without room, time-outs, and options, programs and folders that Slurm does not have."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import Refusal
from helpers.faults import everything
from helpers.sweeps import SHORT, arguments, descendants, files, in_training, wait_for

from landscape.cli import main as cli
from landscape.files.inspect import inspect
from landscape.jobs.plan import SweepConfig, SweepRun, sweep_runs
from landscape.jobs.run import Work
from landscape.jobs.slurm import Share, options
from landscape.training.loop import train

SWEEP: dict[str, Any] = {"train": SHORT, "hessian": [{"steps": "20", "blocks": ["E"], "device": "cpu"}]}


@pytest.fixture
def run(tmp_path: Path) -> SweepRun:
    return sweep_runs(SweepConfig(**SWEEP), tmp_path)[0]


def debug(folder: Path, *more: str) -> list[str]:
    """The sweep in this process."""
    return [*arguments(folder, SWEEP)[:-2], "--executor", "debug", *more]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_full_shared_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error that says so, without a traceback; with room, the same command ends as on a large disk."""
    disk, large = tmp_path / "disk", tmp_path / "large"
    disk.mkdir()
    large.mkdir()
    assert cli.run(debug(large)) == 0
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    try:
        argv = debug(disk)
        for pages in (56, 0):
            (disk / "full").unlink(missing_ok=True)
            room = os.statvfs(disk)
            (disk / "full").write_bytes(bytes(room.f_bsize * (room.f_bavail - pages)))
            capsys.readouterr()
            assert cli.run(argv) == 1
            said = capsys.readouterr().err
            assert "free" in said
            assert "Traceback" not in said
        (disk / "full").unlink()
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        assert cli.run(argv) == 0
        (mine,), (whole,) = (sweep_runs(SweepConfig(**SWEEP), folder) for folder in (disk, large))
        assert everything(mine.path) == everything(whole.path)
        assert files(disk / "sweep").keys() == files(large / "sweep").keys()
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.long
def test_a_time_out_resumes_itself(run: SweepRun, tmp_path: Path) -> None:
    """The signal before a time-out: submitit submits the rest again, and the file is that of an undisturbed run."""
    config = SweepConfig(**{**SWEEP, "train": {**SHORT, "steps": 3000, "checkpoint_every": 20}})
    (run,) = sweep_runs(config, tmp_path)
    run.path.parent.mkdir()
    submitit = pytest.importorskip("submitit")
    executor = submitit.LocalExecutor(tmp_path / "logs")
    executor.update_parameters(timeout_min=30)
    job = executor.submit(Share(Work({run.path: run.config}, [])))
    wait_for(lambda: in_training(run))
    (task,) = descendants(int(job.job_id))
    os.kill(task, signal.SIGUSR2)
    wait_for(lambda: job.done() or inspect(run.path).finished)
    job.wait()
    assert "Requeued job" in job.paths.stdout.read_text()
    train(run.config, tmp_path / "whole.h5", quiet=True)
    assert everything(run.path) == everything(tmp_path / "whole.h5")


@pytest.mark.parametrize(
    ("more", "error", "hint"),
    [
        (["--pack", "4"], "pack and slurm are options of Slurm", "add --executor slurm"),
        (["--executor", "debug", "--jobs", "2"], "jobs is 2, but executor debug has no workers", "leave out --jobs"),
        (["--status", "--cancel"], "status and cancel are two commands", "give one of them"),
        (
            ["--executor", "slurm", "--slurm", "tim=4"],
            "slurm 'tim=4' is no option of Slurm",
            "did you mean time",
        ),
        (["--executor", "slurm", "--slurm", "time"], "slurm 'time' is no option of Slurm", "write it like time=60"),
        (["--executor", "slurm", "--slurm", "time=2:00"], "slurm time=2:00 is no whole number", "in minutes"),
        (
            ["--executor", "slurm", "--slurm", "job_name=a"],
            "'job_name=a': job_name is set by landscape",
            "leave it out",
        ),
        (
            ["--executor", "slurm", "--slurm", "nodes=1-2"],
            "slurm nodes=1-2 is no whole number",
            "write it like nodes=1",
        ),
    ],
    ids=str,
)
def test_options_that_do_not_fit(
    more: list[str], error: str, hint: str, tmp_path: Path, assert_refused: Refusal
) -> None:
    """Named before anything is written."""
    pytest.importorskip("submitit")
    assert_refused([*arguments(tmp_path, SWEEP)[:-2], *more], 2, error, hint)


def test_without_submitit_or_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_refused: Refusal) -> None:
    """The error says how to get the one, or where to go for the other."""
    pytest.importorskip("submitit")
    argv = [*arguments(tmp_path, SWEEP)[:-2], "--executor", "slurm"]
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: None)
        assert_refused(argv, 1, "srun is not on the PATH", "submit from a machine of the cluster")

    monkeypatch.setitem(sys.modules, "submitit", None)
    assert_refused(argv, 1, "Slurm needs submitit, which is not installed", "pip install submitit")


@pytest.mark.parametrize("name", ["50%j", "back\\slash", "line\nbreak"])
def test_folders_that_slurm_cannot_name(name: str, tmp_path: Path, assert_refused: Refusal) -> None:
    """Its logs, and the jobs beside them, would be somewhere else."""
    pytest.importorskip("submitit")
    (tmp_path / name).mkdir()
    argv = [*arguments(tmp_path / name, SWEEP)[:-2], "--executor", "slurm"]
    assert_refused(argv, 1, "Slurm reads ", "choose another place")


def test_options_of_slurm() -> None:
    """GPUs and cores by their short names, numbers as numbers."""
    pytest.importorskip("submitit")
    chosen = options(["gpus=2", "cpus=3", "mem=8GB", "partition=gpu", "time=90"])
    assert (chosen["gpus_per_node"], chosen["cpus_per_task"]) == (2, 3)
    assert (chosen["mem"], chosen["partition"], chosen["time"]) == ("8GB", "gpu", 90)
    chosen = options(["setup=module load x", "setup=. y", "use_srun=false", "exclusive=true", "gpus=²"])
    assert chosen == {
        "setup": ["module load x", ". y"],
        "use_srun": False,
        "exclusive": True,
        "gpus_per_node": "²",
    }
