"""Write a run file: all its room is made at once; then rows are filled in place, and each counts by its record.

1. The number of rows is known, so that every dataset is made at full size, contiguous and allocated, in a temporary
   file, which is renamed once all of its space is reserved. From then on no metadata of HDF5 changes.
2. A row is written by plain writes at known offsets, then its label and its record: 2^32 + CRC-32 of its bytes. A
   process killed at any instant leaves a file that opens everywhere and holds every row whose `append` returned.
3. What goes on resumes from the newer of two slots, of which the older is overwritten.
4. A file gets more room, or is trimmed at its end, by being written anew and renamed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np

from landscape.errors import ConfigError, FileError
from landscape.files import schema
from landscape.files.files import require_writable
from landscape.files.groups import add_dataset, add_scale, describe_axis
from landscape.files.hdf5 import new_hdf5
from landscape.files.rows import BLOCK, ROWS, Array, Arrays, RunTables, arrays_crc32, checksums
from landscape.files.writing import cannot_write, require_free, reserve, temporary_file

Rooms = Sequence[tuple[schema.Table, int]]
"""Tables and their capacity in rows; 0 for groups of whole arrays."""
ROW_BYTES = 1 << 30
"""Largest row of a dataset."""
ATTACHED = 4085
"""Most datasets to which HDF5 can attach one axis, as its list of them is an attribute of at most 64 KiB."""
AXES = 32
"""Most axes of a dataset in HDF5, that of the rows among them."""
_HEADER = 4096
"""More bytes than the name, axes and attributes of a dataset take in a file."""
_FEWER_TENSORS = "stack parameters of one shape, such as experts, or record or import a part of the model"
_FEWER = {"metrics": "raise --metrics-every, or lower --steps"}


@dataclasses.dataclass
class _Places:
    """Where the rows of a table go: offset, type and shape of each dataset by name, that of the label first."""

    table: schema.Table
    room: int
    of: dict[str, tuple[int, np.dtype[Any], tuple[int, ...]]]
    labels: list[int]


class Writer:
    """Fills a file made by `create` or `extend`; every call returns once its row is committed.

    fsync: sync to disk before and after every commit, so that rows survive a loss of power too.
    """

    def __init__(self, path: Path, places: Mapping[str, _Places]) -> None:
        self.path, self.fsync, self._places = path, False, dict(places)
        self._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        # At once where nobody holds the writer any more, as in a notebook.
        self.close = weakref.finalize(self, os.close, self._handle)
        self._beside = [g for g, p in places.items() if p.table.row == schema.STEP and g != schema.MAIN]
        self._ages = [-1, -1]

    @classmethod
    def create(
        cls,
        path: Path,
        attrs: Mapping[str, Any],
        rooms: Rooms,
        scales: schema.Scales,
        arrays: Mapping[str, Arrays] | None = None,
        fsync: bool = False,
    ) -> Writer:
        """Make a file with room for so many rows of each table, and the arrays of groups without rows.

        Raises ConfigError or FileError for a file that no reader would accept or that does not fit on the disk.
        """
        with new_run(path, attrs, rooms, scales, arrays) as writer:
            pass
        writer.fsync = fsync
        return writer

    @classmethod
    def extend(
        cls,
        path: Path,
        attrs: Mapping[str, Any],
        more: Mapping[str, int],
        tables: Sequence[schema.Table] = (),
        scales: schema.Scales | None = None,
        state: Mapping[str, Any] | None = None,
        fsync: bool = False,
    ) -> Writer:
        """Write a file anew: its committed rows, and room for `more` rows by group.

        Steps that some table lacks are left out. tables, scales: those of the new file, by default its own; datasets
        that the file lacks are filled with missing values. state: values that replace those of the slots.
        """
        with contextlib.closing(RunTables(path)) as old:
            tables = tables or list(old.layout.values())
            steps = sorted(set.intersection(*(set(rows.rows) for rows in old.by_step.values())))
            labels = {g: steps if rows.label == schema.STEP else list(rows.rows) for g, rows in old.tables.items()}
            labels = {table.group: labels.get(table.group, steps * (table.row == schema.STEP)) for table in tables}
            rooms = [(t, 2 if t.newest else len(labels[t.group]) + more.get(t.group, 0)) for t in tables]
            arrays = {group: old.arrays(group) for group in old.groups if group not in old.tables}
            with new_run(path, {**old.attrs, **attrs}, rooms, {**old.scales, **(scales or {})}, arrays) as writer:
                for table in (table for table in tables if table.row):
                    if table.newest:
                        for slot in old.tables[table.group].slots():
                            writer.save({**slot, **(state or {})})
                    else:
                        writer._copy(old, table, labels[table.group])
        writer.fsync = fsync
        return writer

    @property
    def steps(self) -> list[int]:
        """Steps committed so far."""
        return self._places[schema.MAIN].labels

    def labels(self, group: str) -> list[int]:
        """Labels of the committed rows of a table."""
        return self.steps if group in self._beside else self._places[group].labels

    def room(self, group: str) -> int:
        """Rows that a table can still take."""
        return self._places[group].room - len(self.labels(group))

    def append(self, step: int, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Commit a step: a row per table of steps, the main one last; a stored step stays as it is."""
        if step not in self.steps:
            for group in (*self._beside, schema.MAIN):
                # A row that a killed writer left without its row in the main table is overwritten.
                self._write(group, len(self.steps), [step], {n: np.asarray(v)[None] for n, v in rows[group].items()})
            self.steps.append(step)

    def append_to(self, group: str, label: int, values: Mapping[str, Any]) -> None:
        """Commit a row of a table with its own labels; a stored row stays as it is."""
        labels = self._places[group].labels
        if label not in labels:
            self._write(group, len(labels), [label], {name: np.asarray(v)[None] for name, v in values.items()})
            labels.append(label)

    def save(self, state: Mapping[str, Any]) -> None:
        """Commit the state of the work over the older or torn one of two slots."""
        group, places = next((g, p) for g, p in self._places.items() if p.table.newest)
        slot = self._ages.index(min(self._ages))
        self._write(group, slot, [slot], {name: np.asarray(value)[None] for name, value in state.items()})
        self._ages[slot] = int(state[places.table.newest])

    def grow(
        self, more: Mapping[str, int], tables: Sequence[schema.Table] = (), scales: schema.Scales | None = None
    ) -> Writer:
        """The writer of this file with room for `more` further rows by group, or other tables as in `extend`."""
        self.require_there()
        room = {group: self.room(group) + more.get(group, 0) for group in self._places}
        writer = Writer.extend(self.path, {}, room, tables, scales, fsync=self.fsync)
        self.close()
        return writer

    def finish(self, status: str) -> None:
        """Trim the file to its committed rows, set its status, and close it."""
        self.require_there()
        Writer.extend(self.path, {"status": status}, {}).close()
        self.close()

    def require_there(self) -> None:
        """Raise FileError unless the file that is being written is the one at its path."""
        try:
            is_there = os.path.samestat(os.fstat(self._handle), self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            is_there = False
        if not is_there:
            raise FileError(
                f"{self.path} was moved, deleted or replaced while it was being written",
                "if it was moved, all that was written is in the moved file; `landscape check --repair` trims it",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _copy(self, old: RunTables, table: schema.Table, labels: list[int]) -> None:
        """Write the rows of these labels, as far as the old file has them."""
        rows, places = old.tables.get(table.group), self._places[table.group]
        size = sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in places.of.values())
        block = max(1, BLOCK // size)
        at = {label: i for i, label in enumerate(rows.rows)} if rows else {}
        for start in range(0, len(labels), block):
            part = labels[start : start + block]
            columns = {
                name: rows.column(name, [at[label] for label in part])
                if rows and name in rows.data
                else np.full((len(part), *shape), _missing(dtype), dtype)
                for name, (_, dtype, shape) in places.of.items()
                if name != table.row
            }
            self._write(table.group, start, part, columns)
        places.labels += labels

    def _write(self, group: str, index: int, labels: Sequence[int], rows: Mapping[str, Array]) -> None:
        """Write rows from `index` on, then the records that commit them; nothing where they have no room."""
        places = self._places[group]
        # A deleted file would lose the rows; a moved one still takes them.
        if not os.fstat(self._handle).st_nlink:
            self.require_there()
        if index + len(labels) > places.room:
            raise FileError(
                f"{self.path}: {group} has room for {places.room:,} rows, and this is row {index + len(labels):,}",
                "nothing was overwritten; the same command with --resume makes room (please report this)",
            )
        values = {places.table.row: np.array(labels), **rows}
        columns = {
            name: np.ascontiguousarray(values[name], dtype).reshape(len(labels), *shape)
            for name, (_, dtype, shape) in places.of.items()
            if name != schema.COMMIT.name
        }
        columns[schema.COMMIT.name] = checksums(columns.values())
        try:
            label = columns.pop(places.table.row)
            for name, column in columns.items():
                if name == schema.COMMIT.name:
                    self._sync()
                    self._put(places.of[places.table.row], index, label)
                self._put(places.of[name], index, column)
            self._sync()
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _put(self, place: tuple[int, np.dtype[Any], tuple[int, ...]], index: int, column: Array) -> None:
        offset, dtype, shape = place
        at, left = offset + index * dtype.itemsize * math.prod(shape), column.reshape(-1).view(np.uint8).data
        while left:
            count = os.pwrite(self._handle, left, at)
            left, at = left[count:], at + count

    def _sync(self) -> None:
        if self.fsync:
            os.fdatasync(self._handle)


@contextlib.contextmanager
def new_run(
    path: Path,
    attrs: Mapping[str, Any],
    rooms: Rooms,
    scales: schema.Scales,
    arrays: Mapping[str, Arrays] | None = None,
) -> Iterator[Writer]:
    """The writer of a file without rows under a temporary name, which becomes `path` when the block ends.

    Otherwise as `Writer.create`.
    """
    require_writable(path)
    with contextlib.ExitStack() as failing:
        with temporary_file(path, require_room(path, rooms, scales)) as temporary:
            with new_hdf5(temporary, schema.RUN, attrs) as file:
                places = {
                    table.group: places
                    for table, rows in rooms
                    if (places := _create(file, table, rows, scales, (arrays or {}).get(table.group, {})))
                }
            reserve(temporary, temporary.stat().st_size)
            writer = Writer(temporary, places)
            failing.callback(writer.close)
            yield writer
        writer.path = path
        failing.pop_all()


def require_room(path: Path, rooms: Rooms, scales: schema.Scales) -> int:
    """Bytes that a new file takes at most.

    Raises ConfigError for one that no reader accepts, and for names that clash; FileError where the disk has no room.
    """
    size = 0
    for table, rows in rooms:
        axes = Counter(axis for field in table.fields for axis in table.axes(field))
        names = Counter([*(f.name for f in table.fields), *axes.keys(), *[schema.COMMIT.name] * bool(table.row)])
        if twice := [name for name, count in names.items() if count > 1]:
            raise ConfigError(
                f"{path}: {twice[0]!r} has another meaning in {table.group}, and can name no parameter there",
                "rename it",
            )
        if rows > ROWS:
            raise ConfigError(
                f"{path}: {table.group} would have {rows:,} rows; files have at most {ROWS:,}",
                _FEWER.get(table.group, "store fewer checkpoints, or lower --steps"),
            )
        if max(axes.values(), default=0) >= ATTACHED:
            raise ConfigError(
                f"{path}: {table.group} would hold {max(axes.values()):,} datasets along an axis; "
                f"at most {ATTACHED - 1:,} fit",
                _FEWER_TENSORS,
            )
        for field in table.fields:
            if len(table.axes(field)) > AXES:
                raise ConfigError(
                    f"{path}: {field.name} has {len(field.dims)} axes; at most {AXES - 1} are stored",
                    "reshape it to fewer axes",
                )
            length = np.dtype(field.dtype).itemsize * math.prod(len(scales[dim]) for dim in field.dims)
            if table.row and length > ROW_BYTES:
                raise ConfigError(
                    f"{path}: {field.name} in {table.group} would take {length:,} bytes a step; at most {ROW_BYTES:,}"
                    " are read",
                    "choose a smaller network",
                )
            size += length * (rows if table.row else 1)
        size += 16 * rows + _HEADER * (2 + len(table.fields) + len(axes))
        size += sum(8 * len(scales[axis]) for axis in axes if axis != table.row)
    require_free(path, size)
    return size


def _create(
    file: h5py.File, table: schema.Table, capacity: int, scales: schema.Scales, arrays: Arrays
) -> _Places | None:
    """Make a group of datasets; the places of its rows, if it has any."""
    group = file.create_group(table.group)
    for axis in dict.fromkeys(dim for field in table.fields for dim in field.dims):
        add_scale(group, axis, scales[axis])
    if not table.row:
        for field in table.fields:
            add_dataset(group, field.name, field.dims, np.asarray(arrays[field.name], field.dtype), field.description)
        group.attrs["crc32"] = arrays_crc32({f.name: np.asarray(arrays[f.name], f.dtype) for f in table.fields})
        return None
    labels = np.arange(capacity) if table.newest else np.full(capacity, -1)
    add_scale(group, table.row, labels, describe_axis(table.row, "i"))
    of: dict[str, tuple[int, np.dtype[Any], tuple[int, ...]]] = {}
    for field in (schema.Field(table.row, (), "i8", ""), *table.fields, schema.COMMIT):
        shape = tuple(len(scales[dim]) for dim in field.dims)
        if field.name == table.row:
            data = group[table.row]
        else:
            form = ((capacity, *shape), field.dtype)
            data = add_dataset(group, field.name, table.axes(field), form, field.description)
        # Of an empty dataset there is no byte to write.
        of[field.name] = (data.id.get_offset() or 0, data.dtype, shape)
    record = group[schema.COMMIT.name]
    record.attrs["fields"] = " ".join(field.name for field in table.fields)
    if table.newest:
        record.attrs["newest"] = table.newest
    return _Places(table, capacity, of, [])


def _missing(dtype: np.dtype[Any]) -> float:
    """What stands for an unknown number: NaN, UNKNOWN, or 0 for codes."""
    return math.nan if dtype.kind == "f" else schema.UNKNOWN if dtype in ("i4", "i8") else 0
