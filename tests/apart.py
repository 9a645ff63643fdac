"""Commands in processes of their own, killed at a random instant or write, and the rows that they acknowledge."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from landscape.cli import main as cli
from landscape.storage.hessians import HessianWriter
from landscape.storage.runs import RunWriter

PATIENCE = 120.0
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["apart", "landscape.cli.main.commands", "landscape.analysis.hessian", "landscape.training.loop"]
)
_ONE = threading.Lock()
"""To start a child looks at all others, and of two threads that look at one child only one learns its exit code."""
EVENTS = ("pwrite", "replace", "posix_fallocate", "unlink", "link")
"""Functions of `os` that change files; a kill falls before, within or after a call of one."""

Row = dict[str, bytes]
"""The bytes of one committed row by GROUP/DATASET."""
Acknowledge = Callable[[Path, int, Row], None]


@dataclasses.dataclass(frozen=True)
class Kill:
    """When a command is killed: after so many seconds of work, or at its so manieth change of a file.

    share: of a write that is killed, the part of the bytes that is still written.
    """

    after: float | None = None
    at: int | None = None
    share: float = 1.0


@dataclasses.dataclass
class Outcome:
    """How a command ended; code: its exit code, -9 if it was killed, 70 with a traceback in `said`."""

    code: int = 0
    said: str = ""
    seconds: float = 0.0
    acknowledged: list[tuple[Path, int, Row]] = dataclasses.field(default_factory=list)

    @property
    def killed(self) -> bool:
        return self.code < 0


@contextlib.contextmanager
def acknowledging(tell: Acknowledge) -> Iterator[None]:
    """Tell of every row of a run or Hessian file once the writer's method has returned."""
    checkpoint, append = RunWriter.checkpoint, HessianWriter.append

    def rows(writer: Any, groups: Mapping[str, Mapping[str, Any]]) -> Row:
        return {
            f"{group}/{name}": np.ascontiguousarray(groups[group][name], dtype=place.dtype).tobytes()
            for group, table in writer._tables.items()
            if group in groups
            for name, place in table.fields.items()
        }

    def tell_checkpoint(self: RunWriter, step: int, parameters: Any, **beside: Any) -> None:
        checkpoint(self, step, parameters, **beside)
        tell(self.path, step, rows(self, {"checkpoints": parameters, **beside}))

    def tell_append(self: HessianWriter, step: int, groups: Any) -> None:
        append(self, step, groups)
        tell(self.path, step, rows(self, groups))

    RunWriter.checkpoint, HessianWriter.append = tell_checkpoint, tell_append  # type: ignore[method-assign]
    try:
        yield
    finally:
        RunWriter.checkpoint, HessianWriter.append = checkpoint, append  # type: ignore[method-assign]


@contextlib.contextmanager
def dying(at: int, share: float, die: Callable[[], None]) -> Iterator[None]:
    """Call `die` at the so manieth change of a file: in the midst of a write, else before or after the change."""
    real, count = {name: getattr(os, name) for name in EVENTS}, 0

    def watched(name: str) -> Callable[..., Any]:
        def change(*args: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count != at:
                return real[name](*args, **more)
            if name == "pwrite":
                handle, data, offset = args
                real[name](handle, data[: round(share * len(data))], offset)
            elif share > 0.5:
                real[name](*args, **more)
            die()
            raise AssertionError("it is dead")

        return change

    for name in EVENTS:
        setattr(os, name, watched(name))
    try:
        yield
    finally:
        for name in EVENTS:
            setattr(os, name, real[name])


def run_quietly(argv: list[str]) -> tuple[int, str]:
    """The exit code of a command and what it said on stderr; 70 with a traceback for what is no exit."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            return cli.run(argv), said.getvalue()
        except SystemExit as stop:
            return int(stop.code or 0), said.getvalue()
        except Exception:
            return 70, said.getvalue() + traceback.format_exc()


def run_apart(argv: list[str], kill: Kill | None = None) -> Outcome:
    """Run a command in a child process.

    The child is forked from a server that has imported everything, so that kills fall into the work, and that has one
    thread: a fork of this process could inherit a lock that another of its threads holds.
    """
    kill = kill or Kill()
    told, telling = SERVER.Pipe(duplex=False)
    child = SERVER.Process(target=_work, args=(argv, kill, telling))
    with _ONE:
        child.start()
    telling.close()
    assert told.poll(PATIENCE), "the child did not start"
    told.recv()
    outcome, started, after = Outcome(), time.monotonic(), kill.after
    with contextlib.suppress(EOFError):
        while True:
            left = (PATIENCE if after is None else after) - (time.monotonic() - started)
            if not told.poll(max(left, 0)):
                child.kill()
                assert after is not None, f"{argv} did nothing for {PATIENCE} s"
                after = PATIENCE  # What it had said before it died is still to be read.
            message = told.recv()
            if isinstance(message, str):
                outcome.said = message
            else:
                outcome.acknowledged.append(message)
    outcome.seconds = time.monotonic() - started
    with _ONE:
        child.join()
    outcome.code = child.exitcode or 0
    return outcome


def _work(argv: list[str], kill: Kill, telling: Connection) -> None:
    """In the child: run the command, and tell of its start, of every row, and of its last words."""
    # The default is shared by processes, and a killed one would leave it behind.
    tqdm.set_lock(threading.RLock())
    telling.send("")
    with contextlib.ExitStack() as stack:
        stack.enter_context(acknowledging(lambda path, label, row: telling.send((path, label, row))))
        if kill.at is not None:
            stack.enter_context(dying(kill.at, kill.share, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        code, said = run_quietly(argv)
    telling.send(said)
    sys.exit(code)
