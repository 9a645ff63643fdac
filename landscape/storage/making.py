"""New files with room for their rows, which the reader has accepted before they are put in place."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from landscape.config import TrainConfig
from landscape.errors import ConfigError, FileError
from landscape.storage import schema
from landscape.storage.contents import ROWS, Contents, plan_run, write_attributes, write_data
from landscape.storage.guard import ROW_BYTES, Array, Guard
from landscape.storage.table import Scales, create_table
from landscape.storage.writing import create_hdf5, require_free, temporary_file

Rooms = Sequence[tuple[schema.Table, int]]
"""Tables, and the rows that each has room for."""
_FEWER = {
    "metrics": "raise --metrics-every, or lower --steps",
    **dict.fromkeys(("checkpoints", "tokens", "moments"), "store fewer checkpoints, or lower --steps"),
}


@contextlib.contextmanager
def new_file(
    path: Path,
    kind: str,
    attrs: Mapping[str, Any],
    rooms: Rooms,
    scales: Scales,
    dtype: str = "f8",
    data: Mapping[str, Array] | None = None,
) -> Iterator[tuple[Path, Contents]]:
    """A file without rows, open for filling under a temporary name, which becomes `path` when the block ends.

    Raises ConfigError, before anything is made, and FileError for what no reader would take, or the disk has no room
    for.
    """
    data = data or {}
    size = room_size(path, rooms, {axis: len(labels) for axis, labels in scales.items()}, dtype)
    size += sum(array.nbytes for array in data.values())
    with temporary_file(path, size) as temporary:
        with create_hdf5(temporary) as file:
            write_attributes(file, kind, attrs)
            for table, rows in rooms:
                create_table(file, table, rows, scales, dtype)
            if data:
                write_data(file, data, scales)
        with contextlib.closing(_accepted(temporary, path, kind)) as contents:
            yield temporary, contents


def room_size(path: Path, rooms: Rooms, lengths: Mapping[str, int], dtype: str) -> int:
    """Bytes of the rows of the tables of a new file. Raises ConfigError for more than readers take."""
    size = 0
    for table, rows in rooms:
        if rows > ROWS:
            raise ConfigError(
                f"{path}: {table.group} would have {rows:,} rows; files have at most {ROWS:,}",
                _FEWER.get(table.group, "analyse fewer steps"),
            )
        for field in table.fields:
            item = np.dtype(dtype if field.dtype == schema.PARAM else field.dtype).itemsize
            row = item * math.prod(lengths[dim] for dim in field.dims)
            if row > ROW_BYTES:
                raise ConfigError(
                    f"{path}: {field.name} in {table.group} would take {row:,} bytes a step; at most {ROW_BYTES:,}"
                    " are read",
                    "choose a smaller network, a lower --k, or leave out --eigenvectors",
                )
            size += row * rows
        size += 16 * rows
    return size


def check_run(path: Path, config: TrainConfig, rows: Mapping[str, int]) -> None:
    """Raise ConfigError or FileError for a run whose file could not be made or read, before any of its work is done."""
    plan = plan_run(config)
    rooms = [(table, rows.get(table.group, 2)) for table in plan.tables]
    size = room_size(path, rooms, plan.lengths, plan.parameter)
    for field in schema.DATA:
        size += np.dtype(field.dtype).itemsize * math.prod(plan.lengths[dim] for dim in field.dims)
    require_free(path, size)


def _accepted(temporary: Path, path: Path, kind: str) -> Contents:
    """A new file as its reader finds it. Raises FileError in the reader's words where it finds it wanting."""
    guard = Guard(temporary)
    try:
        return Contents(guard, kind)
    except FileError as error:
        guard.close()
        what = str(error).removeprefix(f"{temporary}: ")
        raise FileError(f"{path} would not be readable: {what}", "choose other options, or shorter ones") from error
