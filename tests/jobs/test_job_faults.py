"""Faults of jobs: disks without room or locks, dead and live hosts, time-outs, and the end before the end."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import Refusal
from helpers.faults import everything
from helpers.sweeps import SHORT, arguments, descendants, files, in_training, start, wait_for

from landscape.cli import main as cli
from landscape.errors import FileError
from landscape.files.inspect import inspect
from landscape.jobs import leases as leasing
from landscape.jobs import run as sweeping
from landscape.jobs import slurm
from landscape.jobs.jobs import Training
from landscape.jobs.leases import Holder
from landscape.jobs.plan import DEFINITION, SweepConfig, SweepRun, sweep_runs
from landscape.jobs.slurm import Allocation, Submission, options
from landscape.training.loop import train

SWEEP: dict[str, Any] = {"train": SHORT, "hessian": [{"steps": "20", "blocks": ["E"], "device": "cpu"}]}


@pytest.fixture
def run(tmp_path: Path) -> SweepRun:
    return sweep_runs(SweepConfig(**SWEEP), tmp_path)[0]


@pytest.fixture
def node(run: SweepRun, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holder]:
    """Another machine that shares the sweep's folder; a watch takes hundredths of a second."""
    monkeypatch.setattr(leasing, "BEAT", 0.02)
    monkeypatch.setattr(leasing, "PATIENCE", 0.6)
    holder = Holder(run.path.parent / ".jobs/leases")
    for name, value in (("kernel", "another"), ("host", "node7")):
        object.__setattr__(holder.process, name, value)
    with holder:
        yield holder


def debug(folder: Path, *more: str) -> list[str]:
    """The sweep in this process."""
    return [*arguments(folder, SWEEP)[:-2], "--executor", "debug", *more]


def test_a_live_process_elsewhere_keeps_its_file(
    node: Holder, run: SweepRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file is a failure that names it, and is running for --status; the same command does it later."""
    node.take(run.path.name)
    assert cli.run(debug(tmp_path)) == 1
    busy = f"error: {run.path}: {run.path.name} is being written by pid {os.getpid()} on node7\n"
    assert busy in capsys.readouterr().err
    assert not run.path.exists()
    assert cli.run(debug(tmp_path, "--status")) == 0
    assert f"running: {run.path}: pid {os.getpid()} on node7" in capsys.readouterr().out
    assert cli.run(debug(tmp_path, "--cancel")) == 1
    said = capsys.readouterr().err
    assert f"error: {run.path.parent} is being written by pid {os.getpid()} on node7\nhint: stop it there\n" == said
    node.release(run.path.name)
    assert cli.run(debug(tmp_path)) == 0


def test_the_files_of_a_dead_node_are_taken_over(node: Holder, run: SweepRun, tmp_path: Path) -> None:
    """A machine that ended in the middle of a run counts no further."""
    run.path.parent.mkdir(exist_ok=True)
    node.take(run.path.name)
    node._ended.set()
    node._heart.join()
    assert cli.run(debug(tmp_path)) == 0
    assert inspect(run.path).finished
    node._held.clear()
    assert {p.name for p in run.path.parent.glob("*")} == {run.path.name, run.hessian[""].name, DEFINITION}


def test_two_submitters(node: Holder, run: SweepRun, tmp_path: Path, assert_refused: Refusal) -> None:
    """A sweep that another machine plans or runs is refused, also where the file system has no locks."""
    node.take(DEFINITION)
    busy = f"{DEFINITION} is being written by pid {os.getpid()} on node7"
    assert_refused(debug(tmp_path), 1, busy, "wait for it, or stop it with --cancel")


def test_a_file_system_without_locks(run: SweepRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are enough for a sweep, which alone takes them."""

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    assert cli.run(debug(tmp_path)) == 0
    assert inspect(run.hessian[""]).finished
    assert cli.run(debug(tmp_path, "--overwrite")) == 0
    assert cli.run(["hessian", str(run.path), "--steps", "0", "--blocks", "E", "--quiet"]) == 1


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
        for blocks in (200, 255):
            (disk / "full").write_bytes(bytes(4096 * blocks))
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
def test_cancel_while_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The process ends as after Ctrl-C, with what it has; a second --cancel finds nothing."""
    long = {**SWEEP, "train": {**SHORT, "steps": 100_000, "checkpoint_every": 20}}
    run = sweep_runs(SweepConfig(**long), tmp_path)[0]
    process = start(tmp_path, long)
    wait_for(lambda: in_training(run))
    workers = descendants(process.pid)
    assert cli.run(arguments(tmp_path, long, "--cancel")) == 0
    assert capsys.readouterr().out == f"cancelled: pid {process.pid} on {os.uname().nodename}\n"
    process.communicate()
    assert process.returncode == 130
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert inspect(run.path).status == "interrupted"
    assert cli.run(arguments(tmp_path, long, "--cancel")) == 0
    assert capsys.readouterr().out == "nothing of this sweep is running\n"
    assert cli.run(arguments(tmp_path, long, "--status")) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["train", "0", "0", "0", "1"]


@pytest.mark.long
def test_a_time_out_resumes_itself(run: SweepRun, tmp_path: Path) -> None:
    """The signal before a time-out: submitit submits the rest again, and the file is that of an undisturbed run."""
    config = SweepConfig(**{**SWEEP, "train": {**SHORT, "steps": 3000, "checkpoint_every": 20}})
    (run,) = sweep_runs(config, tmp_path)
    run.path.parent.mkdir()
    submitit = pytest.importorskip("submitit")
    executor = submitit.LocalExecutor(tmp_path / "logs")
    executor.update_parameters(timeout_min=30)
    job = executor.submit(Allocation(run.path.parent / ".jobs", 1, [Training({run.path: run.config})]))
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
        (["--executor", "slurm", "--slurm", "time=soon"], "slurm time=soon is no time", "write minutes, HH:MM:SS"),
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
    assert_refused(argv, 1, "Slurm needs submitit, which is not installed", "pip install 'landscape-hessian[slurm]'")


@pytest.mark.parametrize("name", ["50%j", "back\\slash", "line\nbreak"])
def test_folders_that_slurm_cannot_name(name: str, tmp_path: Path, assert_refused: Refusal) -> None:
    """Its logs, and the jobs beside them, would be somewhere else."""
    pytest.importorskip("submitit")
    (tmp_path / name).mkdir()
    argv = [*arguments(tmp_path / name, SWEEP)[:-2], "--executor", "slurm"]
    assert_refused(argv, 1, "Slurm reads ", "choose another place")


def test_options_of_slurm() -> None:
    """Times as Slurm writes them, GPUs and cores by their short names, numbers as numbers."""
    pytest.importorskip("submitit")
    times = {"90": 90, "90:30": 91, "2:30:00": 150, "1-12": 2160, "1-12:30:01": 2191}
    assert [options([f"time={text}"])["time"] for text in times] == list(times.values())
    chosen = options(["gpus=2", "cpus=3", "mem=8GB", "partition=gpu", "array_parallelism=50"])
    assert (chosen["gpus_per_node"], chosen["cpus_per_task"]) == (2, 3)
    assert (chosen["mem"], chosen["partition"], chosen["array_parallelism"]) == ("8GB", "gpu", 50)
    chosen = options(["setup=module load x", "setup=. y", "use_srun=false", "exclusive=true", "gpus=²"])
    assert chosen == {
        "setup": ["module load x", ". y"],
        "use_srun": False,
        "exclusive": True,
        "gpus_per_node": "²",
    }


def test_a_sweep_that_is_changed_while_its_jobs_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the queue with other options is refused; more runs and analyses are submitted."""
    sent: list[list[Any]] = []
    needed: list[set[str]] = []

    def submit(batches: list[list[Any]], *more: Any) -> list[Submission]:
        sent.append([list(batch) for batch in batches])
        needed.append(more[-1])
        return []

    queue = {"base-s0.h5": "7", "base-s0.hessian.h5": "8"}
    monkeypatch.setattr(sweeping, "in_queue", lambda folder: queue if sent else {})
    monkeypatch.setattr(sweeping, "submit", submit)
    sweeping.submit_sweep(SweepConfig(**SWEEP), tmp_path)
    defined = (tmp_path / "sweep" / DEFINITION).read_text()
    changed = [{"train": {**SHORT, "lr": 0.5}}, {"hessian": [{**SWEEP["hessian"][0], "k": 3}]}]
    for change, name in zip(changed, ("base-s0.h5", "base-s0.hessian.h5"), strict=True):
        with pytest.raises(FileError, match=f"Slurm has {name} in its queue, with other options") as refused:
            sweeping.submit_sweep(SweepConfig(**{**SWEEP, **change}), tmp_path)
        assert refused.value.hint == "wait for it, or end it with --cancel first"
    assert (tmp_path / "sweep" / DEFINITION).read_text() == defined
    sweeping.submit_sweep(SweepConfig(**SWEEP, seeds=(0, 1)), tmp_path)
    assert [[path.name for job in batch for path in job.outputs] for batch in sent[-1]] == [
        ["base-s1.h5"],
        ["base-s1.hessian.h5"],
    ]
    more = {"hessian": [*SWEEP["hessian"], {"name": "end", "steps": "20", "blocks": ["W"]}]}
    sweeping.submit_sweep(SweepConfig(**{**SWEEP, **more}), tmp_path)
    assert [[path.name for job in batch for path in job.outputs] for batch in sent[-1]] == [
        [],
        ["base-s0.hessian-end.h5"],
    ]
    assert needed == [set(), set(), {"7"}]


@pytest.mark.parametrize(("said", "longest"), [("MaxArraySize = 11", 11), ("MaxArraySize = 0", 1), ("", 1001)])
def test_the_longest_array(said: str, longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm says; where it makes no arrays, tasks one by one."""
    monkeypatch.setattr(slurm, "_said", lambda command: said)
    assert slurm._longest_array() == longest


def test_names_of_tasks(tmp_path: Path) -> None:
    """submitit makes no array of one task, whose log has no index."""
    one = Submission("landscape-s-1", 1, [["a.h5"]], "7")
    many = Submission("landscape-s-2", 1, [["a.h5"], ["b.h5"]], "8")
    assert [one.task(0), many.task(1)] == ["7", "8_1"]
    assert many.log(tmp_path, 1) == tmp_path / "slurm/8_1_0_log.err"
