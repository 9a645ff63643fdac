"""Tables in HDF5: preallocated contiguous datasets, committed row by row.

All space is allocated when the file is made, so that no metadata changes afterwards. A row is committed once its
checksum, written last, matches its bytes. A process killed at any time leaves a valid file with every committed row.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from landscape.errors import FileError
from landscape.storage import schema
from landscape.storage.guard import Array, Stored
from landscape.storage.strings import BLOCK, COPY_AGAIN

try:
    # The same number in a tenth of the time.
    from isal.isal_zlib import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32

WRITTEN = 1 << 32
Arrays = Mapping[str, Array]


def create_table(parent: h5py.Group, table: schema.Table, capacity: int, scales: schema.Scales) -> None:
    """Allocate a table of `capacity` rows; `scales` has the labels of every axis except rows."""
    group = parent.require_group(table.group)
    add_scale(group, table.row, range(capacity) if table.newest else np.full(capacity, -1, "i8"))
    for field in (*table.fields, schema.COMMIT):
        add_dataset(group, table, field, scales, (capacity,))
    group["crc32"].attrs["fields"] = " ".join(f.name for f in table.fields)


def create_arrays(parent: h5py.Group, table: schema.Table, arrays: Arrays, scales: schema.Scales) -> None:
    """Write a group of whole arrays and their checksum."""
    group = parent.create_group(table.group)
    for field in table.fields:
        add_dataset(group, table, field, scales)[...] = arrays[field.name]
    group.attrs["crc32"] = crc32_of_arrays(arrays)


def crc32_of_arrays(arrays: Arrays) -> int:
    """CRC-32 of the bytes of arrays one after another, in alphabetical order of their names."""
    crc = 0
    for name in sorted(arrays):
        crc = crc32(np.ascontiguousarray(arrays[name]).data, crc)
    return crc


def add_dataset(
    group: h5py.Group, table: schema.Table, field: schema.Field, scales: schema.Scales, rows: tuple[int, ...] = ()
) -> h5py.Dataset:
    """One contiguous dataset, allocated at once, with units, description and a scale on each axis."""
    dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    dcpl.set_layout(h5py.h5d.CONTIGUOUS)
    dcpl.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    shape = (*rows, *(len(scales[dim]) for dim in field.dims))
    data = group.create_dataset(field.name, shape, field.dtype, dcpl=dcpl, track_times=False)
    data.attrs.update(field.description)
    for axis, dim in enumerate(table.axes(field)):
        if dim not in group:
            add_scale(group, dim, scales[dim])
        data.dims[axis].attach_scale(group[dim])
    return data


def add_scale(group: h5py.Group, name: str, labels: np.ndarray[Any, Any] | range | list[str]) -> None:
    """The labels of one axis, as a dimension scale."""
    is_text = isinstance(labels, list)
    labels = np.arange(len(labels)) if isinstance(labels, range) else labels
    scale = group.create_dataset(name, data=labels, dtype=h5py.string_dtype() if is_text else None, track_times=False)
    scale.attrs.update(describe_axis(name, is_text))
    scale.make_scale(name)


def describe_axis(name: str, is_text: bool) -> dict[str, object]:
    """The attributes of the labels of an axis."""
    return {"units": "1", "long_name": f"{name.replace('_', ' ')} {'name' if is_text else 'index'}"}


def listed(labels: Sequence[int]) -> str:
    """The steps of a message."""
    more = f" and {len(labels) - 20} more" if len(labels) > 20 else ""
    return f"step {', '.join(map(str, labels[:20]))}{more}" if labels else ""


class Row(dict[str, Any]):
    """Values by name; looking up a missing one raises a FileError that names it."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise FileError(f"{self.path} holds no {name}", "what wrote it did not know it: make the file anew")


class TableReader:
    """The committed rows of a checked table at the time it was opened."""

    def __init__(self, path: Path, table: schema.Table, stored: Mapping[str, Stored], is_live: bool) -> None:
        self.path, self.table, self.stored = path, table, stored
        # Read the checksums first: during writing, a row is whole once its checksum is there.
        self._records = stored["crc32"].read()
        self._labels = stored[table.row].read()
        # In a finished file all rows are written; during writing, a row without a whole checksum is not.
        self._written = self._records >= (WRITTEN if is_live else 0)

    @functools.cached_property
    def rows(self) -> dict[int, int]:
        """Index of every committed row by label, ascending. Raises FileError for invalid labels."""
        checksums = self._checksums()
        written = np.flatnonzero(self._written)
        found = sorted((int(self._labels[i]), int(i)) for i in written if int(self._records[i]) == checksums[i])
        labels = [label for label, _ in found]
        if len(set(labels)) < len(labels) or labels and labels[0] < 0:
            raise self._refuse(f"a negative or repeated step: {listed(labels)}")
        return dict(found)

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
        found = []
        for i in map(int, np.flatnonzero(self._written & (self._labels == label))):
            rows = {f.name: self.stored[f.name].read(i, i + 1) for f in self.table.fields}
            crc = functools.reduce(lambda crc, row: crc32(row.data, crc), rows.values(), crc32(self._labels[i]))
            if int(self._records[i]) == WRITTEN + crc:
                found.append({name: row[0] for name, row in rows.items()})
        if len(found) > 1:
            raise self._refuse(f"repeated step {label}")
        return Row(self.path, self._known(found[0])) if found else None

    def newest(self) -> dict[str, Any] | None:
        """The newer valid slot of two; None if both fail their checksums."""
        found = [row for slot in (0, 1) if (row := self.row(slot)) is not None]
        return max(found, key=lambda row: int(row[self.table.newest]), default=None)

    def record(self, label: int) -> int:
        """The checksum of a committed row."""
        return int(self._records[self.rows[label]])

    def last(self, label: int) -> dict[str, Any] | None:
        """The last row with at most this label; None without one, or if a damaged row may be the last."""
        before = [found for found in self.rows if found <= label]
        if not before:
            return None
        # Rows are in the order of their labels; the label of a damaged row may be wrong.
        following = self.rows[before[-1]] + 1
        is_damaged = self._written[following : following + 1].any() and following not in self.rows.values()
        return None if is_damaged else self.row(before[-1])

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """All committed rows by dataset, labels first, in the order of the labels."""
        return Row(self.path, {name: self.column(name) for name in (self.table.row, *self._names)})

    def column(self, name: str, at: int | slice = slice(None)) -> np.ndarray[Any, Any]:
        """Some committed rows of one dataset, indexed in the order of their labels."""
        index = np.array(list(self.rows.values()), dtype=int)[at]
        first, last = (int(index.min()), int(index.max())) if index.size else (0, -1)
        values = self.stored[name].read(first, last + 1)
        if not np.array_equal(index, np.arange(first, last + 1)):
            values = values[index - first]
        return np.asarray(self._known({name: values})[name])

    @property
    def _names(self) -> list[str]:
        return [f.name for f in self.table.fields]

    def _checksums(self) -> list[int]:
        """The expected checksum of each row, up to the last one written."""
        count = int(np.flatnonzero(self._written).max(initial=-1)) + 1
        crcs = [crc32(label) for label in self._labels[:count]]
        for name in self._names:
            data = self.stored[name]
            rows = max(1, BLOCK // max(1, data.row_bytes))
            for start in range(0, count, rows):
                block = data.read(start, min(start + rows, count))
                for i, row in enumerate(block.reshape(len(block), -1), start):
                    crcs[i] = crc32(row.data, crcs[i])
        return [WRITTEN + crc for crc in crcs]

    def _known(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values. Raises FileError for codes without a meaning."""
        for field in self.table.fields:
            codes: Any = field.attrs.get("flag_values")
            if codes is not None and field.name in values and not np.isin(values[field.name], codes).all():
                raise self._refuse(f"{field.name} with values other than {codes}")
        return values

    def _refuse(self, what: str) -> FileError:
        return FileError(f"{self.path}: {self.table.group} holds {what}", COPY_AGAIN)


class ArraysReader:
    """A group of whole, checked arrays. crc32: None in files without it."""

    def __init__(self, path: Path, table: schema.Table, stored: Mapping[str, Stored], crc32: int | None) -> None:
        self.path, self.table, self._stored, self._crc32 = path, table, stored, crc32

    def read(self) -> dict[str, Array]:
        """The arrays by name. Raises FileError if they fail their checksum."""
        found = {name: stored.read() for name, stored in self._stored.items()}
        if self._crc32 not in (None, crc32_of_arrays(found)):
            raise FileError(f"{self.path}: {self.table.group} fails its checksum", COPY_AGAIN)
        return found
