"""A thread in each rank that sees whether all ranks make progress, and ends its own where one of them does not.

A process that waits for another one in a collective runs no Python: neither an exception nor a signal reaches it. So
each rank reports to the store of the process group twice a second, and reads there of the others; whether its own main
thread hangs it sees itself. Whoever is the first to find something wrong tells the user; all others end silently.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, Protocol

from landscape.errors import INTERRUPTED, LandscapeError, complain, place
from landscape.processes import machine, stat
from landscape.ranks.idle import Idle, threads

INTERVAL = 0.5
STOPPED = 8.0
"""Seconds of silence after which a process that the kernel says is stopped counts as hanging."""
SILENT = 25.0
"""Seconds of silence after which any other does: its threads had no chance to run, or its machine is gone."""
_TIMES = 20
"""A rank's part of a sum may take so many times as long as those of the others, if that is more than their patience."""
_RESUME = "the same command resumes; nothing that is stored is lost"
_SLOW = f"{_RESUME}; raise --patience if the rank was only slow"


class RankError(LandscapeError):
    """A rank that has died, hangs, or is unlike the others."""


class InterruptedRanksError(LandscapeError):
    """Ctrl-C, or SIGTERM while no rank is to blame."""

    exit_code = INTERRUPTED


class Store(Protocol):
    """What is used of torch.distributed's stores."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, amount: int) -> int: ...
    def check(self, keys: list[str]) -> bool: ...


class Watch:
    """Reports on this rank, and looks after the others, from `start` until `finish`."""

    def __init__(self, store: Store, rank: int, size: int, patience: float) -> None:
        self._store, self.rank, self.size, self._patience = store, rank, size, patience
        self._over = threading.Event()
        self._speaks = False
        self._signalled = False
        self._waits = False
        self._sums, self._sums_since, self._own = 0, 0.0, 0.0
        self._begun = time.monotonic()
        here = machine() or f"{platform.node()} {os.getpid()}"
        me = {"machine": here, "host": platform.node(), "pid": os.getpid()}
        self._store.set(f"who/{rank}", json.dumps(me))
        self._store.set(f"beat/{rank}", "0 0")
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin, once all ranks have made theirs; from here on signals are this thread's."""
        self._peers = [json.loads(self._store.get(f"who/{r}")) for r in range(self.size)]
        self._said, self._silent = [b""] * self.size, [0.0] * self.size
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._writable, False)
        signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        self._handlers = {n: signal.signal(n, lambda *_: None) for n in (signal.SIGINT, signal.SIGTERM)}
        os.register_at_fork(before=self._hold_signals, after_in_parent=self._let_signals, after_in_child=self._forked)
        self._helpers = threads()
        self._thread.start()

    def finish(self) -> None:
        """This rank has done its work. Rank 0, which may hold the store, waits for the others."""
        if self.rank:
            self._stop()
            self._store.set(f"ended/{self.rank}", "1")
            return
        with self.waiting():
            while not self._store.check([f"ended/{rank}" for rank in range(1, self.size)]):
                time.sleep(0.02)
        self._stop()

    def _stop(self) -> None:
        self._over.set()
        os.write(self._writable, b"\0")
        self._thread.join()
        self._release_signals()

    def _release_signals(self) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _hold_signals(self) -> None:
        """Before a fork: one that comes to the child at once would be written to this rank's pipe."""
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._handlers)

    def _let_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _forked(self) -> None:
        """In a child, such as a process of the user's pool: its signals are not for this rank, and end it as any."""
        if not self._over.is_set():
            self._release_signals()
        self._let_signals()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around whatever needs the other ranks: one that waits for them does not hang."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    @contextlib.contextmanager
    def summing(self) -> Iterator[None]:
        """Around a sum over ranks, to which this one has made its part."""
        now = time.monotonic()
        self._own, self._sums, self._sums_since = now - self._begun, self._sums + 1, now
        try:
            yield
        finally:
            self._sums_since = 0.0

    def working(self) -> None:
        """This rank begins its part of a sum."""
        self._begun = time.monotonic()

    def fail(self, error: LandscapeError, kill: int = 0) -> bool:
        """End all ranks; whether this one is to tell why. kill: a process that would not end by itself."""
        is_told = False
        with contextlib.suppress(Exception):
            is_told = self._store.add("told", 1) > 1
        if kill:
            # It would not answer to the launcher either. Only now: who saw it gone before would blame lack of memory.
            with contextlib.suppress(OSError):
                os.kill(kill, signal.SIGKILL)
        if is_told:
            return False
        self._speaks = True
        with contextlib.suppress(Exception):
            self._store.set("verdict", str(error.exit_code))
        return True

    def lost(self, error: Exception) -> NoReturn:
        """Communication has failed: wait until it is known why, and end."""
        time.sleep(SILENT + 10 * INTERVAL)
        words = next(iter(str(error).splitlines()), "")[:200]
        self._end(RankError(f"rank {self.rank} cannot reach the others: {words}", _RESUME))

    def _run(self) -> None:
        idle = Idle(self._helpers | {threading.get_native_id()}, self._patience)
        beat, before = 0, time.monotonic()
        while not self._over.is_set():
            if select.select([self._readable], [], [], INTERVAL)[0]:
                # Other code may handle other signals: a DataLoader the end of its workers.
                self._signalled |= not self._handlers.keys().isdisjoint(os.read(self._readable, 64))
            now = time.monotonic()
            gone, before, beat = now - before, now, beat + 1
            # Time in which this process itself did not run does not count.
            passed = min(gone, 2 * INTERVAL)
            try:
                self._store.set(f"beat/{self.rank}", f"{beat} {self._sums}")
                if self._store.check(["verdict"]):
                    self._follow()
                for rank in range(self.size):
                    if rank != self.rank and not self._store.check([f"ended/{rank}"]):
                        self._look_after(rank, passed)
                # On a busy machine a round takes seconds, in which the main thread had its chance, too.
                if idle.after(min(gone, 10 * INTERVAL), self._waits) > self._patience:
                    self._hangs()
            except Exception as error:
                if not self._over.is_set():
                    self._orphaned(error)
            if self._signalled:
                self._interrupted()

    def _look_after(self, rank: int, passed: float) -> None:
        said = self._store.get(f"beat/{rank}")
        silent = self._silent[rank] + passed if said == self._said[rank] else 0.0
        self._said[rank], self._silent[rank] = said, silent
        peer, state = self._peers[rank], ""
        if peer["machine"] == self._peers[self.rank]["machine"]:
            state = _state(peer["pid"])
        name, here = self._name(rank), peer["pid"] if state else 0
        if state == "T" and silent > STOPPED:
            self._end(RankError(f"{name} is stopped", _RESUME), here)
        if state == "gone":
            if self._store.check([f"ended/{rank}"]) or self._store.check(["verdict"]):
                return
            self._end(RankError(f"{name} was killed, perhaps for lack of memory", _RESUME))
        if silent > SILENT:
            self._end(RankError(f"{name} has not been heard of for {silent:.0f} s", _RESUME), here)
        since, sums = self._sums_since, int(said.split()[1])
        if since and sums < self._sums and time.monotonic() - since > max(self._patience, _TIMES * self._own):
            late = time.monotonic() - since
            self._end(RankError(f"{name} has not done its part {late:.0f} s after the others", _SLOW), here)

    def _hangs(self) -> NoReturn:
        """This rank's main thread waits for something that is no rank, and nothing works for it."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        where = place(traceback.extract_stack(frame)) if frame else ""
        self._end(
            RankError(f"{self._name(self.rank)} hangs{where}: it has done nothing for {self._patience:g} s", _SLOW)
        )

    def _name(self, rank: int) -> str:
        peer = self._peers[rank]
        return f"rank {rank} of {self.size} (process {peer['pid']} on {peer['host']})"

    def _interrupted(self) -> None:
        """After a signal: torchrun sends one when another rank has died, which is then seen at once."""
        for _ in range(2):
            time.sleep(INTERVAL)
            for rank in range(self.size):
                if rank != self.rank:
                    with contextlib.suppress(Exception):
                        self._look_after(rank, 0.0)
        self._end(InterruptedRanksError("interrupted", _RESUME))

    def _orphaned(self, error: Exception) -> None:
        """The store is gone, and the launcher with it."""
        if self.rank == min(1, self.size - 1):
            self._speaks = True
            words = next(iter(str(error).splitlines()), "")[:80]
            complain(RankError(f"rank 0 or the process that started the ranks has ended: {words}", _RESUME))
        self.leave(1)

    def _follow(self) -> None:
        code = int(self._store.get("verdict"))
        if self._speaks:
            # The main thread is telling why; it may be stuck in what it does then.
            time.sleep(10)
        self.leave(code)

    def _end(self, error: LandscapeError, kill: int = 0) -> NoReturn:
        if self.fail(error, kill):
            complain(error)
        self.leave(error.exit_code)

    def leave(self, code: int) -> NoReturn:
        """End this process at once: the threads of a broken process group would keep it."""
        if self.rank == 0:
            # Where no launcher holds the store this rank does: the others are to read the verdict.
            time.sleep(4 * INTERVAL)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _state(pid: int) -> str:
    """The kernel's letter for a process, T if it is stopped; "gone" if it has ended."""
    letter = next(iter(stat(Path(f"/proc/{pid}"))), "X")
    return "gone" if letter in "ZX" else letter
