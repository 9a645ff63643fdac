"""The writer of both kinds of file: appends rows, overwrites slots, and trims the file at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from landscape.files import schema
from landscape.files.contents import Contents
from landscape.files.disk import Disk, TableWriter
from landscape.files.files import open_file, require_writable
from landscape.files.handles import open_marked
from landscape.files.making import Rooms, Rows, new_file, rewrite
from landscape.files.table import Arrays
from landscape.files.writing import temporary_file

SHARE = 0.05
"""Largest share of time spent rewriting the file for rows that replace others."""


class Writer(Disk):
    """Fills a file made by `create` or `extend`; every call returns once its row is committed."""

    def __init__(self, path: Path, fsync: bool = False, made: Contents | None = None) -> None:
        """made: the contents of a new file, which need not be read again; they may be closed."""
        self._replaced: dict[int, Rows] = {}
        self._flushed, self._cost = time.monotonic(), 0.0
        super().__init__(path, fsync)
        if made:
            self._take(made)
        else:
            self._open()

    @classmethod
    def create(
        cls,
        path: Path,
        kind: str,
        attrs: Mapping[str, Any],
        rooms: Rooms,
        scales: schema.Scales,
        arrays: Mapping[str, Arrays] | None = None,
        fsync: bool = False,
    ) -> Self:
        """Allocate a file with room for so many rows of each table, then move it into place.

        Raises ConfigError or FileError for a file that no reader would accept or that does not fit on the disk.
        """
        require_writable(path)
        with new_file(path, kind, attrs, rooms, scales, arrays) as (_, made):
            pass
        return cls(path, fsync, made)

    @classmethod
    def extend(
        cls,
        path: Path,
        attrs: Mapping[str, Any],
        more: Mapping[str, int],
        tables: Sequence[schema.Table] = (),
        scales: schema.Scales | None = None,
        rows: Mapping[int, Rows] | None = None,
        fsync: bool = False,
    ) -> Self:
        """Reopen a file with room for `more` rows of each table; otherwise as `rewrite`."""
        require_writable(path)
        rewrite(path, attrs, more, tables, scales, rows)
        return cls(path, fsync)

    @property
    def steps(self) -> list[int]:
        """Steps committed so far."""
        return self._tables[self._main].labels

    def labels(self, group: str) -> list[int]:
        """Labels of the committed rows of a table."""
        return self.steps if group in self._beside else self._tables[group].labels

    def room(self, group: str) -> int:
        """Rows that a table can still take."""
        return self._tables[group].room - len(self.labels(group))

    def append(self, step: int, rows: Rows) -> None:
        """Commit a step: a row per table of steps, the main one last; a stored step stays as it is."""
        if step in self.steps:
            return
        # A file that was moved still takes rows; of one that was deleted they would be lost.
        if self.is_deleted():
            self.require_there()
        for group in self._beside:
            # Overwrite a row that a killed writer left without its row in the main table.
            self._tables[group].write(len(self.steps), step, rows[group])
        self._tables[self._main].append(step, rows[self._main])

    def append_to(self, group: str, label: int, values: Mapping[str, Any]) -> None:
        """Commit a row of a table with its own labels; a stored row stays as it is."""
        if label not in self._tables[group].labels:
            self._tables[group].append(label, values)

    def save(self, state: Mapping[str, Any]) -> None:
        """Commit the state of the work over the older or torn one of two slots."""
        slot = self._ages.index(min(self._ages))
        self._slots.write(slot, slot, state)
        self._ages[slot] = int(state[self._newest])

    def replace(self, step: int, rows: Rows) -> None:
        """Replace the rows of a step; the old ones stay until `flush` returns."""
        self._replaced[step] = rows
        if SHARE * (time.monotonic() - self._flushed) >= self._cost:
            self.flush()

    def flush(self) -> None:
        """Commit all replaced rows at once by rewriting the file."""
        if self._replaced:
            started = time.monotonic()
            self._rewrite({}, (), None, self._replaced)
            self._replaced = {}
            self._flushed = time.monotonic()
            self._cost = self._flushed - started

    def grow(
        self, more: Mapping[str, int], tables: Sequence[schema.Table] = (), scales: schema.Scales | None = None
    ) -> None:
        """Make room for `more` further rows by group, or other tables as in `rewrite`: the file is written anew."""
        self._rewrite(more, tables, scales, None)

    def restore(self) -> bool:
        """Write a file that was deleted anew, of which this process still has the contents; whether it was deleted.

        Raises FileError where another file is in its place.
        """
        if not self.is_deleted():
            return False
        if self.path.exists():
            self.require_there()
        open_one = Path(f"/proc/self/fd/{self._handle.number}")
        with temporary_file(self.path, os.fstat(self._handle.number).st_size) as draft:
            shutil.copyfile(open_one, draft)
        self._handle.close()
        self._handle = open_marked(self.path)
        self._open()
        return True

    def finish(self, status: str) -> None:
        """Trim the file to its committed rows and set its status."""
        self.flush()
        self._leave()
        rewrite(self.path, {"status": status})

    def _rewrite(
        self,
        more: Mapping[str, int],
        tables: Sequence[schema.Table],
        scales: schema.Scales | None,
        rows: Mapping[int, Rows] | None,
    ) -> None:
        """Write the file anew with the room that it has, and more; one that cannot be is left as it is, and open."""
        room = {group: self.room(group) + more.get(group, 0) for group in self._tables}
        require_writable(self.path)
        self._leave()
        try:
            rewrite(self.path, {}, room, tables, scales, rows)
        finally:
            self._handle = open_marked(self.path)
            self._open()

    def _leave(self) -> None:
        """Close the file, which is to be written anew. Raises FileError if it is no longer at its path."""
        self.require_there()
        self.close()

    def _open(self) -> None:
        with contextlib.closing(open_file(self.path)) as file:
            self._take(file)

    def _take(self, file: Contents) -> None:
        """Take over the tables and their committed rows."""
        self._main = schema.MAIN[file.kind]
        # No cycle: a writer that nobody holds any more lets go of its file at once.
        disk = weakref.proxy(self)
        self._tables = {group: TableWriter(table, disk) for group, table in file.tables.items()}
        self._beside = [group for group in file.by_step if group != self._main]
        for group, table in file.tables.items():
            if newest := table.table.newest:
                self._slots, self._newest = self._tables[group], newest
                found = [table.row(slot) for slot in (0, 1)]
                self._ages = [-1 if row is None else int(row[newest]) for row in found]
