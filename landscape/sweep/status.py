"""How far a sweep is, from its files, journals, leases and Slurm's queue; and its end before it is done."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Literal

from landscape.errors import FileError, LandscapeError
from landscape.storage.files import as_path, open_file
from landscape.sweep.journal import JOBS, LEASES, Note, notes
from landscape.sweep.leases import Process, leases
from landscape.sweep.plan import DEFINITION, SweepConfig, sweep_runs
from landscape.sweep.slurm import Submission, cancel, queued, submissions

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
    """What is done, running, failed and waiting. Reads no file of which a journal says that it is done."""
    kinds = {a.name: "analyse" if a.refine_from is None else "refine" for a in config.analyses}
    folder = as_path(out) / config.name
    here = _Here(folder)
    found = []
    for run in sweep_runs(config, out):
        found.append(here.file(run.path, "train"))
        found += [here.file(path, kinds[name]) for name, path in run.hessian.items()]
    return SweepStatus(found)


def stop(config: SweepConfig, out: Path | str = "checkpoints") -> str:
    """End a sweep: its tasks in Slurm, and the process on this machine that runs it; says what was ended.

    Raises FileError where it runs on another machine without Slurm.
    """
    folder = as_path(out) / config.name / JOBS
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


class _Here:
    """The folder of a sweep, read once."""

    def __init__(self, folder: Path) -> None:
        jobs = folder / JOBS
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

    def file(self, path: Path, kind: str) -> FileStatus:
        """The status of one file."""
        note, process = self.notes.get(path.name), self.leases.get(path.name)
        if self._is_done(path, note):
            where, log = (note.where, note.log) if note else ("", "")
            return FileStatus(str(path), kind, "done", where, log=log)
        task = self.tasks.get(path.name)
        log = ""
        if task and task[0].array:
            log = str(task[0].log(self.folder, task[1]))
        if process and self._lives(process):
            return FileStatus(str(path), kind, "running", str(process), log=log)
        if task and (state := self.queue.get((task[0].name, task[1]))):
            where = f"Slurm job {task[0].task(task[1])}, {state.lower()}"
            return FileStatus(str(path), kind, "waiting", where, log=log)
        if note and note.state != "done" and not (task and task[0].attempt > note.attempt):
            return FileStatus(str(path), kind, note.state, note.where, note.reason, note.hint, note.log)
        if process:
            return FileStatus(str(path), kind, "failed", str(process), "its process ended", _AGAIN, log)
        if task and task[0].array:
            where = f"Slurm job {task[0].task(task[1])}"
            return FileStatus(str(path), kind, "failed", where, "the job ended before it was done", _AGAIN, log)
        return FileStatus(str(path), kind, "waiting")

    def _is_done(self, path: Path, note: Note | None) -> bool:
        if path.name not in self.there:
            return False
        if note and note.state == "done":
            return True
        with contextlib.suppress(LandscapeError), contextlib.closing(open_file(path)) as file:
            return bool(file.attrs["status"] == "complete")
        return False

    def _lives(self, process: Process) -> bool:
        """Whether a process is not known to have ended."""
        return not process.has_ended and (not process.task or process.task in self.live)
