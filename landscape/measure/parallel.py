"""Steps measured side by side, each in a process of one thread."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from landscape import models
from landscape.config import AnalysisConfig
from landscape.devices import dense_bytes, free_memory
from landscape.errors import FileError
from landscape.files.runs import RunReader
from landscape.measure.datasets import Row
from landscape.measure.measure import Measured, Progress, eigenvectors, measure
from landscape.measure.measurement import SETTLING, Measurement, Point, Vectors
from landscape.measure.settle import settled
from landscape.models.factory import SEED, Source, unlike_problem
from landscape.models.problem import Arrays
from landscape.workers import tell

_WORTHWHILE = 1000
"""Order of the largest block from which a process pays for its start."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What is done at a step.

    before: the step before, -1 for none; record: the checksum of its checkpoint; is_new: it is measured, else its
    eigenvectors alone are computed; is_tracked: they are compared with those of the step before.
    """

    step: int
    before: int
    record: int
    is_new: bool
    is_tracked: bool


def carried_out(reader: RunReader, what: Measurement, task: Task, start: Vectors, progress: Progress) -> Measured:
    """The untracked rows of a step, if it is new, and the eigenvectors of its blocks."""
    parameters: Arrays = reader.checkpoint(task.step)
    row: Row = {}
    if what.settles:
        progress(SETTLING, False)
        parameters, row = settled(reader, what.problem, what.config, task.step)
        progress(SETTLING, True)
    point = Point(parameters, what.problem.training(reader, task.step), start, row)
    return (measure if task.is_new else eigenvectors)(what, point, progress)


@dataclasses.dataclass(frozen=True)
class Origin:
    """What every process must find in its place: a run, and of the user's problem SHA-256 and checksum."""

    run: Path
    run_id: str
    config: AnalysisConfig
    sha256: str = ""
    checksum: str = ""

    @classmethod
    def of(cls, reader: RunReader, what: Measurement, source: Source | None) -> Self:
        """The run and the problem of this process."""
        of_problem = (source.sha256, source.checksum) if source else ()
        return cls(reader.path, str(reader.attrs["run_id"]), what.config, *of_problem)


def one_by_one(
    reader: RunReader, what: Measurement, tasks: Sequence[Task], progress: Callable[..., object]
) -> Iterator[Measured]:
    """Carry out tasks in this process; matrix-free searches start from the eigenvectors of the step before."""
    start: Vectors = {}
    for task in tasks:
        done = carried_out(reader, what, task, start, functools.partial(progress, step=task.step))
        start = done.vectors
        yield done


def in_worker(origin: Origin, task: Task) -> Measured:
    """Carry out a task in a worker, which tells (block, whether it is done, step).

    Raises FileError if the file at the path, or the source of the problem, is another than that of the task.
    """
    reader, what = _opened(origin)
    _require_same(reader, origin, {task.step: task.record})
    return carried_out(reader, what, task, {}, lambda block, is_done: tell((block, is_done, task.step)))


def processes(what: Measurement, tasks: int, wanted: int | None) -> int:
    """How many processes to use: `wanted`, or one per core as far as memory has room, and no more than tasks.

    0: none but this one. Matrix-free blocks, whose searches start from the checkpoint before, have no use for more, and
    small ones would wait for the start of a process. Even a single process is another one: a library that has begun
    with several threads adds in another order.
    """
    if wanted == 0 or what.problem.device.type != "cpu" or not what.depends_on_no_other:
        return 0
    if wanted is None:
        largest = max(map(what.order, what.blocks))
        if largest < _WORTHWHILE:
            return 0
        room = free_memory(what.problem.device) // dense_bytes(largest)
        wanted = max(1, min(room, len(os.sched_getaffinity(0))))
    return min(wanted, tasks)


@functools.lru_cache(maxsize=1)
def _opened(origin: Origin) -> tuple[RunReader, Measurement]:
    with contextlib.ExitStack() as refused:
        reader = refused.enter_context(RunReader(origin.run))
        _require_same(reader, origin, {})
        problem, source = models.opened(reader, origin.config)
        name = origin.config.problem
        if source and source.sha256 != origin.sha256:
            raise FileError(
                f"the source of --problem {name} was changed during the analysis",
                "change it back and repeat the command, or use --overwrite to measure the problem as it is now",
            )
        if source and (differs := unlike_problem(origin.checksum, source.checksum)):
            raise FileError(
                f"--problem {name} makes another problem in each process: the {differs} is not the same", SEED
            )
        refused.pop_all()
    return reader, Measurement.of(problem, origin.config)


def _require_same(reader: RunReader, origin: Origin, records: Mapping[int, int]) -> None:
    """Raise FileError for another run than the analysis began with; others may have moved one to the same path."""
    if wrong := reader.disowns({"parent_run_id": origin.run_id}, records):
        raise FileError(
            f"{reader.path} was replaced during the analysis: {wrong}",
            "put the former run back and repeat the command, or use --overwrite to measure the one that is there now",
        )
