"""`landscape export`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import tyro

from landscape.cli.declared import Command
from landscape.cli.printing import say
from landscape.errors import ConfigError, working_on
from landscape.options import field, required
from landscape.text import printable


@dataclasses.dataclass(frozen=True)
class Export(Command):
    """A run, Hessian or geometry file as files of other tools, each kind in a folder of its own."""

    examples = (
        "landscape export checkpoints/run.h5 --tensorboard logs/run",
        "landscape export checkpoints/run.hessian.h5 --csv tables   # tidy tables",
    )
    groups = {
        "input": ("file",),
        "output": ("csv", "parquet", "netcdf", "tensorboard", "wandb", "overwrite"),
    }

    file: tyro.conf.Positional[Path] = required("Run, Hessian or geometry file.")
    csv: Path | None = field(None, "Folder for the measurements as CSV, one file for each set of axes.")
    parquet: Path | None = field(None, "Folder for the same as Parquet; needs the extra `parquet`.")
    netcdf: Path | None = field(None, "Folder for one NetCDF file with all groups, parameters too.")
    tensorboard: Path | None = field(
        None, "Folder for TensorBoard, a scalar for each quantity; needs the extra `tensorboard`."
    )
    wandb: Path | None = field(None, "Folder for an offline run of Weights & Biases; needs the extra `wandb`.")
    overwrite: bool = field(False, "Replace earlier exports.")

    def execute(self) -> int:
        from landscape.exports import FORMS, export, require
        from landscape.files.files import resolved
        from landscape.progress import clock

        asked = {form: out for form in FORMS if (out := getattr(self, form)) is not None}
        if not asked:
            raise ConfigError("nothing to export to", f"name a folder: {', '.join(f'--{form} DIR' for form in FORMS)}")
        if len({resolved(out) for out in asked.values()}) < len(asked):
            raise ConfigError("two exports go to one folder", "give each a folder of its own")
        for form in asked:
            require(form)
        for form, out in asked.items():
            with working_on(out), clock(form):
                say(printable(export(self.file, out, form, self.overwrite)))
        return 0
