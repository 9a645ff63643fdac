"""`landscape info` and `landscape check`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

from landscape.cli import tables
from landscape.cli.printing import say
from landscape.errors import UNFINISHED
from landscape.text import printable

if TYPE_CHECKING:
    from landscape.files.inspect import FileState

AnyFile: TypeAlias = Annotated[Path, Parameter(help="Run, Hessian or geometry file.")]
AsJson: TypeAlias = Annotated[bool, Parameter(help="Print everything as one JSON document.")]
INFO_EXAMPLES = (
    "landscape info checkpoints/run.h5",
    "landscape info checkpoints/run.h5 --config   # as JSON, for train --config",
)
CHECK_EXAMPLES = (
    "landscape check checkpoints/run.h5",
    "landscape check checkpoints/run.h5 --repair   # keep what is whole",
)


def info(
    file: AnyFile,
    *,
    config: Annotated[bool, Parameter(help="Print only the configuration, as JSON for --config.")] = False,
    json: AsJson = False,
) -> int:
    """Say what a run, Hessian or geometry file holds, what it lacks, and how to resume it."""
    state = _look(file)
    if config:
        say(tables.document(state.config, indent=2))
    else:
        say(tables.document(dataclasses.asdict(state)) if json else tables.contents(state))
    return 0


def check(
    file: AnyFile,
    *,
    repair: Annotated[
        bool,
        Parameter(
            help="Trim an interrupted file to its committed rows. The original of a damaged file is kept beside it."
        ),
    ] = False,
    json: AsJson = False,
) -> int:
    """Check every committed row of a file. Exit code 0: complete; 1: damaged; 3: whole but unfinished."""
    from landscape.files import inspect

    state = _look(file)
    if repair and (state.damage or not state.finished):
        kept = inspect.repair(file)
        if kept:
            print(f"kept the file as it was: {printable(kept)}", file=sys.stderr)
        state = _look(file)
    say(tables.document(dataclasses.asdict(state)) if json else tables.soundness(state))
    return 1 if state.damage else 0 if state.finished else UNFINISHED


def _look(path: Path) -> FileState:
    """A file with all that is to be said of what it lacks."""
    from landscape.files.inspect import inspect
    from landscape.measure import fields

    state = inspect(path)
    lacks = fields.lacks(state) if state.kind == "Hessian file" else []
    return dataclasses.replace(state, notes=(*lacks, *state.notes))
