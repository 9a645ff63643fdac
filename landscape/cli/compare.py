"""`landscape compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from landscape.cli import tables
from landscape.cli.parser import Printed
from landscape.cli.printing import say
from landscape.errors import LandscapeError, complain, warn

EXAMPLES = (
    "landscape compare checkpoints/a.h5 checkpoints/b.h5",
    "landscape compare checkpoints/sweep/*.h5 --json   # every number",
)


def compare(
    file: Annotated[Path, Parameter(help="Run or Hessian file; the analyses beside a run are included.")],
    *files: Annotated[Path, Parameter(help="More files.")],
    options: Printed = Printed(),
) -> int:
    """Print runs side by side: options that differ, when they memorised and grokked, and their key numbers.

    A broken file is named and left out; the exit code is then 1.
    """
    from landscape.report import comparison
    from landscape.report.sources import open_sources

    broken: list[LandscapeError] = []
    sources = open_sources((file, *files), broken)
    rows = comparison.compared(sources, broken)
    for source in sources:
        for line in source.damage:
            warn(line)
    for error in broken:
        complain(error)
    if not rows:
        return 1
    lines = comparison.side_by_side(rows)
    if options.json:
        say(tables.document(comparison.document(rows)))
    elif options.csv:
        say(tables.rows_csv([dict(zip(lines[0], line, strict=True)) for line in lines[1:]]))
    else:
        say(tables.align([[cell or "-" for cell in line] for line in zip(*lines, strict=True)]))
    return 1 if broken else 0
