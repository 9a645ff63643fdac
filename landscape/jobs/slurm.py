"""Jobs as arrays of Slurm, by submitit, which is imported only here and only when it is asked for."""

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
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import FrameType
from typing import Any

from landscape.errors import ConfigError, FileError, LandscapeError, mend, suggest
from landscape.jobs.executors import execute_all
from landscape.jobs.jobs import Job, names
from landscape.jobs.journal import LEASES, Journal
from landscape.jobs.leases import Holder
from landscape.workers import Workers

ARRAY = 1001
"""Largest array of Slurm where `scontrol` does not say."""
REQUEUES = 100
"""Time-outs after which Slurm gives up on a task, which resumes each time."""
_DEFAULTS: dict[str, Any] = {"time": 60}
_OURS = ("job_name", "srun_args", "stderr_to_stdout", "additional_parameters")
_COUNTS, _LISTS = ("array_parallelism", "nodes", "ntasks_per_node"), ("setup", "teardown")
"""Parameters of submitit that are not the user's, that are counted with, and that are lists of commands."""
_SWITCHES = {"true": True, "false": False}
_LOGS, _SUBMITTED = "slurm", ".submitted"


def options(entries: Sequence[str]) -> dict[str, Any]:
    """submitit's parameters from NAME=VALUE entries. Raises ConfigError for others.

    time: minutes, or as Slurm writes it (2:30:00, 1-12:00:00); gpus: of a node; setup, teardown: a command of the shell
    for each entry.
    """
    known = _submitit("slurm.slurm")._get_default_parameters()
    found: dict[str, Any] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        name = {"gpus": "gpus_per_node", "cpus": "cpus_per_task"}.get(name, name)
        if name not in known or not value:
            hint = suggest(name, known) if equals and name not in known else "write it like time=60"
            raise ConfigError(f"slurm {entry!r} is no option of Slurm", hint)
        if name in _OURS:
            raise ConfigError(f"slurm {entry!r}: {name} is set by landscape", "leave it out")
        if name in _LISTS:
            found.setdefault(name, []).append(value)
        else:
            found[name] = _value(name, value)
    return found


@dataclasses.dataclass(frozen=True)
class Submission:
    """Arrays of Slurm: the files of each task, and the number of the array once it has one."""

    name: str
    attempt: int
    files: list[list[str]]
    array: str = ""

    def task(self, index: int) -> str:
        """Slurm's name of a task; submitit makes no array of a single one."""
        return self.array if len(self.files) == 1 else f"{self.array}_{index}"

    def log(self, folder: Path, index: int) -> Path:
        """What a task prints."""
        return folder / _LOGS / f"{self.task(index)}_0_log.err"

    def write(self, folder: Path) -> None:
        """Store it, first without the number of the array, so that a kill leaves none that is unknown."""
        path = folder / (self.name + _SUBMITTED)
        try:
            path.with_suffix(".tmp").write_text(json.dumps(dataclasses.asdict(self)))
            path.with_suffix(".tmp").replace(path)
        except OSError as error:
            raise FileError(f"{path} cannot be written: {error.strerror}", mend(error)) from error


class Allocation:
    """What one task of an array does: its jobs, one a core or GPU. Submitted again, it does what is left of them."""

    def __init__(self, folder: Path, attempt: int, jobs: Sequence[Job]) -> None:
        self.folder, self.attempt, self.jobs = folder, attempt, list(jobs)

    def __call__(self) -> None:
        environment = _submitit("core.job_environment").JobEnvironment()
        cores, devices = _room()
        with (
            _ending_on_sigterm(),
            Holder(self.folder / LEASES, environment.job_id) as holder,
            Workers(min(cores, len(self.jobs)), devices) as workers,
        ):
            where = str(holder.process)
            log = str(environment.paths.stderr)
            journal = Journal(self.folder, holder.process.id, self.attempt, where, log)
            ready = []
            for job in self.jobs:
                if before := job.waits_for():
                    for name in names([job]):
                        journal.note(name, "waiting", (f"{before.name} is not finished", "the same command resumes"))
                else:
                    ready.append(job)
            for job, reason in execute_all(ready, workers, holder, journal):
                print(*names([job]), *(reason or ["done"]), sep=": ", flush=True)

    def checkpoint(self) -> Any:
        """What submitit submits again after a time-out or a preemption."""
        return _submitit("helpers").DelayedSubmission(self)


def submit(
    batches: Sequence[Sequence[Job]],
    folder: Path,
    attempt: int,
    name: str,
    pack: int,
    chosen: Mapping[str, Any],
    needed: Set[str] = frozenset(),
) -> list[Submission]:
    """Submit batches of jobs, each of which starts when the one before has ended, `pack` jobs a task.

    needed: arrays in the queue, by number, that the last batch waits for as well.
    Raises FileError for a folder that Slurm cannot name, and LandscapeError if it refuses a batch; what was submitted
    before runs.
    """
    submitit = _submitit()
    if bad := re.search(r"[%\\\n]", str(folder)):
        raise FileError(
            f"{folder}: Slurm reads {bad[0]!r} in the name of a log as something else",
            "choose another place, whose path has no such character",
        )
    try:
        executor = submitit.SlurmExecutor(folder / _LOGS, max_num_timeout=REQUEUES)
    except RuntimeError as error:
        raise LandscapeError("srun is not on the PATH", "submit from a machine of the cluster") from error
    folder.mkdir(parents=True, exist_ok=True)
    submitted: list[Submission] = []
    before: list[str] = []
    for jobs in filter(None, batches):
        ahead = before + sorted(needed if jobs is batches[-1] else ())
        waits = [f"afterany:{':'.join(ahead)}"] if ahead else []
        if "dependency" in chosen and not before:
            waits.insert(0, chosen["dependency"])
        tasks = [jobs[i : i + pack] for i in range(0, len(jobs), pack)]
        longest = _longest_array()
        arrays = [tasks[i : i + longest] for i in range(0, len(tasks), longest)]
        numbers = []
        for array in arrays:
            # Slurm drops some characters of a name, and refuses others.
            label = f"landscape-{re.sub('[^A-Za-z0-9._=+-]', '_', name)}-{uuid.uuid4().hex[:8]}"
            parameters = {**_DEFAULTS, "cpus_per_task": pack, **chosen, "job_name": label}
            # srun does not take this from sbatch.
            parameters["srun_args"] = [f"--cpus-per-task={parameters['cpus_per_task']}"]
            if "array_parallelism" in chosen:
                parameters["array_parallelism"] = max(1, chosen["array_parallelism"] // len(arrays))
            if waits:
                parameters["dependency"] = ",".join(waits)
            submission = Submission(label, attempt, [list(names(task)) for task in array])
            submission.write(folder)
            try:
                executor.update_parameters(**parameters)
                with executor.batch():
                    made = [executor.submit(Allocation(folder, attempt, task)) for task in array]
                number = made[0].job_id.partition("_")[0]
            except (submitit.core.utils.FailedJobError, subprocess.CalledProcessError, OSError) as error:
                (folder / (label + _SUBMITTED)).unlink()
                said = str(error).strip().splitlines()[-1]
                raise LandscapeError(
                    f"sbatch refused the jobs: {said}", "change --slurm or --pack, or see whether Slurm is up"
                ) from error
            numbers.append(number)
            submitted.append(dataclasses.replace(submission, array=number))
            submitted[-1].write(folder)
        before = numbers
    return submitted


def submissions(folder: Path) -> list[Submission]:
    """All submissions of a sweep, the latest last."""
    found = []
    # Another program's pipe would be waited for.
    for path in filter(Path.is_file, folder.glob(f"*{_SUBMITTED}")):
        with contextlib.suppress(ValueError, TypeError):
            found.append(Submission(**json.loads(path.read_bytes())))
    return sorted(found, key=lambda submission: submission.attempt)


def queued(submitted: Sequence[Submission]) -> dict[tuple[str, int], str]:
    """The tasks that Slurm has in its queue, by submission and index, with their state."""
    if not submitted:
        return {}
    # The name comes last, as those of other jobs may hold the separator or a line break.
    command = ["squeue", "--noheader", "--me", "--array", "--format=%K|%T|%j"]
    found = {}
    wanted = {submission.name for submission in submitted}
    for line in _said(command).splitlines():
        index, _, rest = line.strip().partition("|")
        state, _, name = rest.partition("|")
        if name in wanted:
            found[name, int(index) if index.isdigit() else 0] = state
    return found


def in_queue(folder: Path) -> dict[str, str]:
    """The files of the tasks that Slurm has in its queue, with the numbers of their arrays."""
    submitted = submissions(folder)
    queue = queued(submitted)
    waiting = [(s.array, files) for s in submitted for i, files in enumerate(s.files) if (s.name, i) in queue]
    return {file: array for array, files in waiting for file in files}


def cancel(submitted: Sequence[Submission]) -> int:
    """Cancel all tasks of these submissions; returns how many were in the queue."""
    waiting = queued(submitted)
    for name in {name for name, _ in waiting}:
        _said(["scancel", f"--name={name}"])
    return len(waiting)


def _said(command: list[str]) -> str:
    """What a command of Slurm prints. Raises LandscapeError if it fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError as error:
        raise LandscapeError(f"{command[0]} is not on the PATH", "run this where Slurm's commands are") from error
    except subprocess.CalledProcessError as error:
        raise LandscapeError(f"{command[0]} failed: {error.stderr.strip()}", "see whether Slurm is up") from error


def _longest_array() -> int:
    with contextlib.suppress(LandscapeError):
        if found := re.search(r"MaxArraySize\s*=\s*(\d+)", _said(["scontrol", "show", "config"])):
            # 0 stands for a Slurm without arrays, which those of one task are not.
            return max(1, int(found[1]))
    return ARRAY


def _value(name: str, text: str) -> int | bool | str:
    """The value of a parameter. Raises ConfigError."""
    if name == "time":
        return _minutes(text)
    if text.isascii() and text.isdigit():
        return int(text)
    if name in _COUNTS:
        raise ConfigError(f"slurm {name}={text} is no whole number", f"write it like {name}=1")
    return _SWITCHES.get(text.lower(), text)


def _minutes(text: str) -> int:
    """A time limit as Slurm writes it, in minutes."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not found:
        raise ConfigError(f"slurm time={text} is no time", "write minutes, HH:MM:SS or D-HH:MM:SS")
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[1] is not None or found[4] is not None:
        return days * 1440 + first * 60 + second + (third > 0)
    return first + (second > 0)


def _room() -> tuple[int, list[str]]:
    """How many jobs run side by side in this allocation, and its GPUs, of which each gets one."""
    # As CUDA reads it: nothing from the first that is no device on, such as -1 and Slurm's NoDevFiles.
    named = map(str.strip, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
    devices = list(itertools.takewhile(re.compile(r"\d+|(GPU|MIG)-.+").fullmatch, named))
    cores = min(len(os.sched_getaffinity(0)), int(os.environ.get("SLURM_CPUS_PER_TASK", 1)))
    return len(devices) or cores, devices


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """End as Slurm asks: the workers finish a step and store it, the leases are given back."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _submitit(module: str = "") -> Any:
    """submitit or a module of it. Raises LandscapeError where it is not installed."""
    try:
        return importlib.import_module(f"submitit.{module}".rstrip("."))
    except ModuleNotFoundError as error:
        raise LandscapeError(
            "Slurm needs submitit, which is not installed", "pip install 'landscape-hessian[slurm]'"
        ) from error
