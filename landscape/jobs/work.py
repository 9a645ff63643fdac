"""The jobs of a sweep: train runs side by side, analyse one. One process at a time does a job, on any machine.

A job is idempotent: it resumes what another process left, and one that is done is done at once.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Self

from filelock import SoftFileLease, Timeout

from landscape import models
from landscape.config import AnalysisConfig, HessianConfig, TrainConfig
from landscape.errors import FileError, LandscapeError, complain, mend
from landscape.files.files import REPLACE, output, refuse_existing
from landscape.files.hdf5 import REMEASURE
from landscape.files.runs import RETRAIN, RunReader
from landscape.jobs.plan import SweepAnalysis
from landscape.measure.analysis import existing
from landscape.measure.critical import critical
from landscape.measure.hessian import hessian
from landscape.measure.steps import choose_steps
from landscape.training.loop import train_ensemble
from landscape.training.member import difference
from landscape.workers import Reason, Workers

IN_THE_WAY = "use --overwrite to start the sweep anew, or another --out"
EXPIRY = 600.0
"""Seconds without a sign of life after which another machine's claim to an output ends.

Signs come from a thread of the claimant, which some calls of LAPACK hold up for minutes. A process of this machine that
has ended is seen at once.
"""
_AGAIN = "move it away, and the sweep makes it again, or use another --out"
_BUSY = "wait for it; the same command does what is left"
_POLL = 0.5
"""Seconds between two looks at a claim that is waited for."""


class Job(abc.ABC):
    """Work that ends in files, each of which one process claims at a time."""

    @property
    @abc.abstractmethod
    def outputs(self) -> tuple[Path, ...]:
        """These files."""

    @abc.abstractmethod
    def execute(self) -> None:
        """Do the work. Raises LandscapeError."""

    def members(self) -> Sequence[Job]:
        """The same work in the smallest jobs."""
        return (self,)


@dataclasses.dataclass(frozen=True)
class Training(Job):
    """Train the runs of one shape side by side."""

    runs: dict[Path, TrainConfig]

    @property
    def outputs(self) -> tuple[Path, ...]:
        return tuple(self.runs)

    def members(self) -> list[Self]:
        return [type(self)({path: config}) for path, config in self.runs.items()]

    def execute(self) -> None:
        for summary in train_ensemble(self.runs, resume=True, quiet=True):
            if summary.divergence:
                raise summary.divergence
            if summary.status != "complete":
                raise FileError(f"{summary.status} at step {summary.steps}", "the same command resumes")


@dataclasses.dataclass(frozen=True)
class Analysis(Job):
    """Measure steps of a run, or the critical point nearest to one."""

    run: Path
    analysis: SweepAnalysis
    path: Path

    @property
    def outputs(self) -> tuple[Path, ...]:
        return (self.path,)

    def execute(self) -> None:
        settings = self.analysis.settings
        if is_analysed(self.run, settings, self.path, is_trained=True):
            return
        if isinstance(settings, HessianConfig):
            hessian(self.run, settings, self.path, quiet=True)
        elif self.analysis.refine_from is not None:
            critical(self.run, self.analysis.refine_from, settings, self.path, resume=True, quiet=True)


def work_off(jobs: Sequence[Job], pool: Workers | None) -> Iterator[tuple[Job, Reason | None]]:
    """Do jobs in the processes of a pool, without one in this process; yields each as it ends, and why it failed.

    What another process works on comes last, and is waited for. A group of which a member fails comes last as well, one
    by one, so that only this member fails.
    """
    last: list[Job] = []
    for job, reason in _executed(((job, False) for job in jobs), pool):
        if reason and (len(job.outputs) > 1 or reason[1] == _BUSY):
            last += job.members()
        else:
            yield job, reason
    yield from _executed(((job, True) for job in last), pool)


def _executed(calls: Iterable[tuple[Job, bool]], pool: Workers | None) -> Iterator[tuple[Job, Reason | None]]:
    if pool:
        for reason, job, _ in pool.run(execute, calls):
            yield job, reason
        return
    for job, waits in calls:
        # Any other error is a defect, at which a debugger can stop.
        reason = None
        try:
            execute(job, waits)
        except LandscapeError as error:
            reason = str(error), error.hint
        yield job, reason


def execute(job: Job, waits: bool) -> None:
    """Do a job, whose outputs no other process may claim; waits: for those that one has, instead of FileError."""
    with contextlib.ExitStack() as stack:
        # All processes claim in the same order, so that no two wait for each other.
        for path in sorted(job.outputs):
            stack.enter_context(claimed(path, waits))
        with _sparing():
            job.execute()


@contextlib.contextmanager
def claimed(path: Path, waits: bool = False) -> Iterator[None]:
    """Keep other sweeps, on machines that share the folder, from an output. Raises FileError if one has it."""
    claim = _claim(path)
    try:
        claim.acquire(timeout=-1 if waits else 0, poll_interval=_POLL)
    except Timeout as error:
        raise FileError(f"{path} is being written by another sweep ({claim.pid})", _BUSY) from error
    except OSError as error:
        raise FileError(f"{claim.lock_file} cannot be made: {error.strerror}", mend(error)) from error
    try:
        yield
    finally:
        claim.release()


def claimant(path: Path) -> str:
    """The process that works on an output; empty if none is known to."""
    claim = _claim(path)
    if not Path(claim.lock_file).exists():
        return ""
    with contextlib.suppress(Timeout, OSError), claim.acquire(timeout=0):
        return ""
    return f"process {claim.pid}"


def _claim(path: Path) -> SoftFileLease:
    path = output(path)
    return SoftFileLease(path.with_name(f".{path.name}.claim"), lease_duration=EXPIRY, on_compromise=_lost)


def _lost(_: object) -> None:
    """End this process, which stood still so long that another one may have its output by now."""
    complain(FileError("this process stood still, and lost its output to another one", "the same command resumes"))
    sys.stderr.flush()
    os._exit(1)


@contextlib.contextmanager
def _sparing() -> Iterator[None]:
    """Advise to move away the one file that is in the way, as --overwrite of a sweep would remove all of them."""
    try:
        yield
    except FileError as error:
        if error.hint not in (REPLACE, REMEASURE, RETRAIN):
            raise
        raise FileError(str(error), _AGAIN) from error


def is_trained(path: Path, config: TrainConfig) -> bool:
    """Whether a run is finished. Raises FileError for a file of another config or with damage."""
    if not path.exists():
        return False
    with RunReader(path) as reader:
        reader.require_whole()
        return is_complete(reader, config, {"device"})


def is_complete(reader: RunReader, config: TrainConfig, free: Set[str]) -> bool:
    """Whether a run's file says that it is finished. Raises FileError for one of a config that differs in more."""
    if other := difference(config, reader.config, free):
        raise FileError(f"{reader.path}: {other}", IN_THE_WAY)
    return bool(reader.attrs["status"] == "complete")


def is_analysed(run: Path, config: AnalysisConfig, path: Path, is_trained: bool) -> bool:
    """Whether an analysis is finished. Raises FileError for a file of another run or config."""
    if not run.exists():
        refuse_existing(path, _AGAIN)
    if not path.exists():
        return False
    with RunReader(run) as reader:
        source = models.opened(reader, config)[1] if config.problem else None
        with _sparing():
            point = "" if isinstance(config, HessianConfig) else "critical_point"
            stored = existing(path, reader, config, source=source, point=point)
        # A run that `landscape check --repair` trimmed is resumed, and has kept its analyses.
        if not is_trained or stored is None or stored.attrs["status"] != "complete":
            return False
        steps = _to_measure(reader, config, stored.steps) if isinstance(config, HessianConfig) else []
    return {*steps} <= {*stored.steps}


def _to_measure(reader: RunReader, config: HessianConfig, steps: Sequence[int]) -> list[int]:
    """The steps of an analysis, unless it names them and has them: of those the run may have lost checkpoints since."""
    measured = set(map(str, steps))
    return [] if {*config.steps.split(",")} <= measured else choose_steps(reader, config.steps, config.num_steps)
