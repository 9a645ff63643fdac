"""`landscape info` and `landscape check`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from landscape.cli import tables
from landscape.cli.printing import say
from landscape.errors import UNFINISHED
from landscape.text import printable

if TYPE_CHECKING:
    from landscape.storage.inspect import FileState


@dataclasses.dataclass(frozen=True)
class Info:
    """What a run file or Hessian file holds, what it lacks, and how to resume it."""

    file: tyro.conf.Positional[Path]
    """Run file or Hessian file."""
    config: bool = False
    """Print the configuration as JSON, ready for --config, and nothing else."""
    json: bool = False
    """Print everything as one JSON document."""

    def execute(self) -> int:
        """Run the command; returns its exit code."""
        state = _look(self.file)
        if self.config:
            say(tables.document(state.config, indent=2))
        elif self.json:
            say(tables.document(dataclasses.asdict(state)))
        else:
            say(tables.contents(state))
        return 0


@dataclasses.dataclass(frozen=True)
class Check:
    """Whether every committed row of a file is whole. Exit code 0: complete; 1: damaged; 3: whole but unfinished."""

    file: tyro.conf.Positional[Path]
    """Run file or Hessian file."""
    repair: bool = False
    """Trim an interrupted file to its committed rows; of a damaged one the original is kept beside it."""
    json: bool = False
    """Print everything as one JSON document."""

    def execute(self) -> int:
        """Run the command; returns its exit code."""
        from landscape.storage.inspect import repair

        state = _look(self.file)
        if self.repair and (state.damage or not state.finished):
            kept = repair(self.file)
            if kept:
                print(f"kept the file as it was: {printable(kept)}", file=sys.stderr)
            state = _look(self.file)
        if self.json:
            say(tables.document(dataclasses.asdict(state)))
        else:
            say(tables.soundness(state))
        return 1 if state.damage else 0 if state.finished else UNFINISHED


def _look(path: Path) -> FileState:
    """A file with all that is to be said of what it lacks."""
    from landscape.analysis import fields
    from landscape.storage.inspect import inspect, younger
    from landscape.training import tables as run

    state = inspect(path)
    is_run = state.kind == "run file"
    lacks = run.lacks(state) if is_run else fields.lacks(state)
    notes = (*lacks, *state.notes, *younger(state, run.TABLES if is_run else [fields.ROOT]))
    return dataclasses.replace(state, notes=notes)
