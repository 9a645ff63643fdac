"""How far a sweep is, from its files, journals, leases and Slurm's queue; and its end before it is done."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from landscape.config import to_json
from landscape.errors import FileError, LandscapeError
from landscape.files.runs import RunReader
from landscape.jobs.jobs import is_analysed, is_complete
from landscape.jobs.journal import JOBS, LEASES, notes
from landscape.jobs.leases import Process, leases
from landscape.jobs.plan import DEFINITION, SweepConfig, SweepRun, defined, sweep_folder, sweep_runs
from landscape.jobs.slurm import Submission, cancel, queued, submissions
from landscape.training.member import UNSTORED

_AGAIN = "the same command resumes"


@dataclasses.dataclass(frozen=True)
class FileStatus:
    """One file of a sweep. where: the process or Slurm job that works on it, or did; log: what that printed."""

    path: str
    kind: str
    state: Literal["done", "running", "failed", "waiting"]
    where: str = ""
    reason: str = ""
    hint: str = ""
    log: str = ""


@dataclasses.dataclass(frozen=True)
class SweepStatus:
    """All files of a sweep in the order of `sweep_runs`."""

    files: list[FileStatus]

    @property
    def counts(self) -> dict[str, Counter[str]]:
        """How many files of each kind are in each state."""
        found: dict[str, Counter[str]] = {}
        for file in self.files:
            found.setdefault(file.kind, Counter())[file.state] += 1
        return found


def status(config: SweepConfig, out: Path | str = "checkpoints") -> SweepStatus:
    """What is done, running, failed and waiting; a file that the sweep would refuse has failed.

    Reads no file of which a journal of the same sweep says that it is done.
    """
    analyses = {a.name: (a.settings, "analyse" if a.refine_from is None else "refine") for a in config.analyses}
    here = _Folder(sweep_folder(config, out), config)
    found = []
    for run in sweep_runs(config, out):
        trained = here.file(run.path, "train", functools.partial(_is_trained, run))
        found.append(trained)
        for name, path in run.hessian.items():
            settings, kind = analyses[name]
            has_run = trained.state == "done"
            is_done = functools.partial(is_analysed, run.path, settings, path, has_run)
            found.append(here.file(path, kind, is_done, has_run))
    return SweepStatus(found)


def _is_trained(run: SweepRun) -> bool:
    """As `is_trained`, of a file that exists, whose rows are not read."""
    with RunReader(run.path) as reader:
        return is_complete(reader, run.config, UNSTORED)


def stop(config: SweepConfig, out: Path | str = "checkpoints") -> str:
    """End a sweep: its tasks in Slurm, and the process on this machine that runs it; says what was ended.

    Raises FileError where it runs on another machine without Slurm.
    """
    folder = sweep_folder(config, out) / JOBS
    ended, elsewhere = [], []
    if count := cancel(submissions(folder)):
        ended.append(f"{count:,} tasks of Slurm")
    for process in {process for _, process in leases(folder / LEASES) if not process.task and not process.has_ended}:
        if process.is_here:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
            ended.append(str(process))
        else:
            elsewhere.append(str(process))
    if elsewhere:
        raise FileError(f"{folder.parent} is being written by {elsewhere[0]}", "stop it there")
    return f"cancelled: {', '.join(ended)}" if ended else "nothing of this sweep is running"


class _Folder:
    """The folder of a sweep, read once."""

    def __init__(self, folder: Path, config: SweepConfig) -> None:
        jobs = folder / JOBS
        self.is_same = False
        with contextlib.suppress(LandscapeError):
            self.is_same = to_json(defined(folder)) == to_json(config)
        self.folder = jobs
        self.there = set(os.listdir(folder)) if folder.is_dir() else set()
        self.notes = notes(jobs)
        self.leases = {name: process for name, process in leases(jobs / LEASES) if name != DEFINITION}
        self.tasks: dict[str, tuple[Submission, int]] = {}
        submitted = submissions(jobs)
        for submission in submitted:
            for index, files in enumerate(submission.files):
                self.tasks.update(dict.fromkeys(files, (submission, index)))
        self.queue = queued(submitted)
        self.live = {s.task(index) for s in submitted for index in range(len(s.files)) if (s.name, index) in self.queue}

    def file(self, path: Path, kind: str, is_done: Callable[[], bool], has_run: bool = True) -> FileStatus:
        """The status of one file. is_done: reads it; has_run: whether the run of an analysis is done."""
        note, process, task = self.notes.get(path.name), self.leases.get(path.name), self.tasks.get(path.name)
        if task and note and task[0].attempt > note.attempt:
            note = None
        log = str(task[0].log(self.folder, task[1])) if task and task[0].array else ""
        noted = bool(note and note.state == "done")
        refusal = None
        try:
            if path.name in self.there and (noted and self.is_same and has_run and not process or is_done()):
                where, said = (note.where, note.log) if note and noted else ("", "")
                return FileStatus(str(path), kind, "done", where, log=said)
        except LandscapeError as error:
            refusal = error
        if process and self._lives(process):
            return FileStatus(str(path), kind, "running", str(process), log=log)
        if task and (state := self.queue.get((task[0].name, task[1]))):
            where = f"Slurm job {task[0].task(task[1])}, {state.lower()}"
            return FileStatus(str(path), kind, "waiting", where, log=log)
        if refusal:
            return FileStatus(str(path), kind, "failed", "", str(refusal), refusal.hint)
        if note and not noted:
            return FileStatus(str(path), kind, note.state, note.where, note.reason, note.hint, note.log)
        if process:
            return FileStatus(str(path), kind, "failed", str(process), "its process ended", _AGAIN, log)
        if task and log and not note:
            where = f"Slurm job {task[0].task(task[1])}"
            return FileStatus(str(path), kind, "failed", where, "the job ended before it was done", _AGAIN, log)
        return FileStatus(str(path), kind, "waiting")

    def _lives(self, process: Process) -> bool:
        """Whether a process is not known to have ended."""
        return not process.has_ended and (not process.task or process.task in self.live)
