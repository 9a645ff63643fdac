"""Fill files in place: rows at known offsets, each with the commit record that makes it count."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from landscape.errors import FileError
from landscape.files.guard import Stored
from landscape.files.handles import open_marked
from landscape.files.strings import BLOCK
from landscape.files.table import WRITTEN, TableReader, crc32


class Disk:
    """A file that is written in place at given offsets.

    fsync: sync to disk before and after every commit, so that commits survive a power failure.
    """

    def __init__(self, path: Path, fsync: bool = False) -> None:
        self.path, self.fsync = path, fsync
        self._handle = open_marked(path)

    def write(self, offset: int, data: np.ndarray[Any, Any]) -> None:
        """Put an array's bytes at an offset. Raises FileError where the disk fails."""
        left = _bytes(data)
        try:
            while left:
                count = os.pwrite(self._handle.number, left, offset)
                left, offset = left[count:], offset + count
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def sync(self) -> None:
        """With fsync, wait until all writes are on disk."""
        if self.fsync:
            try:
                os.fdatasync(self._handle.number)
            except OSError as error:
                raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Close the file. Raises FileError if it is no longer at its path."""
        if self._handle.number >= 0:
            try:
                self.require_there()
            finally:
                self._handle.close()

    def require_there(self) -> None:
        """Raise FileError unless the file that is being written is the one at its path."""
        # Nothing tells whose file is there once this one is closed, as it is after an error found another in its place.
        if self._handle.number < 0 or not self._is_there():
            raise FileError(
                f"{self.path} was moved, deleted or replaced while it was being written",
                "if it was moved, all that was written is in the moved file; `landscape check --repair` trims it",
            )

    def is_deleted(self) -> bool:
        """Whether the file that is being written has no name any more."""
        return self._handle.number >= 0 and not os.fstat(self._handle.number).st_nlink

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._handle.number), self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            # Of a folder that cannot be searched any more nobody knows what it holds.
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # The first error matters.
        with contextlib.nullcontext() if kind is None else contextlib.suppress(FileError):
            self.close()


class TableWriter:
    """Appends rows to a table; labels are those of the rows committed so far."""

    def __init__(self, table: TableReader, disk: Disk) -> None:
        self.disk, self._group = disk, table.table.group
        self.fields = {f.name: table.stored[f.name] for f in table.table.fields}
        self._label, self._record = table.stored[table.table.row], table.stored["crc32"]
        places = (self._label, self._record, *(place for place in self.fields.values() if place.row_bytes))
        # Compressed or empty datasets have no bytes to write to.
        self.room = min(0 if place.offset is None else place.shape[0] for place in places)
        self.labels = list(table.rows)

    def append(self, label: int, values: Mapping[str, Any]) -> None:
        """Write and commit the next row, which survives the process once this returns."""
        self.write(len(self.labels), label, values)
        self.labels.append(label)

    def write(self, index: int, label: int, values: Mapping[str, Any]) -> None:
        """Write row `index` and commit it. Raises FileError where the disk fails.

        A row beyond the capacity is an error before anything is written.
        """
        if not 0 <= index < self.room:
            raise FileError(
                f"{self.disk.path}: {self._group} has room for {self.room:,} rows, and this is row {index + 1:,}",
                "nothing was overwritten; the same command with --resume makes room (please report this)",
            )
        number = np.array(label, self._label.dtype)
        crc = crc32(number.tobytes())
        for name, place in self.fields.items():
            row = np.ascontiguousarray(values[name], dtype=place.dtype).reshape(place.shape[1:])
            self._put(place, index, row)
            crc = crc32(_bytes(row), crc)
        self.disk.sync()
        self._put(self._label, index, number)
        self._put(self._record, index, np.array(WRITTEN + crc, self._record.dtype))
        self.disk.sync()

    def copy(self, table: TableReader) -> None:
        """Write and commit all rows of another table of the same fields and axes, with the checksums that they have."""
        if self.labels or len(table.rows) > self.room:
            raise ValueError(f"{self._group} takes no {len(table.rows)} rows")
        for name, place in self.fields.items():
            block = max(1, BLOCK // max(1, place.row_bytes))
            for start in range(0, len(table.rows), block):
                self._put(place, start, table.column(name, slice(start, start + block)))
        self.labels = list(table.rows)
        self._put(self._label, 0, np.array(self.labels, self._label.dtype))
        self._put(self._record, 0, np.array([table.record(label) for label in self.labels], self._record.dtype))

    def _put(self, place: Stored, index: int, rows: np.ndarray[Any, Any]) -> None:
        if place.offset is not None:
            self.disk.write(place.offset + index * place.row_bytes, rows)


def cannot_write(path: Path, error: OSError) -> FileError:
    """The error of a failing disk: which data are safe, and how to continue."""
    return FileError(
        f"{path} cannot be written: {error.strerror or error}",
        "what was committed is safe: once the disk works, the same command resumes",
    )


def _bytes(data: np.ndarray[Any, Any]) -> memoryview:
    """The bytes of a contiguous array, without a copy."""
    return data.reshape(-1).view(np.uint8).data
