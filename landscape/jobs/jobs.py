"""The jobs of a sweep: train runs side by side, analyse one, refine a point of one.

A job is idempotent: it resumes what another process left, and one that is done is done at once.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Self

from landscape import models
from landscape.config import AnalysisConfig, HessianConfig, TrainConfig
from landscape.errors import FileError
from landscape.files.files import REPLACE, refuse_existing
from landscape.files.runs import RETRAIN, RunReader
from landscape.jobs.plan import SweepAnalysis
from landscape.measure.analysis import existing
from landscape.measure.critical import refine
from landscape.measure.hessian import analyse
from landscape.measure.steps import choose_steps
from landscape.models.choice import in_order
from landscape.training.loop import train_ensemble
from landscape.training.member import difference

IN_THE_WAY = "use --overwrite to start the sweep anew, or another --out"
_AGAIN = "move it away, and the sweep makes it again, or use another --out"


class Job(abc.ABC):
    """Work that ends in files, each of which has a lease of its own."""

    @property
    @abc.abstractmethod
    def outputs(self) -> tuple[Path, ...]:
        """These files."""

    @abc.abstractmethod
    def execute(self) -> None:
        """Do the work. Raises LandscapeError."""

    def waits_for(self) -> Path | None:
        """A file that has to be finished first, and is not."""
        return None

    def split(self) -> Sequence[Job]:
        """The same work in smaller jobs, of which only the failing ones fail; empty if there are none."""
        return ()


@dataclasses.dataclass(frozen=True)
class Training(Job):
    """Train the runs of one shape side by side."""

    runs: dict[Path, TrainConfig]

    @property
    def outputs(self) -> tuple[Path, ...]:
        return tuple(self.runs)

    def split(self) -> list[Self]:
        return [type(self)({path: config}) for path, config in self.runs.items()] if len(self.runs) > 1 else []

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

    def waits_for(self) -> Path | None:
        if self.run.exists():
            with RunReader(self.run) as reader:
                if reader.attrs["status"] == "complete":
                    return None
        return self.run

    def execute(self) -> None:
        settings = self.analysis.settings
        if is_analysed(self.run, settings, self.path, is_trained=True):
            return
        if isinstance(settings, HessianConfig):
            analyse(self.run, settings, self.path, quiet=True)
        elif self.analysis.refine_from is not None:
            refine(self.run, self.analysis.refine_from, settings, self.path, resume=True, quiet=True)


def execute(job: Job) -> None:
    """Do a job in this process, which holds the leases on its outputs."""
    with _sparing():
        job.execute()


@contextlib.contextmanager
def _sparing() -> Iterator[None]:
    """Advise to move away the one file that is in the way, as --overwrite of a sweep would remove all of them."""
    try:
        yield
    except FileError as error:
        if error.hint not in (REPLACE, RETRAIN):
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
            found = existing(path, reader, config, source=source)
        # A run that `landscape check --repair` trimmed is resumed, and has kept its analyses.
        if not is_trained or found is None or found.attrs["status"] != "complete":
            return False
        steps = _to_measure(reader, config, found.steps) if isinstance(config, HessianConfig) else []
    return not found.lacks(steps, in_order(config.blocks, found.blocks))


def _to_measure(reader: RunReader, config: HessianConfig, steps: Sequence[int]) -> list[int]:
    """The steps of an analysis, unless it names them and has them: of those the run may have lost checkpoints since."""
    measured = set(map(str, steps))
    return [] if {*config.steps.split(",")} <= measured else choose_steps(reader, config.steps, config.num_steps)


def names(jobs: Sequence[Job]) -> Iterator[str]:
    """The names of the files that jobs write."""
    return (path.name for job in jobs for path in job.outputs)
