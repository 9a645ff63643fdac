"""How far a sweep is, by its files, what sweeps have claimed, Slurm's queue and the logs of its jobs."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from landscape.errors import LandscapeError
from landscape.files.runs import RunReader
from landscape.jobs.plan import SweepConfig, SweepRun, sweep_folder, sweep_runs
from landscape.jobs.slurm import FOLDER, log_of, queued, submissions
from landscape.jobs.work import claimant, is_analysed, is_complete
from landscape.training.member import UNSTORED


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
        counts: dict[str, Counter[str]] = {}
        for file in self.files:
            counts.setdefault(file.kind, Counter())[file.state] += 1
        return counts


def status(config: SweepConfig, out: Path | str = "checkpoints") -> SweepStatus:
    """What is done, running, failed and waiting; a file that the sweep would refuse has failed.

    Raises LandscapeError where jobs were submitted and Slurm does not answer.
    """
    analyses = {a.name: (a.settings, "analyse" if a.refine_from is None else "refine") for a in config.analyses}
    slurm = _Slurm(sweep_folder(config, out) / FOLDER)
    files = []
    for run in sweep_runs(config, out):
        trained = _state(run.path, "train", functools.partial(_is_trained, run), slurm)
        files.append(trained)
        for name, path in run.hessian.items():
            settings, kind = analyses[name]
            is_done = functools.partial(is_analysed, run.path, settings, path, trained.state == "done")
            files.append(_state(path, kind, is_done, slurm))
    return SweepStatus(files)


def _is_trained(run: SweepRun) -> bool:
    """As `is_trained`, of a file whose rows are not read."""
    if not run.path.exists():
        return False
    with RunReader(run.path) as reader:
        return is_complete(reader, run.config, UNSTORED)


class _Slurm:
    """What was submitted of a sweep: the latest job by file, and Slurm's queue."""

    def __init__(self, folder: Path) -> None:
        self.folder, submitted = folder, submissions(folder)
        self.jobs = {file: job for s in submitted for job, files in s.files.items() for file in files}
        self.queue = queued(submitted)

    @functools.cache  # noqa: B019
    def failures(self, job: str) -> dict[str, tuple[str, str]] | None:
        """Reason and hint by file, as a job that has ended has printed them; None without a log."""
        log = log_of(self.folder, job)
        if not log.is_file():
            return None
        lines = log.read_text(errors="replace").splitlines()
        failures = {}
        for line, after in zip(lines, [*lines[1:], ""], strict=True):
            path, _, reason = line.removeprefix("error: ").partition(": ")
            if line.startswith("error: "):
                failures[Path(path).name] = reason, after.removeprefix("hint: ")
        return failures


def _state(path: Path, kind: str, is_done: Callable[[], bool], slurm: _Slurm) -> FileStatus:
    """The status of one file. is_done: reads it."""
    here = functools.partial(FileStatus, str(path), kind)
    try:
        if is_done():
            return here("done")
    except LandscapeError as error:
        return here("failed", "", str(error), error.hint)
    job = slurm.jobs.get(path.name, "")
    where = f"Slurm job {job}" if job else ""
    log = str(log_of(slurm.folder, job)) if job else ""
    if process := claimant(path):
        return here("running", where or process, log=log)
    if job in slurm.queue:
        return here("waiting", f"{where}, {slurm.queue[job].lower()}", log=log)
    failures = slurm.failures(job) if job else None
    if failures is None:
        return here("waiting")
    reason, hint = failures.get(path.name, ("the job ended before it was done", "the same command resumes"))
    return here("failed", where, reason, hint, log)
