"""`landscape import`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import tyro

from landscape.cli import tables
from landscape.cli.declared import Command
from landscape.cli.printing import say
from landscape.errors import working_on
from landscape.options import field, required
from landscape.text import printable


@dataclasses.dataclass(frozen=True)
class Import(Command):
    """A run file of checkpoints that other programs wrote: safetensors, torch files, folders of Hugging Face."""

    examples = (
        "landscape import model-*.safetensors --out checkpoints/model.h5",
        "landscape import trainer_output/ --out model.h5 --skip '*.inv_freq'",
    )
    groups = {
        "checkpoints": ("sources", "step_pattern", "skip"),
        "output": ("out", "overwrite", "json", "quiet"),
    }
    interrupted = "nothing was written; the same command starts again"

    sources: tyro.conf.Positional[tuple[str, ...]] = required(
        ".safetensors, .pt, .pth and .ckpt files, folders of them, checkpoint-* folders, or globs of these in quotes."
    )
    out: Path = required("Run file to write.")
    step_pattern: str = field(
        "",
        "Regex whose first group is the step in a name; by default the number after 'step' or 'iter', the only number, "
        "or the only one in which alike names differ.",
    )
    skip: tuple[str, ...] = field(
        (),
        "Patterns of tensors to leave out, such as *.inv_freq.",
        many=True,
    )
    overwrite: bool = field(False, "Replace an existing run file.")
    json: bool = field(False, "Print the summary as one JSON document.")
    quiet: bool = field(False, "No progress bar.")

    def execute(self) -> int:
        from landscape.training.importers import import_checkpoints, import_steps

        with working_on(self.out):
            # Before anything is written, so that a wrong step is seen.
            for path, step in import_steps(self.sources, self.step_pattern):
                line = f"{printable(path.name)} -> step {step}"
                print(line, file=sys.stderr) if self.json else say(line)
            found = import_checkpoints(self.sources, self.out, self.step_pattern, self.skip, self.overwrite, self.quiet)
        if self.json:
            say(tables.document(dataclasses.asdict(found)))
            return 0
        for note in found.notes:
            print(printable(note), file=sys.stderr)
        count, last = len(found.steps), found.steps[-1]
        steps = f"{count} checkpoints, steps {found.steps[0]} to" if count > 1 else "a checkpoint at step"
        say(
            f"{printable(found.path)}: {steps} {last}, "
            f"{found.num_parameters:,} parameters in {found.num_tensors} tensors"
        )
        return 0
