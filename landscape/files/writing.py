"""Make, lock and replace files without losing committed data, whatever happens to the process.

HDF5 makes a file with all its space; `disk` then writes rows at known offsets by plain writes. No metadata changes
during a run, the library buffers nothing, and a failing disk cannot corrupt the library's state.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import re
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import h5py

from landscape.errors import FileError, mend
from landscape.files.disk import cannot_write
from landscape.files.files import require_name
from landscape.files.handles import Handle, is_marked
from landscape.files.strings import SIGNATURE

_LIMITS = (errno.EFBIG, errno.EDQUOT)
"""Where a disk with bytes free takes none from this user."""
_SPARE = 1 << 20
"""Bytes of a new file beyond what it is expected to take."""
_LOCK_TEXT = b'{"pid": '
"""Prefix of every lock file that is not empty."""
_FOREIGN_LOCK = "another program or user may have made it: move it away, or choose another place"
_ELSEWHERE = "a process that opened it under another name, or whose lock file was removed"


def draft_of(path: Path, kind: str = "tmp") -> Path:
    """A hidden name beside a file or folder, with the name of the program that its drafts are told from others' by."""
    return path.with_name(f".{path.name}.{os.getpid()}.landscape.{kind}")


def abandoned(path: Path) -> Iterator[Path]:
    """What bears the name of a draft of `path`, except links."""
    ours = re.compile(re.escape(f".{path.name}.") + r"\d+\.landscape\.(tmp|old)", re.ASCII)
    with os.scandir(path.parent) as entries:
        names = [e.name for e in entries if ours.fullmatch(e.name) and not e.is_symlink()]
    return (path.with_name(name) for name in names)


@contextlib.contextmanager
def temporary_file(path: Path, size: int) -> Iterator[Path]:
    """A path for a new file of about `size` bytes, which becomes `path` when the block ends without an error.

    A full disk is an error before anything is written; at the end of the block all space is allocated and on disk.
    Owner and permissions of a file that is replaced stay; until then the new one is its maker's alone.
    """
    size += _SPARE
    temporary, replaced = draft_of(path), path.stat() if path.exists() else None
    try:
        # Anything else there, such as a link, is foreign.
        made = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        os.close(os.open(temporary, made, 0o600 if replaced else 0o666))
    except OSError as error:
        raise FileError(f"{temporary} cannot be made: {error.strerror}", mend(error)) from error
    try:
        _claim(temporary, size)
        yield temporary
        _claim(temporary, temporary.stat().st_size)
        if replaced:
            _open_as(temporary, replaced)
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_room(path, size) from error
        if error.errno in _LIMITS:
            raise FileError(f"{path} cannot be made, {size:,} bytes: {error.strerror}", mend(error)) from error
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def create_hdf5(path: Path) -> Iterator[h5py.File]:
    """A new HDF5 file, readable by any HDF5 of the last fifteen years, moved to `path` when the block ends.

    It is made in memory, where unwritten rows take no space, because the library cannot handle a failing disk.
    """
    with open(os.memfd_create("landscape"), "w+b", buffering=0) as memory:
        with h5py.File(memory, "w", libver=("earliest", "v108")) as file:
            yield file
        size = memory.seek(0, os.SEEK_END)
        with path.open("r+b", buffering=0) as target:
            target.truncate(size)
            for start, end in _extents(memory.fileno(), size):
                memory.seek(start)
                target.seek(start)
                while start < end:
                    start += target.write(memory.read(min(end - start, 1 << 22)))


def require_free(path: Path, size: int) -> None:
    """Raise FileError if the disk has no room for a new file."""
    if shutil.disk_usage(path.parent).free < size:
        raise _no_room(path, size)


def _no_room(path: Path, size: int) -> FileError:
    free = shutil.disk_usage(path.parent).free
    return FileError(
        f"{path.parent} has {free:,} bytes free; this file needs {size:,}",
        "free some space, write elsewhere, or store fewer checkpoints",
    )


def _open_as(draft: Path, replaced: os.stat_result) -> None:
    """Give a draft the owner and the permissions of the file that it replaces, as far as this process may."""
    made, mode = draft.stat(), stat.S_IMODE(replaced.st_mode)
    if made.st_uid != replaced.st_uid:
        with contextlib.suppress(OSError):
            os.chown(draft, replaced.st_uid, -1)
    if made.st_gid != replaced.st_gid:
        try:
            os.chown(draft, -1, replaced.st_gid)
        except OSError:
            # The rights were those of another group.
            mode &= ~stat.S_IRWXG
    # Not every file system lets modes be set; there all files have the same.
    if stat.S_IMODE(made.st_mode) != mode:
        draft.chmod(mode)


def remove_abandoned(path: Path, begins: bytes = SIGNATURE) -> None:
    """Remove temporary files that killed writers of `path` left, except links. Requires the lock of its writer.

    begins: of our files, with which or with zeros they begin at every moment of their making; a file of another
    program may bear such a name.
    """
    for draft in filter(Path.is_file, abandoned(path)):
        with contextlib.suppress(OSError):
            with draft.open("rb") as file:
                is_ours = file.read(len(begins)) in (b"", bytes(len(begins)), begins)
            if is_ours:
                draft.unlink()


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Lock `path` for writing. The kernel releases the lock of a process that dies, and its children have none.

    Raises FileError for a second writer, also of a file that was moved here while its writer goes on, and for a foreign
    file in the place of the lock file.
    """
    # Absolute, because the working folder may be another one at the end.
    lock = lock_of(path).absolute()
    while True:
        handle = Handle(_open_lock(lock, os.O_RDWR | os.O_CREAT))
        try:
            _lock(handle.number, path)
            # The last holder may have removed the lock file, so that this locks nothing.
            if os.path.samestat(os.fstat(handle.number), lock.lstat()):
                break
        except FileNotFoundError:
            pass
        except BaseException:
            handle.close()
            raise
        handle.close()
    try:
        os.ftruncate(handle.number, 0)
        os.pwrite(handle.number, json.dumps({"pid": os.getpid(), "host": platform.node()}).encode(), 0)
        if is_marked(path):
            raise FileError(f"{path} is being written by {_ELSEWHERE}", "wait for it, or work on a copy")
        # Here, so that also a command that finds nothing to do removes what a killed one has left.
        remove_abandoned(path)
        yield
    finally:
        try:
            # Where someone removed the lock file, the one that is there now is of another writer.
            with contextlib.suppress(FileNotFoundError):
                if handle.number >= 0 and os.path.samestat(os.fstat(handle.number), lock.lstat()):
                    lock.unlink()
        finally:
            # A process that continues after Ctrl-C, such as a notebook, must not keep the lock.
            handle.close()


def lock_of(path: Path) -> Path:
    """The lock file of an output, beside it. Raises FileError for an output without a name."""
    return require_name(path).with_name(path.name + ".lock")


def owner(path: Path) -> str:
    """Process and host that hold the lock of `path`, or that it is written under another name; empty if neither."""
    with contextlib.suppress(FileError):
        handle = _open_lock(lock_of(path), os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(handle) or "starting"
        except OSError:
            pass
        finally:
            os.close(handle)
    return _ELSEWHERE if is_marked(path) else ""


def _open_lock(lock: Path, flags: int) -> int:
    """Open a lock file, without following links, waiting for pipes or touching other files."""
    try:
        handle = os.open(lock, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        hint = mend(error) if error.errno == errno.ENAMETOOLONG else _FOREIGN_LOCK
        raise FileError(f"{lock} cannot be used as a lock: {why}", hint) from error
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
            raise FileError(f"{lock} cannot be used as a lock: it is no plain file of its own", _FOREIGN_LOCK)
        # A kill may have truncated the text.
        said = os.pread(handle, len(_LOCK_TEXT), 0)
        if said != _LOCK_TEXT[: len(said)]:
            raise FileError(f"{lock} cannot be used as a lock: it holds something else", _FOREIGN_LOCK)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _lock(handle: int, path: Path) -> None:
    """Take a lock. Raises FileError if another process has it."""
    for pause in (0.0, 0.01, 0.1):
        # `owner` holds the lock for an instant only.
        time.sleep(pause)
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except OSError as error:
            raise FileError(f"{path} cannot be locked: {error.strerror}", mend(error)) from error
    by = _holder(handle) or "starting"
    raise FileError(f"{path} is being written by another process ({by})", "wait for it") from None


def _holder(handle: int) -> str:
    """The holder that a lock file names; empty if it names none."""
    try:
        said = json.loads(os.pread(handle, 1024, 0))
        return json.dumps({"pid": int(said["pid"]), "host": str(said["host"])})
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return ""


def _claim(path: Path, size: int) -> None:
    """Make a file at least `size` bytes long, with all its space allocated."""
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        os.posix_fallocate(handle, 0, size)
    finally:
        os.close(handle)


def _extents(handle: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a sparse file has bytes: (start, end), in order."""
    end = 0
    while end < size:
        try:
            start = os.lseek(handle, end, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(handle, start, os.SEEK_HOLE)
        yield start, end


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
