"""`landscape geometry`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from landscape.cli import tables
from landscape.cli.parser import Printed, RunFile
from landscape.cli.printing import say
from landscape.errors import working_on
from landscape.options import field
from landscape.text import printable

EXAMPLES = (
    "landscape geometry checkpoints/run.h5            # writes run.geometry.h5",
    "landscape geometry checkpoints/run.h5 --json     # prints everything, too",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeometryOptions(Printed):
    """How it is measured, and where the result goes."""

    device: Literal["auto", "cpu", "cuda"] = field("auto", "Device of the logits.")
    out: Path | None = field(None, "Geometry file to write. By default RUN.geometry.h5 beside the run.")
    overwrite: bool = field(
        False, "Measure anew, and replace a geometry file of another run, or with checkpoints that the run has lost."
    )
    tables: bool = field(False, "Print a table of all quantities.")
    quiet: bool = field(False, "No progress bar.")


def geometry(run: RunFile, *, options: GeometryOptions = GeometryOptions()) -> int:
    """Measure circles and lines in the embedding of a run's numbers at every stored step, and compare with chance."""
    from landscape.files.files import geometry_file
    from landscape.measure import geometry

    with working_on(options.out or geometry_file(run)):
        path = geometry.geometry(run, options.out, options.overwrite, options.quiet, options.device)
    if options.json:
        say(tables.geometry_document(path))
    elif options.csv:
        say(tables.file_csv(path))
    else:
        shown = tables.align(geometry.summary(path)) if options.tables else tables.listed(geometry.sentences(path))
        say(f"{shown}\nwritten: {printable(path)}")
    return 0
