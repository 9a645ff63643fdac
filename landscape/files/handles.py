"""Descriptors of files that one process writes, and the mark that such a file bears under all of its names."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import weakref
from pathlib import Path

_MARK = 1 << 62
"""The byte that is locked to mark a file: beyond its end, and none that another program would lock by itself."""
_FLOCK = "hhqqi4x"
"""The struct flock of fcntl(2): kind, whence, start, length, process."""


class Handle:
    """An open descriptor, which children made by fork lose: their copies would keep its locks when this process ends.

    number: -1 once it is closed.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        _open.add(self)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self.number >= 0:
            number, self.number = self.number, -1
            os.close(number)

    def __del__(self) -> None:
        # Of a recorder that a notebook forgot to close, so that it can be opened again.
        self.close()


def open_marked(path: Path) -> Handle:
    """Open a file for writing, and mark it until the handle is closed."""
    handle = Handle(os.open(path, os.O_RDWR))
    # Shared, as some file systems would else keep HDF5 from reading. Where there are no such locks, as on systems other
    # than Linux, that of the name has to do.
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(handle.number, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK))
    return handle


def is_marked(path: Path) -> bool:
    """Whether a file is open for writing here or in another process, whatever it was called when it was opened."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            found = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, _lock(fcntl.F_WRLCK))
        finally:
            os.close(handle)
    except (OSError, AttributeError):
        return False
    kind, _, start, *_ = struct.unpack(_FLOCK, found)
    # Locks of other programs are of other bytes, too.
    return bool(kind != fcntl.F_UNLCK and start == _MARK)


def _lock(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, _MARK, 1, 0)


_open: weakref.WeakSet[Handle] = weakref.WeakSet()


def _lose_all() -> None:
    for handle in list(_open):
        handle.close()


os.register_at_fork(after_in_child=_lose_all)
