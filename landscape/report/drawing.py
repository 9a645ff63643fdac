"""The figures of a report, drawn by several processes."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import dataclasses
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from landscape.progress import Bar, clock
from landscape.report.figures import FAMILIES
from landscape.report.figures.sources import NotDrawnError, Source
from landscape.report.style import collecting_boxes, save_figure, style, tell_of_boxes

_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


@dataclasses.dataclass(frozen=True)
class Section:
    """One figure of the page, or the reason it is missing."""

    name: str
    title: str
    caption: str
    png: str
    """Base64; empty where nothing is drawn."""


def draw_all(sources: Sequence[Source], folder: Path, quiet: bool, jobs: int) -> list[Section]:
    """Every figure of the sources, saved into a folder; in report order, and the same for any number of jobs.

    jobs: processes that draw, this one included; the others are forked from it and share what it has read. A figure
    that another process could not draw is drawn here, so that its error is raised here.
    """
    names = list(FAMILIES)
    jobs = min(jobs, len(names))
    found: dict[str, _Drawing] = {}
    if jobs > 1:
        with clock("reading", quiet):
            _read_all(sources)
    with (
        style(),
        _shared(range(len(names))) as queue,
        _helpers(jobs - 1, sources, folder, queue) as pipes,
        Bar(len(names), "figure", quiet) as bar,
    ):
        while (name := _next(queue)) is not None:
            bar.set_postfix_str(name)
            found[name] = _draw(name, sources, folder)
            found |= _sent(pipes, 0)
            bar.update(len(found) - bar.n)
        while pipes:
            found |= _sent(pipes, None)
            bar.update(len(found) - bar.n)
        found |= {name: _draw(name, sources, folder) for name in names if name not in found}
        bar.update(len(found) - bar.n)
    tell_of_boxes(set[str]().union(*(boxes for _, boxes in found.values())))
    return [_section(name, found[name][0], folder) for name in names]


_Titles = tuple[str, str] | str
"""Title and caption, or why nothing was drawn."""
_Drawing = tuple[_Titles, set[str]]
"""These, and the characters that are drawn as boxes."""


def _draw(name: str, sources: Sequence[Source], folder: Path) -> _Drawing:
    with collecting_boxes() as boxes:
        try:
            drawn = FAMILIES[name](sources)
        except NotDrawnError as reason:
            return str(reason), boxes
        save_figure(drawn.figure, drawn.data, folder, name)
    return (drawn.title, drawn.caption), boxes


def _section(name: str, titles: _Titles, folder: Path) -> Section:
    if isinstance(titles, str):
        return Section(name, name.replace("_", " "), f"Not drawn: {titles}.", "")
    return Section(name, *titles, base64.b64encode((folder / f"{name}.png").read_bytes()).decode())


@contextlib.contextmanager
def _shared(numbers: range) -> Iterator[int]:
    """A pipe with these numbers, a byte each, for all processes: each number is read once."""
    reading, writing = os.pipe()
    os.write(writing, bytes(numbers))
    os.close(writing)
    try:
        yield reading
    finally:
        os.close(reading)


def _next(queue: int) -> str | None:
    """The next figure that no process has begun; None if there is none."""
    found = os.read(queue, 1)
    return list(FAMILIES)[found[0]] if found else None


def _read_all(sources: Sequence[Source]) -> None:
    """Read what the figures show and load what draws them, once for all processes."""
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_pdf
    import matplotlib.backends.backend_svg  # noqa: F401

    for source in sources:
        for part in ("metrics", "tokens", "measured", "spectra", "densities", "embedding", "numbers"):
            getattr(source, part)


@contextlib.contextmanager
def _helpers(count: int, sources: Sequence[Source], folder: Path, queue: int) -> Iterator[list[Connection]]:
    """Forked processes that draw until nothing is left; killed where the block ends earlier."""
    context = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    processes: list[ForkProcess] = []
    try:
        for _ in range(count):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_help, args=(theirs, os.getpid(), sources, folder, queue), daemon=True)
            # A terminal sends Ctrl-C to all processes: helpers, which start with it blocked, are killed from here.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
                processes.append(process)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            # With only the helper's end open, its death closes the pipe.
            theirs.close()
            pipes.append(mine)
        yield pipes
    finally:
        for process in processes:
            process.kill()
            process.join()


def _help(pipe: Connection, parent: int, sources: Sequence[Source], folder: Path, queue: int) -> None:
    # A helper of a killed report must neither write into its folder nor keep its lock.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        return
    while (name := _next(queue)) is not None:
        # What cannot be drawn here is left to the parent, which raises its error.
        with contextlib.suppress(Exception):
            pipe.send({name: _draw(name, sources, folder)})


def _sent(pipes: list[Connection], seconds: float | None) -> dict[str, _Drawing]:
    """What helpers have drawn since, by name; pipes of those that have ended are removed."""
    found: dict[str, _Drawing] = {}
    for pipe in wait(pipes, seconds):
        assert isinstance(pipe, Connection)
        try:
            found |= pipe.recv()
        except (EOFError, OSError):
            pipes.remove(pipe)
    return found
