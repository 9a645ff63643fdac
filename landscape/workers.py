"""A pool of isolated single-threaded workers."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Self

from landscape.errors import LandscapeError, as_landscape_error
from landscape.signals import stop_signals

Reason = tuple[str, str]
"""The error of a failed call, and its hint."""
PATIENCE = 20.0
"""Seconds that a stopped worker has before it is killed; its files can be resumed either way."""
_parent: Connection | None = None
"""In a worker, its way to the process that started it."""


@dataclasses.dataclass(frozen=True)
class _Told:
    """What a call says while it runs."""

    what: Any


def tell(what: Any) -> None:
    """Say something, from within a call, to the process that waits for its result; nobody hears it elsewhere."""
    if _parent:
        _parent.send(_Told(what))


def _unheard(what: Any) -> None:
    """Nobody hears what a call tells."""


class Workers:
    """Up to `count` processes, started on demand and stopped at the end of the `with` block.

    devices: GPUs, of which each process sees one; none: all see what this one does. Raises LandscapeError in a process
    that may start none.
    """

    def __init__(self, count: int, devices: Sequence[str] = ()) -> None:
        if multiprocessing.current_process().daemon:
            raise LandscapeError(
                "a daemonic process, such as a worker of multiprocessing.Pool, may not start others",
                "give jobs=0, or use concurrent.futures.ProcessPoolExecutor, whose workers may",
            )
        self._count, self._devices = count, list(devices)
        self._idle: list[Connection] = []
        self._processes: dict[Connection, SpawnProcess] = {}
        self._device_of: dict[Connection, str] = {}

    def run(self, function: Callable[..., object], calls: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Call `function` with each of `calls`; yields (reason of failure or None, *call) as each call ends."""
        for reason, _, _, call in self._answers(function, calls, _unheard):
            yield reason, *call

    def results(
        self,
        function: Callable[..., Any],
        calls: Iterable[tuple[Any, ...]],
        hear: Callable[[Any], object] = _unheard,
    ) -> Iterator[Any]:
        """What `function` returns for each of `calls`, in their order. Raises LandscapeError for the first failure.

        hear: called with what the calls `tell`.
        """
        early: dict[int, Any] = {}
        turn = 0
        for reason, value, i, _ in self._answers(function, calls, hear):
            if reason:
                raise LandscapeError(*reason)
            early[i] = value
            while turn in early:
                yield early.pop(turn)
                turn += 1

    def _answers(
        self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], hear: Callable[[Any], object]
    ) -> Iterator[tuple[Reason | None, Any, int, tuple[Any, ...]]]:
        """Reason of failure, what was returned, number and arguments of each call as it ends.

        A call is taken from `calls` when a worker is free for it.
        """
        waiting = enumerate(calls)
        busy: dict[Connection, tuple[int, tuple[Any, ...]]] = {}
        while True:
            while len(busy) < self._count and (call := next(waiting, None)):
                pipe = self._idle.pop() if self._idle else self._start()
                busy[pipe] = call
                # A worker that died while it was idle is noticed where its answer is read.
                with contextlib.suppress(BrokenPipeError):
                    pipe.send((function, busy[pipe][1]))
            if not busy:
                return
            for ready in wait(busy):
                assert isinstance(ready, Connection)
                answer = self._received(ready)
                if isinstance(answer, _Told):
                    hear(answer.what)
                else:
                    yield *answer, *busy.pop(ready)

    def _received(self, pipe: Connection) -> _Told | tuple[Reason | None, Any]:
        try:
            answer: _Told | tuple[Reason | None, Any] = pipe.recv()
        except (EOFError, ConnectionResetError):
            process = self._processes.pop(pipe)
            process.join()
            self._devices += filter(None, [self._device_of.pop(pipe)])
            message = f"its process ended with exit code {process.exitcode}"
            return (message, "if memory ran out, use fewer --jobs; the same command resumes"), None
        if not isinstance(answer, _Told):
            self._idle.append(pipe)
        return answer

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        device = self._devices.pop(0) if self._devices else ""
        process = context.Process(target=_work, args=(theirs, device), daemon=True)
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
        self._processes[mine], self._device_of[mine] = process, device
        if stop.is_set():
            raise KeyboardInterrupt
        return mine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, process in self._processes.items():
            process.terminate()
            # A worker that handles SIGTERM by finishing its task then finds no other.
            pipe.close()
        for process in self._processes.values():
            process.join(PATIENCE)
            process.kill()
            process.join()


def _work(pipe: Connection, device: str) -> None:
    """Run the calls from the pipe until SIGTERM, the end of the pipe or the end of the parent."""
    global _parent
    _parent = pipe
    if device:
        # CUDA reads this when it is first used.
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    # A user's loader may have workers, which multiprocessing allows no daemon.
    multiprocessing.current_process().daemon = False
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # BLAS libraries read this when they are loaded.
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from tqdm.auto import tqdm

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
