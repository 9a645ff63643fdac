"""`landscape info` and `landscape check`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from landscape.cli import tables
from landscape.cli.declared import Command
from landscape.cli.printing import say
from landscape.errors import UNFINISHED
from landscape.options import field, required
from landscape.text import printable

if TYPE_CHECKING:
    from landscape.files.inspect import FileState


@dataclasses.dataclass(frozen=True)
class _OfFile(Command):
    file: tyro.conf.Positional[Path] = required("Run, Hessian or geometry file.")
    json: bool = field(False, "Print everything as one JSON document.")

    def show(self, state: FileState, text: Callable[[FileState], str]) -> None:
        """Print a file's state as JSON or as a text."""
        say(tables.document(dataclasses.asdict(state)) if self.json else text(state))


@dataclasses.dataclass(frozen=True)
class Info(_OfFile):
    """What a run, Hessian or geometry file holds, what it lacks, and how to resume it."""

    examples = (
        "landscape info checkpoints/run.h5",
        "landscape info checkpoints/run.h5 --config   # as JSON, for train --config",
    )
    groups = {"options": ("file", "config", "json")}

    config: bool = field(False, "Print the configuration as JSON, ready for --config, and nothing else.")

    def execute(self) -> int:
        state = _look(self.file)
        if self.config:
            say(tables.document(state.config, indent=2))
        else:
            self.show(state, tables.contents)
        return 0


@dataclasses.dataclass(frozen=True)
class Check(_OfFile):
    """Whether every committed row of a file is whole. Exit code 0: complete; 1: damaged; 3: whole but unfinished."""

    examples = (
        "landscape check checkpoints/run.h5",
        "landscape check checkpoints/run.h5 --repair   # keep what is whole",
    )
    groups = {"options": ("file", "repair", "json")}

    repair: bool = field(
        False, "Trim an interrupted file to its committed rows; of a damaged one the original is kept beside it."
    )

    def execute(self) -> int:
        from landscape.files.inspect import repair

        state = _look(self.file)
        if self.repair and (state.damage or not state.finished):
            kept = repair(self.file)
            if kept:
                print(f"kept the file as it was: {printable(kept)}", file=sys.stderr)
            state = _look(self.file)
        self.show(state, tables.soundness)
        return 1 if state.damage else 0 if state.finished else UNFINISHED


def _look(path: Path) -> FileState:
    """A file with all that is to be said of what it lacks."""
    from landscape.files.inspect import inspect
    from landscape.measure import fields
    from landscape.progress import clock
    from landscape.training import tables as run

    with clock("reading"):
        state = inspect(path)
    if state.is_recorded:
        return state
    lacks = {"run file": run.lacks, "Hessian file": fields.lacks}.get(state.kind, lambda _: [])(state)
    return dataclasses.replace(state, notes=(*lacks, *state.notes))
