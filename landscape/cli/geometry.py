"""`landscape geometry`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from landscape.cli import tables
from landscape.cli.declared import Command, RunFile
from landscape.cli.printing import say
from landscape.errors import working_on
from landscape.options import field, required
from landscape.text import printable


@dataclasses.dataclass(frozen=True)
class Geometry(Command):
    """How the embedding of a run's numbers lies at every stored step: circles, lines, and chance beside each."""

    examples = (
        "landscape geometry checkpoints/run.h5            # writes run.geometry.h5",
        "landscape geometry checkpoints/run.h5 --json     # prints everything, too",
    )
    groups = {"what is measured": ("run", "device"), "output": ("out", "overwrite", "json", "csv", "quiet")}
    interrupted = "the same command starts again"

    run: RunFile = required("Run file whose embedding is measured.")
    device: Literal["auto", "cpu", "cuda"] = field("auto", "Device of the logits.")
    out: Path | None = field(None, "Geometry file to write. By default RUN.geometry.h5 beside the run.")
    overwrite: bool = field(
        False, "Measure anew, and replace a geometry file of another run, or with checkpoints that the run has lost."
    )
    json: bool = field(False, "Print everything measured as one JSON document.")
    csv: bool = field(False, "Print what belongs to a step as CSV.")
    quiet: bool = field(False, "No progress bar.")

    def execute(self) -> int:
        from landscape.files.files import geometry_file
        from landscape.measure.geometry import measure_geometry, summary

        with working_on(self.out or geometry_file(self.run)):
            path = measure_geometry(self.run, self.out, self.overwrite, self.quiet, self.device)
        if self.json:
            say(tables.geometry_document(path))
        elif self.csv:
            say(tables.geometry_csv(path))
        else:
            say(f"{tables.align(summary(path))}\nwritten: {printable(path)}")
        return 0
