"""Making, holding and replacing files, so that nothing is lost whatever happens to the process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import h5py

from landscape.errors import FileError

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class Writer:
    """A file open for appending; readers may open it meanwhile, `sole_writer` keeps writers out.

    fsync: sync to the disk before and after every commit, so that commits survive a loss of power too.
    """

    def __init__(self, path: Path, fsync: bool = False) -> None:
        self.path, self.fsync = path, fsync
        self._file = h5py.File(path, "r+", locking=False, libver=("earliest", "v108"))
        self._identity = _identity(path)

    def commit_point(self) -> None:
        """Hand over to the operating system, or to the disk, all that was written so far."""
        self._file.flush()
        if self.fsync:
            os.fsync(self._file.id.get_vfd_handle())

    def close(self) -> None:
        """Close the file as it is. Raises FileError if the file is no longer at its path."""
        self._file.close()
        if not self.path.exists() or _identity(self.path) != self._identity:
            raise FileError(
                f"{self.path} was moved or replaced while it was being written",
                "all that was written is in the moved file; `landscape check --repair` trims it",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a failed write closing fails too, and what matters is the first failure.
        with contextlib.nullcontext() if kind is None else contextlib.suppress(OSError, RuntimeError, FileError):
            self._file.close()


def cannot_write(path: Path, error: OSError) -> FileError:
    """The error of a failing disk: what is safe, and how to go on."""
    return FileError(
        f"{path} cannot be written: {error.strerror or error}",
        "what was committed is safe: once the disk works, the same command goes on (`landscape train` with --resume)",
    )


@contextlib.contextmanager
def temporary_file(path: Path) -> Iterator[h5py.File]:
    """A new file that becomes `path`, its disk space claimed, once the block has ended without an error."""
    for abandoned in path.parent.glob(f".{path.name}.*.tmp"):
        abandoned.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    size = 0
    try:
        with h5py.File(temporary, "w", locking=False, libver=("earliest", "v108")) as file:
            yield file
            size = file.id.get_filesize()
        size = temporary.stat().st_size
        # Claim the space, so that a full disk shows now and not in the middle of the work.
        with temporary.open("r+b") as raw:
            os.posix_fallocate(raw.fileno(), 0, size)
            os.fsync(raw.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        if error.errno not in _FULL:
            raise cannot_write(path, error) from error
        free = shutil.disk_usage(path.parent).free
        raise FileError(
            f"{path.parent} has {free:,} bytes free; this file needs {max(size, 1):,}",
            "free some space, write elsewhere with --out, or store fewer checkpoints",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Hold `path` for writing; a second writer is refused. The kernel takes the lock from a process that dies."""
    lock = lock_of(path)
    while True:
        file = lock.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise FileError(f"{path} is being written by another process ({owner(path)})", "wait for it") from None
        # The one who held it last removes the lock file; then this is a lock on nothing.
        if lock.exists() and os.fstat(file.fileno()).st_ino == lock.stat().st_ino:
            break
        file.close()
    with file:
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": platform.node()}))
        file.flush()
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def lock_of(path: Path) -> Path:
    """The lock file of an output, beside it."""
    return path.with_name(path.name + ".lock")


def owner(path: Path) -> str:
    """Process and host that hold `path` for writing; empty if none does."""
    try:
        with lock_of(path).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read() or "starting"
    except OSError:
        pass
    return ""


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
