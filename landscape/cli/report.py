"""`landscape report`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from landscape.cli.parser import Options
from landscape.cli.printing import say
from landscape.errors import working_on
from landscape.options import field
from landscape.text import printable

EXAMPLES = (
    "landscape report checkpoints/run.h5                    # with run.hessian.h5",
    "landscape report checkpoints/*.h5 --out reports/mine   # several runs",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """What is reported, and where the page goes."""

    out: Path | None = field(None, "Folder to write. By default reports/NAME of the first file.")
    problem: str = field(
        "", "Your own problem, as in `landscape hessian --problem`: refuse Hessian files made with another one."
    )
    formats: str = field("", "Save figures as PNG or PDF, too: png, pdf or png,pdf.")
    overwrite: bool = field(False, "Replace an earlier report; files added to its folder stay.")
    quiet: bool = field(False, "No progress bar.")


def report(
    file: Annotated[Path, Parameter(help="Run or Hessian file; the analyses beside a run are included.")],
    *files: Annotated[Path, Parameter(help="More files.")],
    options: ReportOptions = ReportOptions(),
) -> int:
    """Write an HTML page with figures, from run files and Hessian files."""
    from landscape.report.page import write_report

    out = options.out or Path("reports") / file.name.removesuffix(".h5").removesuffix(".hessian")
    with working_on(out):
        page = write_report((file, *files), out, options.overwrite, options.quiet, options.problem, options.formats)
    say(printable(page))
    return 0
