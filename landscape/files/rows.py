"""Read a run file: tables of rows, of which those count whose commit record matches their bytes.

A record is written after its row, so that a row with a matching one is whole, whatever was killed when. Records are
read when the file is opened, before any row: a reader beside a live writer serves what was committed then.
"""

from __future__ import annotations

import functools
import numbers
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from landscape.errors import FileError, StepError
from landscape.files import schema
from landscape.files.groups import axes_of, described, values_of
from landscape.files.hdf5 import COPY_AGAIN, attribute, complaints, config_of, open_hdf5, root_attributes
from landscape.text import first_few

WRITTEN = 1 << 32
"""A record is this plus the CRC-32 of its row."""
ROWS = 1 << 20
"""Most rows of a table, so that reading stays fast."""
BLOCK = 4 << 20
"""Bytes read at a time."""
_JOINED = 1 << 16
"""Bytes of a row that are put together for its checksum; of more, the copy takes longer than the calls."""

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]


def checksums(columns: Iterable[Array]) -> Array:
    """The record of each row: 2^32 + CRC-32 of its bytes in all columns, one after another."""
    crcs: list[int] = []
    for column in columns:
        rows = bytes_of(column)
        crcs = [zlib.crc32(row, crc) for row, crc in zip(rows, crcs or [0] * len(rows), strict=True)]
    return np.array([WRITTEN + crc for crc in crcs], "u8")


def bytes_of(rows: Array) -> Array:
    """The bytes of some rows, (row, byte)."""
    rows = np.ascontiguousarray(rows)
    return rows.reshape(len(rows), rows[:1].size if len(rows) else 0).view(np.uint8)


def arrays_crc32(arrays: Arrays) -> int:
    """CRC-32 of the bytes of arrays one after another, in alphabetical order of their names."""
    return functools.reduce(
        lambda crc, name: zlib.crc32(np.ascontiguousarray(arrays[name]).data, crc), sorted(arrays), 0
    )


def listed(labels: Sequence[int]) -> str:
    """The steps of a message."""
    return f"step {first_few(list(map(str, labels)), 20)}" if labels else ""


def no_step(path: Path, what: str, step: object, steps: Sequence[int]) -> StepError:
    """The error of a step that a table of a file has no row of."""
    at: Any = step if isinstance(step, numbers.Real) else 0
    near = sorted(sorted(steps, key=lambda s: abs(s - at))[:2])
    return StepError(
        f"{path} holds no {what}step {step!r}", f"the nearest stored steps: {', '.join(map(str, near)) or 'none'}"
    )


class Row(dict[str, Any]):
    """Values by name; looking up a missing one raises a FileError that names it."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise FileError(f"{self.path} holds no {name}", "what wrote it did not know it: make the file anew")


class Rows:
    """The rows of one table, as they were when its file was opened.

    data: its datasets by name, the row's label first.
    """

    def __init__(self, path: Path, group: h5py.Group, is_live: bool) -> None:
        self.path, self.group = path, group.name.removeprefix("/")
        record = group["crc32"]
        axes = axes_of(path, record)
        if len(axes) != 1:
            raise FileError(f"{path} is damaged: the records of {self.group} have {len(axes)} axes", COPY_AGAIN)
        self.label = axes[0]
        fields = str(attribute(path, record, "fields", str) or "").split()
        with complaints(path):
            self.data = {name: group[name] for name in (self.label, *fields)}
            if record.dtype != "u8" or group[self.label].dtype != "i8" or len(record) > ROWS:
                raise ValueError(f"{self.group} has other records than ours, or more than {ROWS:,}")
            if wrong := [n for n, d in self.data.items() if getattr(d, "shape", ())[:1] != record.shape]:
                raise ValueError(f"{self.group}/{wrong[0]} has not {len(record):,} rows")
            self.newest_by = str(attribute(path, record, "newest", str) or "")
            self._records, self._labels = record[:], self.data[self.label][:]
        # In a finished file all rows are written; during writing, a row without a whole record is not.
        self._written = self._records >= (WRITTEN if is_live else 0)
        self.row_bytes = sum(data.dtype.itemsize * int(np.prod(data.shape[1:])) for data in self.data.values())

    @functools.cached_property
    def table(self) -> schema.Table:
        """What the file says of the datasets."""
        fields = tuple(field_of(self.path, data, 1) for name, data in self.data.items() if name != self.label)
        return schema.Table(self.group, self.label, fields, self.newest_by)

    @property
    def room(self) -> int:
        """Rows that there are places for."""
        return len(self._records)

    @functools.cached_property
    def rows(self) -> dict[int, int]:
        """Index of every committed row by label, ascending. Raises FileError for invalid labels."""
        count = int(np.flatnonzero(self._written).max(initial=-1)) + 1
        size, sound = max(1, BLOCK // max(1, self.row_bytes)), []
        for start in range(0, count, size):
            stop = min(start + size, count)
            columns: Iterable[Array] = (self._read(data, slice(start, stop)) for data in self.data.values())
            if self.row_bytes <= _JOINED:
                columns = [np.hstack([bytes_of(column) for column in columns])]
            is_sound = self._written[start:stop] & (checksums(columns) == self._records[start:stop])
            sound += (start + np.flatnonzero(is_sound)).tolist()
        labelled = sorted((int(self._labels[i]), i) for i in sound)
        labels = [label for label, _ in labelled]
        if len(set(labels)) < len(labels) or labels and labels[0] < 0:
            raise FileError(f"{self.path}: {self.group} holds a negative or repeated {listed(labels)}", COPY_AGAIN)
        return dict(labelled)

    @functools.cached_property
    def damaged(self) -> list[int]:
        """Labels, possibly wrong, of rows that fail their checksum."""
        sound = set(self.rows.values())
        return [int(self._labels[i]) for i in np.flatnonzero(self._written) if int(i) not in sound]

    def holds(self, label: int) -> bool:
        """Whether a row of this label was written, damaged or not."""
        return bool((self._written & (self._labels == label)).any())

    def row(self, label: int) -> dict[str, Any] | None:
        """The row of a label by dataset; None if it fails its checksum."""
        for i in map(int, np.flatnonzero(self._written & (self._labels == label))):
            row = {name: self._read(data, slice(i, i + 1)) for name, data in self.data.items()}
            if checksums(row.values())[0] == self._records[i]:
                return Row(self.path, {name: values[0] for name, values in row.items() if name != self.label})
        return None

    def newest(self) -> dict[str, Any] | None:
        """The newer valid slot of two; None if both fail their checksums."""
        slots = self.slots()
        return slots[-1] if slots else None

    def slots(self) -> list[dict[str, Any]]:
        """The valid slots of two, the newer last."""
        return sorted((row for slot in (0, 1) if (row := self.row(slot))), key=lambda row: int(row[self.newest_by]))

    def record(self, label: int) -> int:
        """The checksum of a committed row."""
        return int(self._records[self.rows[label]])

    def last(self, label: int) -> dict[str, Any] | None:
        """The last row with at most this label; None without one, or if a damaged row may be the last."""
        before = [other for other in self.rows if other <= label]
        if not before:
            return None
        # Rows are in the order of their labels; the label of a damaged row may be wrong.
        following = self.rows[before[-1]] + 1
        is_damaged = self._written[following : following + 1].any() and following not in self.rows.values()
        return None if is_damaged else self.row(before[-1])

    def columns(self) -> dict[str, Array]:
        """All committed rows by dataset, labels first, in the order of the labels."""
        return Row(self.path, {name: self.column(name) for name in self.data})

    def column(self, name: str, at: int | slice | Sequence[int] = slice(None)) -> Array:
        """Some committed rows of one dataset, indexed in the order of their labels."""
        index = np.array(list(self.rows.values()), dtype=int)[at]
        first, last = (int(index.min()), int(index.max())) if index.size else (0, -1)
        values = self._read(self.data[name], slice(first, last + 1))
        return values if np.array_equal(index, np.arange(first, last + 1)) else np.asarray(values[index - first])

    def _read(self, data: h5py.Dataset, at: slice) -> Array:
        if not data:
            raise FileError(
                f"{self.path} was closed by close() or at the end of `with`", "open it again, and read it first"
            )
        with complaints(self.path):
            return np.asarray(data[at])


def field_of(path: Path, data: h5py.Dataset, rows: int) -> schema.Field:
    """A dataset's declaration, in the words of the file; rows: how many of its axes are those of the table's rows."""
    attrs = described(path, data)
    texts = {key: str(attrs.pop(key, "")) for key in ("long_name", "units", "formula")}
    return schema.Field(
        data.name.rpartition("/")[2], axes_of(path, data)[rows:], data.dtype.str[1:], attrs=attrs, **texts
    )


class RunTables:
    """An open run file: attrs and config of its root, its tables by group, and the names of all groups."""

    def __init__(self, path: Path) -> None:
        """Raises FileError for a file that is missing, damaged, foreign or of another version."""
        self.path = path
        self.file = open_hdf5(path, schema.RUN)
        try:
            self.attrs = root_attributes(path, self.file)
            self.config = config_of(path, self.attrs)
            groups = [item for item in self.file.values() if isinstance(item, h5py.Group)]
            is_live = self.attrs["status"] == "running"
            self.tables = {
                rows.group: rows for rows in (Rows(path, group, is_live) for group in groups if "crc32" in group)
            }
            self.groups = tuple(group.name.removeprefix("/") for group in groups)
            for group in groups:
                if "crc32" not in group and "crc32" not in group.attrs:
                    raise FileError(f"{path} is damaged: {group.name.removeprefix('/')} has no checksums", COPY_AGAIN)
            main = self.tables.get(schema.MAIN)
            if main is None or main.label != schema.STEP or not isinstance(self.attrs.get("run_id"), str):
                raise FileError(f"{path} has no table of checkpoints, or no run_id", COPY_AGAIN)
        except BaseException:
            self.close()
            raise

    @property
    def by_step(self) -> dict[str, Rows]:
        """The tables with a row a step, by group."""
        return {group: rows for group, rows in self.tables.items() if rows.label == schema.STEP}

    @functools.cached_property
    def layout(self) -> dict[str, schema.Table]:
        """What the file says of each group."""
        return {
            group: self.tables[group].table if group in self.tables else self._whole(group) for group in self.groups
        }

    @functools.cached_property
    def scales(self) -> schema.Scales:
        """The labels of all axes but those of rows: numbers from 0, or words."""
        rows, scales = {table.label for table in self.tables.values()}, {}
        for group in self.groups:
            for name, data in self.file[group].items():
                if isinstance(data, h5py.Dataset) and data.is_scale and name not in rows:
                    is_text = h5py.check_string_dtype(data.dtype) is not None
                    scales[name] = values_of(self.path, data).tolist() if is_text else range(len(data))
        return scales

    def arrays(self, group: str) -> dict[str, Array]:
        """The whole arrays of a group. Raises FileError if they fail their checksum."""
        names = [field.name for field in self.layout[group].fields]
        arrays = {name: values_of(self.path, self.file[group][name]) for name in names}
        if attribute(self.path, self.file[group], "crc32", int) != arrays_crc32(arrays):
            raise FileError(f"{self.path}: {group} fails its checksum", COPY_AGAIN)
        return arrays

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _whole(self, group: str) -> schema.Table:
        datasets = [data for data in self.file[group].values() if isinstance(data, h5py.Dataset) and not data.is_scale]
        return schema.Table(group, "", tuple(field_of(self.path, data, 0) for data in datasets))
