"""Commands in processes of their own, or in this one, stopped at any instant, and the rows that they acknowledge."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from landscape.cli import main as cli
from landscape.files.writer import Writer
from landscape.measure.analysis import RESUME, Analysis

PATIENCE = 180.0
"""Seconds for which a command may use no CPU. It has no limit otherwise: a busy machine may starve it for minutes."""
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
SERVER = multiprocessing.get_context("forkserver")
# All but the commands themselves are imported late: by the problem of a run, a report, torch with the first gradient.
SERVER.set_forkserver_preload(
    [
        "jinja2",
        "landscape.cli.main",
        "landscape.measure.critical",
        "landscape.report.page",
        "landscape.report.style",
        "landscape.jobs.run",
        "landscape.models.embedding_mlp.networks",
        "landscape.models.embedding_mlp.problem",
        "landscape.models.transformer.networks",
        "landscape.models.transformer.problem",
        "landscape.curvature.coupling",
        "matplotlib.backends.backend_agg",
        "matplotlib.backends.backend_pdf",
        "multiprocessing.popen_spawn_posix",
        "multiprocessing.synchronize",
        "resource",
        "scipy.optimize",
        "seaborn",
        "torch.fx.experimental.symbolic_shapes",
    ]
)
EVENTS = ("pwrite", "replace", "rename", "posix_fallocate", "unlink", "link", "mkdir", "rmdir")
"""Functions of `os` that change files; a kill falls before, within or after a call of one."""

Label = int | tuple[int, str]
"""A step; in a Hessian file step and block, or how many steps a search has made, and no block."""
Row = dict[str, bytes]
"""The bytes of one committed row by GROUP/DATASET; empty for a block, whose row is replaced when others join it."""


@dataclasses.dataclass(frozen=True)
class Kill:
    """How a command is stopped: after so many seconds of work, or at its so manieth change of a file.

    share: of a write that is stopped, the part of the bytes that is written before; number: SIGKILL or SIGINT, Ctrl-C.
    """

    after: float | None = None
    at: int | None = None
    share: float = 1.0
    number: int = signal.SIGKILL

    @property
    def code(self) -> int:
        """The exit code of a command that is stopped so."""
        return -9 if self.number == signal.SIGKILL else cli.INTERRUPTED


@dataclasses.dataclass
class Outcome:
    """How a command ended; code: its exit code, -9 if it was killed, 70 with a traceback in `said`."""

    code: int = 0
    said: str = ""
    seconds: float = 0.0
    acknowledged: list[tuple[Path, Label, Row]] = dataclasses.field(default_factory=list)


Runner = Callable[[Path, list[str], Kill | None], Outcome]
"""Runs a command that works in a folder."""


@contextlib.contextmanager
def acknowledging(tell: Callable[[Path, Label, Row], None]) -> Iterator[None]:
    """Tell of every row, block of a Hessian file and step of a search once the writer's method has returned."""
    append, write = Writer.append, Analysis.write

    def appended(self: Writer, step: int, rows: Any) -> None:
        append(self, step, rows)
        row = {
            f"{group}/{name}": np.ascontiguousarray(rows[group][name], dtype).tobytes()
            for group, places in self._places.items()
            if group in rows
            for name, (_, dtype, _) in list(places.of.items())[1:-1]
        }
        tell(self.path, step, row)

    def written(self: Analysis, status: str) -> None:
        write(self, status)
        for step in self.steps:
            for block in self.blocks:
                tell(self.path, (step, block), {})
        if RESUME in self.groups:
            tell(self.path, (int(self.groups[RESUME]["iterations"].max()), ""), {})

    try:
        Writer.append, Analysis.write = appended, written  # type: ignore[method-assign]
        yield
    finally:
        Writer.append, Analysis.write = append, write  # type: ignore[method-assign]


@contextlib.contextmanager
def stopping(kill: Kill | None, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at a kill's change of a file: in the midst of a write, else before or after the change."""
    real, count = {name: getattr(os, name) for name in EVENTS}, 0

    def watched(name: str) -> Callable[..., Any]:
        def change(*args: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if kill is None or count != kill.at:
                return real[name](*args, **more)
            if name == "pwrite":
                handle, data, offset = args
                real[name](handle, data[: round(kill.share * len(data))], offset)
            elif kill.share > 0.5:
                # Also where there was nothing to unlink.
                try:
                    return real[name](*args, **more)
                finally:
                    stop()
            stop()
            # A command that takes Ctrl-C as a wish to end does what it has begun.
            return real[name](*args, **more)

        return change

    try:
        for name in EVENTS:
            setattr(os, name, watched(name))
        yield
    finally:
        for name in EVENTS:
            setattr(os, name, real[name])


@contextlib.contextmanager
def quietly(said: io.StringIO) -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        yield


def run_quietly(argv: list[str], said: io.StringIO) -> int:
    """The exit code of a command; 70, and a traceback in what it said, for what is no exit."""
    with quietly(said):
        try:
            return cli.run(argv)
        except KeyboardInterrupt:
            return cli.INTERRUPTED
        except SystemExit as stop:
            return int(stop.code or 0)
        except Exception:
            said.write(traceback.format_exc())
            return 70


class Killed(BaseException):
    """Ends a command in this process; no handler of the package catches it."""


def run_here(folder: Path, argv: list[str], kill: Kill | None = None) -> Outcome:
    """Run a command in this process. A killed one leaves the folder as it was at that instant.

    What is cleaned up after the exception would not be after a kill, so that the folder is put back.
    """
    outcome, said = Outcome(), io.StringIO()
    with tempfile.TemporaryDirectory(dir=MEMORY) as spare:
        at_death = Path(spare) / "folder"

        def stop() -> None:
            if kill and kill.number != signal.SIGKILL:
                signal.raise_signal(kill.number)
                return
            shutil.copytree(folder, at_death, symlinks=True)
            raise Killed

        try:
            with acknowledging(lambda *row: outcome.acknowledged.append(row)), stopping(kill, stop):
                outcome.code = run_quietly(argv, said)
        except Killed:
            outcome.code = -9
            shutil.rmtree(folder)
            shutil.copytree(at_death, folder, symlinks=True)
    outcome.said = said.getvalue()
    return outcome


def run_apart(folder: Path, argv: list[str], kill: Kill | None = None) -> Outcome:
    """Run a command in a child process.

    The child is forked from a server that has imported everything, so that kills fall into the work, and that has one
    thread: a fork of this process could inherit a lock that another of its threads holds.
    """
    pipe, telling = SERVER.Pipe(duplex=False)
    child = SERVER.Process(target=_work, args=(argv, kill, telling))
    child.start()
    telling.close()
    assert pipe.poll(PATIENCE), "the child did not start"
    # Not killed before: a signal at Python's own start tells nothing of the command.
    pipe.recv()
    outcome, started, after = Outcome(), time.monotonic(), kill.after if kill else None
    used = -1
    with contextlib.suppress(EOFError):
        while True:
            left = PATIENCE if after is None else after - (time.monotonic() - started)
            if not pipe.poll(max(left, 0)):
                if after is None or kill is None:
                    before, used = used, _ticks(child.pid or 0)
                    if used != before:
                        continue
                    child.kill()
                    raise TimeoutError(f"{argv} did nothing for {PATIENCE} s")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid or 0, kill.number)
                # What it had said before it died, or says yet, is still to be read.
                after = None
                continue
            message = pipe.recv()
            if isinstance(message, str):
                outcome.said = message
            else:
                outcome.acknowledged.append(message)
    outcome.seconds = time.monotonic() - started
    child.join()
    while _group(child.pid or 0):
        time.sleep(0.01)
    outcome.code = child.exitcode or 0
    return outcome


def _ticks(leader: int) -> int:
    """CPU time that a command and what it started have used, in clock ticks."""
    ticks = 0
    for pid in {leader, *_group(leader)}:
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13]))
    return ticks


def _group(leader: int) -> list[int]:
    """The processes that a command has started, and that live."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group, *_ = stat.read_text().rpartition(") ")[2].split()
            if int(group) == leader and state not in "ZX":
                pids.append(int(stat.parent.name))
    return pids


def _work(argv: list[str], kill: Kill | None, telling: Connection) -> None:
    """In the child: run the command, and tell of its start, of every row, and of its last words."""
    # Workers of a killed command end on their own; `run_apart` waits for all that are of the group.
    os.setpgid(0, 0)
    # The default is shared by processes, and a killed one would leave it behind.
    tqdm.set_lock(threading.RLock())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    said, code = io.StringIO(), cli.INTERRUPTED
    number = kill.number if kill else signal.SIGKILL
    with contextlib.suppress(KeyboardInterrupt):
        with acknowledging(lambda *row: telling.send(row)), stopping(kill, lambda: signal.raise_signal(number)):
            telling.send("")
            code = run_quietly(argv, said)
        # Of a command that has ended, Ctrl-C changes nothing.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    telling.send(said.getvalue())
    telling.close()
    sys.exit(code)
