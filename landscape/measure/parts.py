"""Checkpoints measured by jobs on other machines, each kept in a file until the Hessian file has it."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from landscape.config import AnalysisConfig, to_json
from landscape.files.files import remove_if_empty
from landscape.files.runs import RunReader
from landscape.files.writing import remove_abandoned, temporary_file
from landscape.measure.measurement import Measurement, Rows
from landscape.measure.parallel import Part, Task, apart, measure

_VECTORS = "eigenvectors of"


def folder_of(out: Path) -> Path:
    """The folder of the parts of a Hessian file, beside it."""
    return out.with_name(f".{out.name}.jobs")


def part_file(out: Path, config: AnalysisConfig, task: Task) -> Path:
    """The file of a step's part, whose name says of which checkpoint, problem, settings and blocks it is."""
    what = [*dataclasses.astuple(task.origin), json.loads(to_json(config)), sorted(task.blocks)]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    return folder_of(out) / f"{task.step}-{digest[:16]}.npz"


def write_part(path: Path, run: Path, config: AnalysisConfig, task: Task) -> None:
    """Measure a step, of which no other process writes the part. Raises LandscapeError."""
    rows, vectors = measure(run, config, task)
    flat = {f"{group} {name}": value for group, row in (rows or {}).items() for name, value in row.items()}
    flat |= {f"{_VECTORS} {block}": value for block, value in vectors.items()}
    path.parent.mkdir(exist_ok=True)
    # A killed job on another node, or before a restart, may have had the number of this process.
    remove_abandoned(path)
    size = sum(np.asarray(value).nbytes for value in flat.values())
    with temporary_file(path, size) as draft, draft.open("wb") as file:
        np.savez(file, **flat)


def read_part(path: Path) -> Part | None:
    """A part; None if it is not there."""
    rows: Rows = {}
    vectors = {}
    try:
        with np.load(path, allow_pickle=False) as stored:
            for key in stored.files:
                group, _, name = key.rpartition(" ")
                if group == _VECTORS:
                    vectors[name] = stored[key]
                else:
                    rows.setdefault(group, {})[name] = stored[key]
    except FileNotFoundError:
        return None
    return rows, vectors


def has_parts(out: Path) -> bool:
    """Whether steps of a Hessian file were measured by jobs."""
    return any(folder_of(out).glob("*.npz"))


def parts(out: Path, reader: RunReader, measurement: Measurement, tasks: Sequence[Task]) -> Iterator[Part]:
    """The parts of tasks in their order; what is missing is measured."""
    for task in tasks:
        found = None if task.known else read_part(part_file(out, measurement.config, task))
        # A copy: the eigenvectors of the original are those that the next step is tracked from.
        yield found or apart(reader, copy.copy(measurement), task)


def remove_parts(out: Path) -> None:
    """Remove the parts of a Hessian file that has them all."""
    folder = folder_of(out)
    for path in itertools.chain(folder.glob("*.npz"), folder.glob(".*.npz.*.landscape.tmp")):
        path.unlink(missing_ok=True)
    remove_if_empty(folder)
