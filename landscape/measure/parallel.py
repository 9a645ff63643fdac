"""Checkpoints measured side by side, each in a process of one thread."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, from_numpy

from landscape import models
from landscape.config import AnalysisConfig
from landscape.devices import dense_bytes, free_memory
from landscape.errors import FileError
from landscape.files.runs import RunReader
from landscape.measure.measurement import Measurement, Rows
from landscape.models.factory import SEED, unlike_problem
from landscape.workers import tell

Part = tuple[Rows | None, dict[str, NDArray[Any]]]
"""Untracked rows of a step, and its eigenvectors by block."""
_WORTHWHILE = 1000
"""Order of the largest block from which a process pays for its start."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """What the rows of a step are of: a run, its checkpoint's checksum; of the user's problem SHA-256 and checksum."""

    run_id: str
    record: int
    source: str = ""
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Task:
    """What is to be done at a step: blocks to measure, and blocks whose eigenvectors the next step is tracked from.

    known: rows of an earlier analysis; retrack: replace their tracking. Without `todo` only eigenvectors are computed.
    """

    step: int
    origin: Origin
    todo: frozenset[str]
    again: frozenset[str]
    known: Rows | None
    retrack: bool

    @property
    def blocks(self) -> frozenset[str]:
        """All blocks that work is done for."""
        return self.todo | self.again


def measured(reader: RunReader, measurement: Measurement, task: Task) -> Rows | None:
    """The rows of a step; None if only its eigenvectors were to be computed."""
    parameters = reader.checkpoint(task.step)
    if not task.todo:
        measurement.follow(parameters, task.again)
        return None
    training = measurement.problem.training(reader, task.step)
    return measurement.run(parameters, training, task.known, task.blocks, task.retrack)


def processes(measurement: Measurement, tasks: int, wanted: int | None) -> int:
    """How many processes to use: `wanted`, or one per core as far as memory has room, and no more than tasks.

    0: none but this one. Matrix-free blocks, whose searches start from the checkpoint before, have no use for more, and
    small ones would wait for the start of a process. Even a single process is another one: a library that has begun
    with several threads adds in another order.
    """
    sizes = [measurement.order(block) for block in measurement.config.blocks]
    if wanted == 0 or measurement.problem.device.type != "cpu" or not all(map(measurement.config.is_dense, sizes)):
        return 0
    if wanted is None:
        if max(sizes) < _WORTHWHILE:
            return 0
        room = free_memory(measurement.problem.device) // dense_bytes(max(sizes))
        wanted = max(1, min(room, len(os.sched_getaffinity(0))))
    return min(wanted, tasks)


def measure(run: Path, config: AnalysisConfig, task: Task) -> Part:
    """Carry out a task in a worker, which tells (block, whether it is done, step).

    Raises FileError if the file at the path, or the source of the problem, is another than that of the task.
    """
    reader, measurement = _opened(run, config, task.origin.run_id, task.origin.source, task.origin.problem)
    _require_same(reader, task.origin.run_id, {task.step: task.origin.record})
    measurement.progress = lambda block, done: tell((block, done, task.step))
    return apart(reader, measurement, task)


def apart(reader: RunReader, measurement: Measurement, task: Task) -> Part:
    """Carry out a task without the checkpoint before: untracked rows, and eigenvectors."""
    measurement.vectors = {}
    rows = measured(reader, measurement, task)
    return rows, {block: vectors.cpu().numpy() for block, vectors in measurement.vectors.items()}


def tracked(measurement: Measurement, task: Task, part: Part) -> Rows | None:
    """The rows of a task that was done apart, tracked from the step before."""
    rows, arrays = part
    vectors: dict[str, Tensor] = {block: from_numpy(array) for block, array in arrays.items()}
    return measurement.tracked(rows, vectors, task.known, task.retrack)


@functools.lru_cache(maxsize=1)
def _opened(run: Path, config: AnalysisConfig, run_id: str, source: str, made: str) -> tuple[RunReader, Measurement]:
    with contextlib.ExitStack() as refused:
        reader = refused.enter_context(RunReader(run))
        _require_same(reader, run_id, {})
        problem, found = models.opened(reader, config)
        if found and found.sha256 != source:
            raise FileError(
                f"the source of --problem {config.problem} was changed during the analysis",
                "change it back and repeat the command, or use --overwrite to measure the problem as it is now",
            )
        if found and (differs := unlike_problem(made, found.checksum)):
            raise FileError(
                f"--problem {config.problem} makes another problem in each process: the {differs} is not the same", SEED
            )
        refused.pop_all()
    return reader, Measurement(problem, config)


def _require_same(reader: RunReader, run_id: str, records: Mapping[int, int]) -> None:
    """Raise FileError for another run than the analysis began with; others may have moved one to the same path."""
    if wrong := reader.disowns({"parent_run_id": run_id}, records):
        raise FileError(
            f"{reader.path} was replaced during the analysis: {wrong}",
            "put the former run back and repeat the command, or use --overwrite to measure the one that is there now",
        )
