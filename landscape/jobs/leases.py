"""Leases: of all processes that share a folder, on one host or many, one works on an output.

They need no lock of the file system and no clock that two hosts agree on. A lease is a hard link to its holder's file,
which only one process can make at a place; the holder counts up in that file as long as it lives. Whoever wants a
lease whose counter stands still for PATIENCE seconds of his own clock, or whose process is known to have ended, makes
its successor: lease NAME of holder A is followed by NAME.A, and that one, of holder B, by NAME.A.B. The last of this
chain counts. As a chain begins at NAME and only its last holder removes it, a successor made too late is in no chain.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import re
import stat as modes
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from landscape.errors import FileError, complain, mend
from landscape.files.files import remove_if_empty
from landscape.processes import machine, stat

BEAT, PATIENCE = 5.0, 60.0
"""Seconds between two counts of a holder, and without one after which its leases may be succeeded."""
_HOLDER = ".holder"
_SUCCESSOR = re.compile(r"(\.[0-9a-f]{16})+$")
_COUNT = 20
"""Digits of the counter, at the end of a holder's file."""


@dataclasses.dataclass(frozen=True)
class Process:
    """The process that holds leases: where it runs, and what tells it from a later one of its number."""

    id: str
    host: str
    pid: int
    started: str
    kernel: str
    task: str
    """Job and array task of Slurm; empty outside of it."""

    @classmethod
    def this(cls, task: str) -> Self:
        """This process, under a new id."""
        pid = os.getpid()
        return cls(uuid.uuid4().hex[:16], platform.node(), pid, _started(pid), machine(), task)

    @property
    def is_here(self) -> bool:
        """Whether its number means on this machine what it meant there."""
        return bool(self.kernel) and self.kernel == machine()

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended; of a process on another machine that cannot be known."""
        return self.is_here and _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}" + (f", Slurm job {self.task}" if self.task else "")


class LeasedError(FileError):
    """An output that another live process works on."""


class Holder:
    """This process as a holder of leases in a folder, from the begin to the end of the `with` block."""

    def __init__(self, folder: Path, task: str = "") -> None:
        self.folder, self.process = folder, Process.this(task)
        self._path = folder / (self.process.id + _HOLDER)
        self._held: dict[str, Path] = {}
        self._ended = threading.Event()
        self._dead: set[str] = set()

    def __enter__(self) -> Self:
        text = json.dumps(dataclasses.asdict(self.process)).encode() + b"\n"
        self._place = len(text)
        with contextlib.ExitStack() as failed:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                failed.callback(self._remove)
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                failed.callback(os.close, self._file)
                os.pwrite(self._file, text + b"0" * _COUNT, 0)
            except OSError as error:
                raise FileError(f"{self._path} cannot be made: {error.strerror}", mend(error)) from error
            failed.pop_all()
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._held):
            self.release(name)
        self._ended.set()
        self._heart.join()
        os.close(self._file)
        self._remove()

    def _remove(self) -> None:
        self._path.unlink(missing_ok=True)
        remove_if_empty(self.folder)

    def take(self, name: str) -> None:
        """Take the lease on an output, by its name. Raises LeasedError if a live process holds it.

        That a holder on another machine lives takes up to BEAT seconds to see, and that it does not, PATIENCE.
        """
        while True:
            chain = list(_chain(self.folder, name))
            if chain and not self._has_ended(*chain[-1]):
                if list(_chain(self.folder, name)) != chain:
                    continue
                raise LeasedError(f"{name} is being written by {chain[-1][1]}", "wait for it, or stop it with --cancel")
            place = _successor(*chain[-1]) if chain else self.folder / name
            if not self._link(place):
                continue
            # The chain may have ended, and another one begun, since it was read.
            if not chain or self._is_last(name):
                self._held[name] = place
                for _, process in chain:
                    self.folder.joinpath(process.id + _HOLDER).unlink(missing_ok=True)
                return
            place.unlink(missing_ok=True)

    def release(self, name: str) -> None:
        """Give a lease back; one that was taken over stays."""
        place = self._held.pop(name)
        # Once this lease is its own successor, no other process can follow it.
        with contextlib.suppress(FileError):
            if self._link(_successor(place, self.process)):
                for left in [left for left, _ in _chain(self.folder, name)]:
                    left.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove what processes left that are known to have ended."""
        for name, process in leases(self.folder):
            if process.has_ended:
                with contextlib.suppress(LeasedError):
                    self.take(name)
                    self.release(name)
        there = _names(self.folder)
        for name in there:
            # Also successors that are in no chain.
            if name.endswith(_HOLDER) or _head(name) not in there:
                # A full disk may have cut it.
                with contextlib.suppress(FileError):
                    place = self.folder / name
                    left = None if self._was_left_empty(place) else _read(place)
                    if left is None or left.has_ended:
                        place.unlink(missing_ok=True)

    def _was_left_empty(self, place: Path) -> bool:
        """Whether a holder's file has had no content for PATIENCE seconds: a kill left it before the first word.

        Both times are those of the file system's clock. Should its maker live, it can take no lease with a file that
        is gone, and says so.
        """
        try:
            left, ours = place.lstat(), self._path.stat()
        except FileNotFoundError:
            return False
        return modes.S_ISREG(left.st_mode) and left.st_size == 0 and ours.st_mtime - left.st_mtime > PATIENCE

    def _has_ended(self, place: Path, process: Process) -> bool:
        """Whether the holder of a lease is known to have ended, or stands still on another machine."""
        if process.is_here or process.id in self._dead:
            return process.has_ended or process.id in self._dead
        seen, since = _content(place), time.monotonic()
        while time.monotonic() - since < PATIENCE:
            time.sleep(min(BEAT, PATIENCE) / 10)
            if _content(place) != seen:
                return False
        self._dead.add(process.id)
        return True

    def _is_last(self, name: str) -> bool:
        return [process.id for _, process in _chain(self.folder, name)][-1:] == [self.process.id]

    def _link(self, place: Path) -> bool:
        """Make a lease; whether it is ours."""
        try:
            os.link(self._path, place)
        except FileExistsError:
            # Over a network the answer to a link that was made may be lost, and the request repeated.
            with contextlib.suppress(OSError):
                return place.samefile(self._path)
            return False
        except OSError as error:
            raise FileError(f"{place} cannot be made: {error.strerror}", mend(error)) from error
        return True

    def _beat(self) -> None:
        """Count, until the end; a holder that has been succeeded, or cannot count, ends its process at once."""
        count, last = 0, time.monotonic()
        while not self._ended.wait(BEAT):
            try:
                count += 1
                os.pwrite(self._file, b"%0*d" % (_COUNT, count), self._place)
                os.fsync(self._file)
                last = time.monotonic()
            except OSError as error:
                if time.monotonic() - last > PATIENCE:
                    self._stop(f"{self._path} cannot be written: {error.strerror}")
            for name in list(self._held):
                if not self._is_last(name) and name in self._held:
                    self._stop(f"{name} was taken over, for this process stood still for {PATIENCE:.0f} seconds")

    def _stop(self, why: str) -> None:
        complain(FileError(why, "what was committed is safe; the same command resumes"))
        sys.stderr.flush()
        os._exit(1)


def leases(folder: Path) -> Iterator[tuple[str, Process]]:
    """The leases in a folder: the name of an output, and the process that holds it."""
    for name in _names(folder):
        if not name.endswith(_HOLDER) and _head(name) == name:
            for _, process in list(_chain(folder, name))[-1:]:
                yield name, process


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _head(name: str) -> str:
    """The name at which the chain of a lease begins."""
    return _SUCCESSOR.sub("", name)


def _chain(folder: Path, name: str) -> Iterator[tuple[Path, Process]]:
    """A lease and its successors."""
    place = folder / name
    while process := _read(place):
        yield place, process
        place = _successor(place, process)


def _successor(place: Path, process: Process) -> Path:
    return place.with_name(f"{place.name}.{process.id}")


def _read(place: Path) -> Process | None:
    """The process that a lease or a holder's file names; None where there is none."""
    content = _content(place)
    if content is None:
        return None
    try:
        said: dict[str, Any] = json.loads(content.partition(b"\n")[0])
        process = Process(**said)
        if _SUCCESSOR.fullmatch(f".{process.id}"):
            return process
    except (ValueError, TypeError):
        pass
    raise _foreign(place)


def _content(place: Path) -> bytes | None:
    """What a lease or a holder's file holds; None where there is none. Raises FileError for what is no regular file."""
    try:
        # A pipe would be waited for, and a link to nowhere taken for a place that is free.
        if modes.S_ISREG(place.lstat().st_mode):
            return place.read_bytes()
    except FileNotFoundError:
        return None
    raise _foreign(place)


def _foreign(place: Path) -> FileError:
    return FileError(f"{place} is no lease", "another program may have made it: move it away")


def _started(pid: int) -> str:
    """When a process started, in ticks since the start of the machine; empty if it has ended."""
    fields = stat(Path(f"/proc/{pid}"))
    return "" if not fields or fields[0] in "ZX" else fields[19]
