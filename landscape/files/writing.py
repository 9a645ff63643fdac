"""Lock an output, and replace it without losing the former one, whatever happens to the process."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import filelock

from landscape.errors import FileError, mend
from landscape.files.files import require_name

_LIMITS = (errno.EFBIG, errno.EDQUOT)
"""Where a disk with bytes free takes none from this user."""
_PATIENCE = 0.3
"""Seconds for which a lock is tried: `is_written` holds it for an instant."""
_SPARE = 1 << 16
"""Bytes of a new file beyond what it is expected to take."""


def draft_of(path: Path) -> Path:
    """A hidden name beside a file or folder, with the name of the program, which tells its drafts from others'."""
    return path.with_name(f".{path.name}.{os.getpid()}.landscape.tmp")


@contextlib.contextmanager
def temporary_file(path: Path, size: int) -> Iterator[Path]:
    """A path for a new file of about `size` bytes, which becomes `path` when the block ends without an error.

    A full disk is an error before anything is written. Owner and permissions of a file that is replaced stay.
    """
    size += _SPARE
    temporary, replaced = draft_of(path), path.stat() if path.exists() else None
    try:
        # Anything else there, such as a link, is foreign.
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 if replaced else 0o666))
    except OSError as error:
        raise FileError(f"{temporary} cannot be made: {error.strerror}", mend(error)) from error
    try:
        reserve(temporary, size)
        yield temporary
        if replaced:
            _open_as(temporary, replaced)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_room(path, size) from error
        if error.errno in _LIMITS:
            raise FileError(f"{path} cannot be made, {size:,} bytes: {error.strerror}", mend(error)) from error
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def _open_as(draft: Path, replaced: os.stat_result) -> None:
    """Give a draft the owner and the permissions of the file that it replaces, as far as this process may."""
    mode = stat.S_IMODE(replaced.st_mode)
    with contextlib.suppress(OSError):
        os.chown(draft, replaced.st_uid, -1)
    try:
        os.chown(draft, -1, replaced.st_gid)
    except OSError:
        # The rights were those of another group.
        mode &= ~stat.S_IRWXG
    draft.chmod(mode)


def reserve(path: Path, size: int) -> None:
    """Make a file at least `size` bytes long, with all its space allocated."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_free(path: Path, size: int) -> None:
    """Raise FileError if the disk has no room for a new file."""
    if shutil.disk_usage(path.parent).free < size:
        raise _no_room(path, size)


def cannot_write(path: Path, error: OSError) -> FileError:
    """The error of a failing disk: which data are safe, and how to continue."""
    return FileError(
        f"{path} cannot be written: {error.strerror or error}",
        "what was committed is safe: once the disk works, the same command resumes",
    )


@contextlib.contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Lock an output for writing, by a file beside it, and remove what killed writers of it left.

    The system releases the lock of a process that dies. Raises FileError for a second writer.
    """
    # Absolute, because the working folder may be another one at the end.
    place = lock_of(path).absolute()
    lock: filelock.BaseFileLock = filelock.FileLock(place, timeout=_PATIENCE, thread_local=False)
    try:
        lock.acquire(poll_interval=0.02)
    except filelock.Timeout as error:
        raise FileError(f"{path} is being written by another process", "wait for it") from error
    except OSError as error:
        hint = mend(error) if error.errno == errno.ENAMETOOLONG else "move it away, or choose another place"
        raise FileError(f"{place} cannot be used as a lock: {error.strerror}", hint) from error
    holder, ours = os.getpid(), place.stat()
    try:
        remove_abandoned(path)
        yield
    finally:
        # A child made by fork ends with a copy of this block: the lock is its parent's.
        if os.getpid() == holder:
            # Before the release: whoever has opened it meanwhile sees that it is gone, and makes a new one. Where
            # somebody removed it, a file of this name is another writer's.
            with contextlib.suppress(OSError):
                now = place.lstat()
                if type(lock) is filelock.UnixFileLock and os.path.samestat(now, ours) and not now.st_size:
                    place.unlink()
            lock.release()


def lock_of(path: Path) -> Path:
    """The lock file of an output, beside it. Raises FileError for an output without a name."""
    return require_name(path).with_name(path.name + ".lock")


def is_written(path: Path) -> bool:
    """Whether a process holds the lock of an output."""
    place = lock_of(path)
    if not place.is_file():
        return False
    try:
        with filelock.FileLock(place, blocking=False, thread_local=False):
            return False
    except filelock.Timeout:
        return True
    except OSError:
        return False


def abandoned(path: Path) -> Iterator[Path]:
    """What bears the name of a draft of `path`, except links."""
    ours = re.compile(re.escape(f".{path.name}.") + r"\d+\.landscape\.(tmp|old)", re.ASCII)
    with os.scandir(path.parent) as entries:
        names = [e.name for e in entries if ours.fullmatch(e.name) and not e.is_symlink()]
    return (path.with_name(name) for name in names)


def remove_abandoned(path: Path, begins: bytes = b"\x89HDF\r\n\x1a\n") -> None:
    """Remove temporary files that killed writers of `path` left. Requires the lock of its writer.

    begins: of our files, with which or with zeros they begin at every moment of their making; a file of another
    program may bear such a name.
    """
    for draft in filter(Path.is_file, abandoned(path)):
        with contextlib.suppress(OSError):
            with draft.open("rb") as file:
                is_ours = file.read(len(begins)) in (b"", bytes(len(begins)), begins)
            if is_ours:
                draft.unlink()


def _no_room(path: Path, size: int) -> FileError:
    free = shutil.disk_usage(path.parent).free
    return FileError(
        f"{path.parent} has {free:,} bytes free; this file needs {size:,}",
        "free some space, write elsewhere, or store fewer checkpoints",
    )
