"""`landscape export`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from landscape.cli.parser import Options
from landscape.cli.printing import say
from landscape.errors import ConfigError, working_on
from landscape.options import field
from landscape.text import printable

EXAMPLES = (
    "landscape export checkpoints/run.h5 --tensorboard logs/run",
    "landscape export checkpoints/run.hessian.h5 --csv tables   # tidy tables",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """Where each kind of file goes."""

    csv: Path | None = field(None, "Folder for the measurements as CSV, one file for each set of axes.")
    parquet: Path | None = field(None, "Folder for the same as Parquet; needs the extra `parquet`.")
    netcdf: Path | None = field(None, "Folder for one NetCDF file with all groups, parameters too.")
    tensorboard: Path | None = field(
        None, "Folder for TensorBoard, a scalar for each quantity; needs the extra `tensorboard`."
    )
    wandb: Path | None = field(None, "Folder for an offline run of Weights & Biases; needs the extra `wandb`.")
    overwrite: bool = field(False, "Replace earlier exports.")


def export(
    file: Annotated[Path, Parameter(help="Run, Hessian or geometry file.")],
    *,
    options: ExportOptions = ExportOptions(),
) -> int:
    """Write a run, Hessian or geometry file in the forms of other tools, each into a folder of its own."""
    from landscape import exports
    from landscape.files.files import resolved

    folders = {form: out for form in exports.FORMS if (out := getattr(options, form)) is not None}
    if not folders:
        raise ConfigError(
            "nothing to export to", f"name a folder: {', '.join(f'--{form} DIR' for form in exports.FORMS)}"
        )
    if len({resolved(out) for out in folders.values()}) < len(folders):
        raise ConfigError("two exports go to one folder", "give each a folder of its own")
    for form in folders:
        exports.require(form)
    for form, out in folders.items():
        with working_on(out):
            say(printable(exports.export(file, out, form, options.overwrite)))
    return 0
