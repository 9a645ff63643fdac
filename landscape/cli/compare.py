"""`landscape compare`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import tyro

from landscape.cli import tables
from landscape.cli.declared import Command
from landscape.cli.printing import say
from landscape.errors import ConfigError, LandscapeError, complain, warn
from landscape.options import field, required


@dataclasses.dataclass(frozen=True)
class Compare(Command):
    """Runs side by side: options that differ, when they memorised and grokked, and key numbers of their curvature.

    A broken file is left out and named; the exit code is then 1.
    """

    examples = (
        "landscape compare checkpoints/a.h5 checkpoints/b.h5",
        "landscape compare checkpoints/sweep/*.h5 --json   # every number",
    )
    groups = {"options": ("files", "json", "csv")}

    files: tyro.conf.Positional[tuple[Path, ...]] = required(
        "Run files, Hessian files or both; the analyses beside a run are included."
    )
    json: bool = field(False, "Print everything as one JSON document.")
    csv: bool = field(False, "Print the table as CSV, a row a run.")

    def execute(self) -> int:
        from landscape.progress import clock
        from landscape.report import comparison
        from landscape.report.sources import open_sources

        if not self.files:
            raise ConfigError("no file given", "name run or Hessian files: landscape compare A.h5 B.h5 ...")
        broken: list[LandscapeError] = []
        with clock("reading"):
            sources = open_sources(self.files, broken)
            rows = comparison.compared(sources, broken)
        for source in sources:
            for line in source.damage:
                warn(line)
        for error in broken:
            complain(error)
        if not rows:
            return 1
        lines = comparison.side_by_side(rows)
        if self.json:
            say(tables.document(comparison.document(rows)))
        elif self.csv:
            say(tables.rows_csv([dict(zip(lines[0], line, strict=True)) for line in lines[1:]]))
        else:
            say(tables.align([[cell or "-" for cell in line] for line in zip(*lines, strict=True)]))
        return 1 if broken else 0
