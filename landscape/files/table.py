"""Tables in HDF5: preallocated contiguous datasets, committed row by row.

All space is allocated when the file is made, so that no metadata changes afterwards. A row is committed once its
checksum, written last, matches its bytes. A process killed at any time leaves a valid file with every committed row.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from landscape.errors import FileError, StepError
from landscape.files import schema
from landscape.files.guard import Array, Stored
from landscape.files.strings import BLOCK, COPY_AGAIN
from landscape.text import first_few

try:
    # The same number in a tenth of the time.
    from isal.isal_zlib import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32

WRITTEN = 1 << 32
Arrays = Mapping[str, Array]
_PACKED = 1 << 16
"""Bytes of a row that are put together for its checksum; of more, the copy takes longer than the calls."""


def crc32_of_arrays(arrays: Arrays) -> int:
    """CRC-32 of the bytes of arrays one after another, in alphabetical order of their names."""
    crc = 0
    for name in sorted(arrays):
        crc = crc32(np.ascontiguousarray(arrays[name]).data, crc)
    return crc


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
        for together in self._blocks():
            rows = max(1, BLOCK // max(1, sum(data.row_bytes for data in together)))
            for start in range(0, count, rows):
                parts = [_bytes_by_row(data.read(start, min(start + rows, count))) for data in together]
                for i, row in enumerate(np.hstack(parts) if len(parts) > 1 else parts[0], start):
                    crcs[i] = crc32(row.data, crcs[i])
        return [WRITTEN + crc for crc in crcs]

    def _blocks(self) -> list[list[Stored]]:
        """The datasets in their order, small ones in groups: a row of a group takes one checksum instead of many."""
        blocks: list[list[Stored]] = []
        room = 0
        for data in map(self.stored.__getitem__, self._names):
            room -= data.row_bytes
            if room < 0 or not blocks:
                blocks.append([])
                room = _PACKED - data.row_bytes
            blocks[-1].append(data)
        return blocks

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
    """A group of whole, checked arrays, and their checksum."""

    def __init__(self, path: Path, table: schema.Table, stored: Mapping[str, Stored], crc32: int) -> None:
        self.path, self.table, self.stored, self._crc32 = path, table, stored, crc32

    def read(self) -> dict[str, Array]:
        """The arrays by name. Raises FileError if they fail their checksum."""
        found = {name: stored.read() for name, stored in self.stored.items()}
        if self._crc32 != crc32_of_arrays(found):
            raise FileError(f"{self.path}: {self.table.group} fails its checksum", COPY_AGAIN)
        return found


def _bytes_by_row(rows: Array) -> Array:
    """The bytes of some rows, (row, byte)."""
    return rows.reshape(len(rows), -1).view(np.uint8)
