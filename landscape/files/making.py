"""Make new files with room for their rows; the reader must accept each before it is moved into place."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from landscape.errors import ConfigError, FileError
from landscape.files import schema
from landscape.files.contents import ROWS, Contents, write_attributes
from landscape.files.creating import create_arrays, create_table
from landscape.files.disk import Disk, TableWriter
from landscape.files.files import open_file
from landscape.files.guard import ROW_BYTES, Guard
from landscape.files.layout import to_json
from landscape.files.table import Arrays
from landscape.files.writing import create_hdf5, require_free, temporary_file

Rooms = Sequence[tuple[schema.Table, int]]
"""Tables and their capacity in rows; 0 for groups of whole arrays."""
Rows = Mapping[str, Mapping[str, Any]]
"""Values by group and dataset."""
ATTACHED = 4085
"""Most datasets to which HDF5 can attach one axis, as its list of them is an attribute of at most 64 KiB."""
AXES = 32
"""Most axes of a dataset in HDF5, that of the rows among them."""
_FEWER_TENSORS = "stack parameters of one shape, such as experts, or record or import a part of the model"
_FEWER = {
    "metrics": "raise --metrics-every, or lower --steps",
    **dict.fromkeys(("checkpoints", schema.BUFFERS, "tokens", "moments"), "store fewer checkpoints, or lower --steps"),
}
_SMALLER = {"spectrum": "lower --k", "eigenvectors": "lower --k, or leave out --eigenvectors"}


@contextlib.contextmanager
def new_file(
    path: Path,
    kind: str,
    attrs: Mapping[str, Any],
    rooms: Rooms,
    scales: schema.Scales,
    arrays: Mapping[str, Arrays] | None = None,
) -> Iterator[tuple[Path, Contents]]:
    """A file without rows, open for filling under a temporary name, which becomes `path` when the block ends.

    scales: the labels of all axes except rows; arrays: the content of groups without rows. Raises ConfigError or
    FileError for a file that no reader would accept or that does not fit on the disk.
    """
    size = room_size(path, rooms, scales)
    with temporary_file(path, size) as temporary:
        with create_hdf5(temporary) as file:
            labels = {axis: names for axis, names in scales.items() if isinstance(names, list)}
            write_attributes(file, kind, attrs, to_json([table for table, _ in rooms], labels))
            for table, rows in rooms:
                if table.row:
                    create_table(file, table, rows, scales)
                else:
                    create_arrays(file, table, (arrays or {})[table.group], scales)
        with contextlib.closing(_accepted(temporary, path, kind)) as contents:
            yield temporary, contents


def room_size(path: Path, rooms: Rooms, scales: schema.Scales) -> int:
    """Bytes of all rows of a new file. Raises ConfigError for more than readers accept, and for names that clash."""
    size, groups = 0, [table.group for table, _ in rooms]
    for table, rows in rooms:
        _require_distinct(path, table, groups if table.group == "/" else [])
        if rows > ROWS:
            raise ConfigError(
                f"{path}: {table.group} would have {rows:,} rows; files have at most {ROWS:,}",
                _FEWER.get(table.group, "analyse fewer steps"),
            )
        most = max(Counter(axis for field in table.fields for axis in table.axes(field)).values(), default=0)
        if most >= ATTACHED:
            raise ConfigError(
                f"{path}: {table.group} would hold {most:,} datasets along an axis; at most {ATTACHED - 1:,} fit",
                _FEWER_TENSORS,
            )
        for field in table.fields:
            if len(table.axes(field)) > AXES:
                raise ConfigError(
                    f"{path}: {field.name} has {len(field.dims)} axes; at most {AXES - 1} are stored",
                    "reshape it to fewer axes",
                )
            bytes_ = np.dtype(field.dtype).itemsize * math.prod(len(scales[dim]) for dim in field.dims)
            if table.row and bytes_ > ROW_BYTES:
                raise ConfigError(
                    f"{path}: {field.name} in {table.group} would take {bytes_:,} bytes a step; at most {ROW_BYTES:,}"
                    " are read",
                    _SMALLER.get(table.group, "choose a smaller network"),
                )
            size += bytes_ * (rows if table.row else 1)
        size += 16 * rows
    return size


def _require_distinct(path: Path, table: schema.Table, groups: Sequence[str]) -> None:
    """Raise ConfigError where a dataset has the name of another one, of an axis or of a group in its group."""
    axes = {axis for field in table.fields for axis in table.axes(field)}
    names = Counter([*(field.name for field in table.fields), *axes, *groups, *[schema.COMMIT.name] * bool(table.row)])
    for name, count in names.items():
        if count > 1:
            raise ConfigError(
                f"{path}: {name!r} has another meaning in {table.group}, and can name no block or parameter there",
                "rename it",
            )


def require_room(path: Path, rooms: Rooms, scales: schema.Scales) -> None:
    """Raise ConfigError or FileError, before any work, for a file that could not be made or read."""
    require_free(path, room_size(path, rooms, scales))


def rewrite(
    path: Path,
    attrs: Mapping[str, Any],
    more: Mapping[str, int] | None = None,
    tables: Sequence[schema.Table] = (),
    scales: schema.Scales | None = None,
    rows: Mapping[int, Rows] | None = None,
) -> None:
    """Replace a file by one of its committed rows, with `attrs` set, and room for `more` rows by group.

    Steps with a missing or damaged row in some table are left out, and so are objects outside the layout. tables and
    scales: those of the new file, by default its own; datasets that rows lack are filled with missing values. rows:
    values by step that replace or complete those of the file.
    """
    with contextlib.closing(open_file(path)) as old:
        tables = tables or list(old.layout.values())
        scales = {**old.scales, **(scales or {})}
        whole = sorted(set.intersection(*(set(reader.rows) for reader in old.by_step.values())))
        labels: dict[str, list[int]] = {}
        for table in tables:
            held = list(old.tables[table.group].rows) if table.group in old.tables else []
            labels[table.group] = whole if table.row == schema.STEP else held
        rooms = [(t, 2 if t.newest else len(labels[t.group]) + (more or {}).get(t.group, 0)) for t in tables]
        arrays = {group: reader.read() for group, reader in old.arrays.items()}
        with (
            new_file(path, old.kind, {**old.attrs, **attrs}, rooms, scales, arrays) as (temporary, new),
            Disk(temporary) as disk,
        ):
            for group, made in new.tables.items():
                writer, reader = TableWriter(made, disk), old.tables.get(group)
                is_same = reader and made.table == reader.table and labels[group] == list(reader.rows)
                if reader and is_same and scales == old.scales and not rows and not made.table.newest:
                    writer.copy(reader)
                    continue
                for index, label in enumerate(labels[group]):
                    held_row = reader.row(label) if reader else None
                    row = _fitted(made.table, held_row or {}, old.scales, scales)
                    row |= (rows or {}).get(label, {}).get(group, {})
                    # Slots keep their order, as the older one is overwritten next.
                    writer.write(label if made.table.newest else index, label, row)


def _fitted(table: schema.Table, row: Mapping[str, Any], before: schema.Scales, after: schema.Scales) -> dict[str, Any]:
    """A row with all datasets and axis labels of a table; missing values are NaN, UNKNOWN, or 0 for codes."""
    fitted = {}
    for field in table.fields:
        if field.name in row and all(before[dim] == after[dim] for dim in field.dims):
            fitted[field.name] = row[field.name]
            continue
        fill = np.nan if field.dtype.startswith("f") else schema.UNKNOWN if field.dtype in ("i4", "i8") else 0
        values = np.full([len(after[dim]) for dim in field.dims], fill, field.dtype)
        if field.name in row:
            values[np.ix_(*([list(after[dim]).index(n) for n in before[dim]] for dim in field.dims))] = row[field.name]
        fitted[field.name] = values
    return fitted


def _accepted(temporary: Path, path: Path, kind: str) -> Contents:
    """Open a new file with its reader. Raises FileError if the reader refuses it."""
    guard = Guard(temporary)
    try:
        return Contents(guard, kind)
    except FileError as error:
        guard.close()
        what = str(error).removeprefix(f"{temporary}: ")
        raise FileError(f"{path} would not be readable: {what}", "choose other options, or shorter ones") from error
