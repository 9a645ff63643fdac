"""`landscape import`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from landscape.cli import tables
from landscape.cli.parser import Options
from landscape.cli.printing import say
from landscape.errors import working_on
from landscape.options import field
from landscape.text import printable

EXAMPLES = (
    "landscape import model-*.safetensors --out checkpoints/model.h5",
    "landscape import trainer_output/ --out model.h5 --skip '*.inv_freq'",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportOptions(Options):
    """What is read of the checkpoints."""

    step_pattern: str = field(
        "",
        "Regex whose first group is the step in a name; by default the number after 'step' or 'iter', or the only one.",
    )
    skip: tuple[str, ...] = field((), "Patterns of tensors to leave out, such as *.inv_freq.")
    overwrite: bool = field(False, "Replace an existing run file.")
    json: bool = field(False, "Print the summary as one JSON document.")
    quiet: bool = field(False, "No progress bar.")


def import_(
    source: Annotated[
        str,
        Parameter(
            help=".safetensors, .pt, .pth or .ckpt file, folder of them, checkpoint-* folder, or glob in quotes."
        ),
    ],
    *sources: Annotated[str, Parameter(help="More of these.")],
    out: Annotated[Path, Parameter(help="Run file to write.")],
    options: ImportOptions = ImportOptions(),
) -> int:
    """Make a run file of checkpoints of other programs: safetensors, torch files, folders of Hugging Face."""
    from landscape.training.importers import import_checkpoints, import_steps

    names = (source, *sources)
    with working_on(out):
        # Before anything is written, so that a wrong step is seen.
        for path, step in import_steps(names, options.step_pattern):
            line = f"{printable(path.name)} -> step {step}"
            print(line, file=sys.stderr) if options.json else say(line)
        summary = import_checkpoints(names, out, options.step_pattern, options.skip, options.overwrite, options.quiet)
    if options.json:
        say(tables.document(dataclasses.asdict(summary)))
        return 0
    for note in summary.notes:
        print(printable(note), file=sys.stderr)
    count, last = len(summary.steps), summary.steps[-1]
    steps = f"{count} checkpoints, steps {summary.steps[0]} to" if count > 1 else "a checkpoint at step"
    size = f"{summary.num_parameters:,} parameters in {summary.num_tensors} tensor{'s' * (summary.num_tensors != 1)}"
    say(f"{printable(summary.path)}: {steps} {last}, {size}")
    return 0
