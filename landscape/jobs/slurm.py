"""A sweep as arrays of Slurm, by submitit, which is imported only here and only when it is asked for."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from landscape.errors import ConfigError, FileError, LandscapeError, complain, mend, suggest
from landscape.jobs.plan import SweepConfig, sweep_folder, sweep_runs
from landscape.jobs.run import Failure, Work, plan
from landscape.workers import Workers

FOLDER = ".jobs"
"""Folder in a sweep's folder for what was submitted, and the logs."""
ARRAY = 1001
"""Largest array of Slurm where `scontrol` does not say."""
REQUEUES = 100
"""Time-outs after which Slurm gives up on a job, which resumes each time."""
_DEFAULTS: dict[str, Any] = {"time": 60, "cpus_per_task": 1}
_OURS = ("job_name", "srun_args", "stderr_to_stdout", "additional_parameters")
_COUNTS, _LISTS = ("time", "array_parallelism", "nodes", "ntasks_per_node"), ("setup", "teardown")
"""Parameters of submitit that are not the user's, that are counted with, and that are lists of commands."""
_SWITCHES = {"true": True, "false": False}


def options(entries: Sequence[str]) -> dict[str, Any]:
    """submitit's parameters from NAME=VALUE entries. Raises ConfigError for others.

    time: minutes; gpus: of a node; setup, teardown: a command of the shell for each entry.
    """
    known = _submitit("slurm.slurm")._get_default_parameters()
    chosen: dict[str, Any] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        name = {"gpus": "gpus_per_node", "cpus": "cpus_per_task"}.get(name, name)
        if name not in known or not value:
            hint = suggest(name, known) if equals and name not in known else "write it like time=60"
            raise ConfigError(f"slurm {entry!r} is no option of Slurm", hint)
        if name in _OURS:
            raise ConfigError(f"slurm {entry!r}: {name} is set by landscape", "leave it out")
        is_count = value.isascii() and value.isdigit()
        if name in _COUNTS and not is_count:
            unit = ", in minutes" if name == "time" else ""
            raise ConfigError(f"slurm {name}={value} is no whole number", f"write it like {name}=1{unit}")
        if name in _LISTS:
            chosen.setdefault(name, []).append(value)
        else:
            chosen[name] = int(value) if is_count else _SWITCHES.get(value.lower(), value)
    return chosen


@dataclasses.dataclass(frozen=True)
class Submission:
    """An array of Slurm. files: names of those that each of its jobs makes, by the number of the job."""

    array: str
    files: dict[str, list[str]]


@dataclasses.dataclass(frozen=True)
class Share:
    """What one job of Slurm does. Submitted again after a time-out, it does what is left."""

    work: Work

    def __call__(self) -> list[Failure]:
        # scancel sends it first: the workers finish a step and store it.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        cores, devices = _room()
        with Workers(min(cores, len(self.work.files)), devices) as pool:
            failures = self.work.carry_out(pool, cores, lambda job: print(*job.outputs, flush=True))
        for failure in failures:
            complain(FileError(f"{failure.path}: {failure.error}", failure.hint))
        return failures

    def checkpoint(self) -> Any:
        """What submitit submits again after a time-out or a preemption."""
        return _submitit("helpers").DelayedSubmission(self)


def submit_sweep(
    config: SweepConfig,
    out: Path | str = "checkpoints",
    pack: int = 1,
    options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> list[Submission]:
    """Submit what is left of a sweep to Slurm and return at once; what is in its queue is not submitted again.

    Args:
        config: the sweep.
        out: the folder of its folder, which the nodes share.
        pack: runs of a job, which trains those of one shape side by side and then analyses them.
        options: submitit's parameters.
        overwrite: remove the files of the sweep that are there, and start anew.

    Returns:
        The arrays.

    Raises:
        ConfigError: for invalid values.
        FileError: for a file of another config in the way, or a folder that Slurm cannot name.
        LandscapeError: where Slurm refuses an array; those before it run.
    """
    submitit = _submitit()
    folder = (sweep_folder(config, out) / FOLDER).resolve()
    if bad := re.search(r"[%\\\n]", str(folder)):
        raise FileError(
            f"{folder}: Slurm reads {bad[0]!r} in the name of a log as something else",
            "choose another place, whose path has no such character",
        )
    try:
        executor = submitit.SlurmExecutor(folder, max_num_timeout=REQUEUES)
    except RuntimeError as error:
        raise LandscapeError("srun is not on the PATH", "submit from a machine of the cluster") from error
    waiting = {file for files in in_queue(folder).values() for file in files}
    if waiting and overwrite:
        raise FileError(f"Slurm has {len(waiting):,} files of this sweep in its queue", "end it with --cancel first")
    work = plan(config, out, overwrite)
    shares = [
        share
        for share in work.shares(sweep_runs(config, out), pack)
        if not waiting.intersection(file.name for file in share.files)
    ]
    parameters = {**_DEFAULTS, **(options or {}), "job_name": f"landscape-{config.name}"}
    # srun does not take this from sbatch.
    parameters["srun_args"] = [f"--cpus-per-task={parameters['cpus_per_task']}"]
    submitted = []
    for i in range(0, len(shares), longest := _longest_array()):
        array = shares[i : i + longest]
        try:
            executor.update_parameters(**parameters)
            with executor.batch():
                jobs = [executor.submit(Share(_resolved(share))) for share in array]
            numbers = [job.job_id for job in jobs]
        except (submitit.core.utils.FailedJobError, subprocess.CalledProcessError, OSError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise LandscapeError(
                f"sbatch refused the jobs: {reason}", "change --slurm or --pack, or see whether Slurm is up"
            ) from error
        files = [[file.name for file in share.files] for share in array]
        submitted.append(Submission(numbers[0].partition("_")[0], dict(zip(numbers, files, strict=True))))
        _write(folder / f"{submitted[-1].array}.json", submitted[-1].files)
    return submitted


def submissions(folder: Path) -> list[Submission]:
    """The arrays of a sweep that were submitted, the latest last. folder: that in the sweep's folder."""
    arrays = []
    # Another program's pipe would be waited for.
    for path in filter(Path.is_file, folder.glob("*.json")):
        with contextlib.suppress(ValueError):
            files = json.loads(path.read_bytes())
            if path.stem.isdigit() and isinstance(files, dict):
                arrays.append(Submission(path.stem, files))
    return sorted(arrays, key=lambda submission: int(submission.array))


def log_of(folder: Path, job: str) -> Path:
    """What a job prints on stderr, which submitit keeps."""
    return folder / f"{job}_0_log.err"


def queued(submitted: Sequence[Submission]) -> dict[str, str]:
    """The jobs of these arrays that Slurm has in its queue, with their state."""
    if not submitted:
        return {}
    lines = _output(["squeue", "--noheader", "--me", "--array", "--format=%i|%T"]).splitlines()
    states = dict(line.strip().split("|", 1) for line in lines)
    return {job: states[job] for submission in submitted for job in submission.files if job in states}


def in_queue(folder: Path) -> dict[str, list[str]]:
    """The jobs of a sweep that Slurm has in its queue, with their files."""
    submitted = submissions(folder)
    files = {job: files for submission in submitted for job, files in submission.files.items()}
    return {job: files[job] for job in queued(submitted)}


def cancel_sweep(config: SweepConfig, out: Path | str = "checkpoints") -> int:
    """End the jobs of a sweep that Slurm has in its queue; returns how many these were."""
    waiting = in_queue(sweep_folder(config, out) / FOLDER)
    if waiting:
        _output(["scancel", *{job.partition("_")[0] for job in waiting}])
    return len(waiting)


def _resolved(work: Work) -> Work:
    """The same files, from whatever folder a job begins in."""
    analyses = [
        dataclasses.replace(analysis, run=analysis.run.resolve(), path=analysis.path.resolve())
        for analysis in work.analyses
    ]
    return Work({path.resolve(): config for path, config in work.runs.items()}, analyses)


def _write(path: Path, files: Mapping[str, Sequence[str]]) -> None:
    """Store which job makes which files, whole or not at all."""
    try:
        path.with_suffix(".tmp").write_text(json.dumps(files))
        path.with_suffix(".tmp").replace(path)
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror}", mend(error)) from error


def _output(command: list[str]) -> str:
    """What a command of Slurm prints. Raises LandscapeError if it fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError as error:
        raise LandscapeError(f"{command[0]} is not on the PATH", "run this where Slurm's commands are") from error
    except subprocess.CalledProcessError as error:
        raise LandscapeError(f"{command[0]} failed: {error.stderr.strip()}", "see whether Slurm is up") from error


def _longest_array() -> int:
    with contextlib.suppress(LandscapeError):
        if limit := re.search(r"MaxArraySize\s*=\s*(\d+)", _output(["scontrol", "show", "config"])):
            # 0 stands for a Slurm without arrays, which those of one job are not.
            return max(1, int(limit[1]))
    return ARRAY


def _room() -> tuple[int, list[str]]:
    """How many jobs run side by side in this allocation, and its GPUs, of which each gets one."""
    # As CUDA reads it: nothing from the first entry on that names no device, such as -1 and Slurm's NoDevFiles.
    named = map(str.strip, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
    devices = list(itertools.takewhile(re.compile(r"\d+|(GPU|MIG)-.+").fullmatch, named))
    cores = min(len(os.sched_getaffinity(0)), int(os.environ.get("SLURM_CPUS_PER_TASK", 1)))
    return len(devices) or cores, devices


def _submitit(module: str = "") -> Any:
    """submitit or a module of it. Raises LandscapeError where it is not installed."""
    try:
        return importlib.import_module(f"submitit.{module}".rstrip("."))
    except ModuleNotFoundError as error:
        raise LandscapeError("Slurm needs submitit, which is not installed", "pip install submitit") from error
