"""A pool of isolated single-threaded workers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Self

from landscape.errors import LandscapeError, as_landscape_error
from landscape.signals import stop_signals

Reason = tuple[str, str]
"""The error of a failed call, and its hint."""
PATIENCE = 20.0
"""Seconds that a stopped worker has before it is killed; its files can be resumed either way."""


class Workers:
    """Up to `count` processes, started on demand and stopped at the end of the `with` block."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._idle: list[Connection] = []
        self._processes: dict[Connection, SpawnProcess] = {}

    def run(self, function: Callable[..., object], calls: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Call `function` with each of `calls`; yields (reason of failure or None, *call) as each call ends."""
        for reason, _, _, call in self._answers(function, calls):
            yield reason, *call

    def results(self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """What `function` returns for each of `calls`, in their order. Raises LandscapeError for the first failure."""
        early: dict[int, Any] = {}
        turn = 0
        for reason, value, i, _ in self._answers(function, calls):
            if reason:
                raise LandscapeError(*reason)
            early[i] = value
            while turn in early:
                yield early.pop(turn)
                turn += 1

    def _answers(
        self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]
    ) -> Iterator[tuple[Reason | None, Any, int, tuple[Any, ...]]]:
        """Reason of failure, what was returned, number and arguments of each call as it ends."""
        waiting = list(enumerate(calls))[::-1]
        busy: dict[Connection, tuple[int, tuple[Any, ...]]] = {}
        while waiting or busy:
            while waiting and len(busy) < self._count:
                pipe = self._idle.pop() if self._idle else self._start()
                busy[pipe] = waiting.pop()
                # A worker that died while it was idle is noticed where its answer is read.
                with contextlib.suppress(BrokenPipeError):
                    pipe.send((function, busy[pipe][1]))
            for ready in wait(busy):
                assert isinstance(ready, Connection)
                yield *self._outcome(ready), *busy.pop(ready)

    def _outcome(self, pipe: Connection) -> tuple[Reason | None, Any]:
        try:
            answer: tuple[Reason | None, Any] = pipe.recv()
        except (EOFError, ConnectionResetError):
            process = self._processes.pop(pipe)
            process.join()
            message = f"its process ended with exit code {process.exitcode}"
            return (message, "if memory ran out, use fewer --jobs; the same command resumes"), None
        self._idle.append(pipe)
        return answer

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), daemon=True)
        # A terminal sends Ctrl-C to all processes. Workers start with SIGINT blocked and get one SIGTERM from here;
        # a Ctrl-C during the start takes effect after it.
        with stop_signals() as stop:
            # The tracker's start would unblock SIGINT.
            resource_tracker.ensure_running()
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # With only the worker's end open, its death closes the pipe.
        theirs.close()
        self._processes[mine] = process
        if stop.is_set():
            raise KeyboardInterrupt
        return mine

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe, process in self._processes.items():
            process.terminate()
            # A worker that handles SIGTERM by finishing its task then finds no other.
            pipe.close()
        for process in self._processes.values():
            process.join(PATIENCE)
            process.kill()
            process.join()


def _work(pipe: Connection) -> None:
    """Run the calls from the pipe until SIGTERM, the end of the pipe or the end of the parent."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # BLAS libraries read this when they are loaded.
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    # The default lock is shared between processes, and a killed process would leave it locked.
    tqdm.set_lock(threading.RLock())
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            function, arguments = pipe.recv()
            pipe.send(_attempt(function, arguments))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    # At once, so that another process can resume the files.
    os._exit(1)


def _attempt(function: Callable[..., object], arguments: tuple[Any, ...]) -> tuple[Reason | None, object]:
    try:
        return None, function(*arguments)
    except (Exception, SystemExit) as error:
        if known := as_landscape_error(error):
            return (str(known), known.hint), None
        traceback.print_exc()
        return (f"{type(error).__name__}: {error}", "the traceback above says where; please report it"), None
