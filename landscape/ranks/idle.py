"""How long this process has done nothing, by what the kernel tells of its threads (Linux)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from landscape.processes import stat

_USED, _AWAKE = 0.01, 0.1
"""Least shares of a time in which something is done: CPU time of all, and samples of the main thread on its way."""


class Idle:
    """Idleness of a process, sampled by one of its threads.

    It does something while its threads or its child processes use CPU time, and while the main thread waits for a disk
    or for its turn on a CPU. helpers: threads whose CPU time does not count; patience: the seconds that are judged at
    once. Without Linux's /proc no process is ever idle.
    """

    def __init__(self, helpers: set[int], patience: float) -> None:
        self._main = threading.main_thread().native_id or 0
        self._helpers, self._patience = helpers - {self._main}, patience
        self._of_threads, self._of_children = self._counted(), _seconds(_children())
        self._clear()

    def after(self, passed: float, waits: bool) -> float:
        """Seconds of idleness, now that `passed` more have gone by; one that `waits` for another rank is not idle."""
        if waits:
            self._clear()
            return 0.0
        state = _stat(Path(f"/proc/self/task/{self._main}"))[0]
        before, self._of_threads = self._of_threads, self._counted()
        used = max(0.0, self._of_threads - before)
        if used < _USED * passed:
            # Only now: all processes of the machine are asked whose children they are.
            before, self._of_children = self._of_children, _seconds(_children())
            used += max(0.0, self._of_children - before)
        self._seconds += passed
        self._used += used
        self._awake += passed if state in "RD" else 0.0
        if self._used > _USED * self._patience or self._awake > _AWAKE * self._patience or not state:
            self._clear()
        return self._seconds

    def _counted(self) -> float:
        return _seconds(Path(f"/proc/self/task/{thread}") for thread in threads() - self._helpers)

    def _clear(self) -> None:
        self._seconds = self._used = self._awake = 0.0


def threads() -> set[int]:
    """The threads of this process that the kernel knows."""
    with contextlib.suppress(OSError):
        return set(map(int, os.listdir("/proc/self/task")))
    return set()


def _children() -> list[Path]:
    own = os.getpid()
    return [path for path in Path("/proc").glob("[0-9]*") if _stat(path)[1] == own]


def _seconds(paths: Iterable[Path]) -> float:
    return sum(_stat(path)[2] for path in paths)


def _stat(path: Path) -> tuple[str, int, float]:
    """The kernel's letter for a process or thread, its parent, and its CPU seconds; "" for one that has ended."""
    fields = stat(path)
    if not fields:
        return "", 0, 0.0
    return fields[0], int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
