"""`landscape critical`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from landscape.cli import tables
from landscape.cli.hessian import HEADINGS
from landscape.cli.parser import Printed, RunFile, flags, plain
from landscape.cli.printing import say
from landscape.config import MOST, AnalysisConfig
from landscape.errors import UNFINISHED, working_on
from landscape.models.embedding_mlp.blocks import CLAIM
from landscape.options import field
from landscape.text import printable

if TYPE_CHECKING:
    Analysis = AnalysisConfig
else:
    # A saddle index belongs to a critical point of what was minimised.
    Analysis = flags(AnalysisConfig(objective="regularised"), HEADINGS)

EXAMPLES = (
    "landscape critical checkpoints/run.h5 --step 500               # all blocks",
    f"landscape critical checkpoints/run.h5 --step 500 --blocks {CLAIM}  # one pair",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CriticalOptions(Printed):
    """How far the search goes, and where the result goes."""

    out: Path | None = field(
        None, "Hessian file to write, with the refined parameters. By default RUN.critical-STEP.h5 beside the run."
    )
    search_tol: float = field(
        1e-10,
        "Distance to the critical point, as Newton steps predict it and relative to the norm of the parameters, up to "
        "which a point is critical.",
        above=0,
        below=1,
    )
    search_hvps: int = field(
        60_000, "Largest number of Hessian-vector products of the search.", at_least=0, at_most=MOST
    )
    resume: bool = field(
        False,
        "With --overwrite: continue a search that matches instead of replacing it. Without --overwrite the same "
        "command does so anyway, also with more products.",
    )
    overwrite: bool = field(False, "Replace a file of another search or other settings.")
    tables: bool = field(False, "Print tables of all quantities at the critical point.")
    quiet: bool = field(False, "No progress bar.")


def critical(
    run: RunFile,
    *,
    step: Annotated[int, Parameter(help="Stored step to start from.")],
    config: Analysis = Analysis(),
    options: CriticalOptions = CriticalOptions(),
) -> int:
    """Search for the critical point nearest to a checkpoint, and measure the Hessian there."""
    from landscape.files.files import critical_file
    from landscape.measure import critical as search
    from landscape.measure.tables import rows, unconverged

    out = options.out or critical_file(run, step)
    with working_on(out):
        result = search.critical(
            run,
            step,
            plain(config),
            out,
            options.search_tol,
            options.search_hvps,
            options.resume or not options.overwrite,
            options.overwrite,
            options.quiet,
        )
    point = rows(result, "critical_point")[step]
    status = search.ENDS[int(point["status"])]
    if options.csv:
        say(tables.file_csv(out))
    elif options.json:
        say(tables.hessian_document(result, critical_point={**point, "status": status}))
    else:
        shown = tables.measurements(result) if options.tables else tables.summary(result, result.steps)
        say(f"{tables.critical_point(status, point)}\n\n{shown}\nwritten: {printable(out)}")
    return 0 if status == "critical" and not any(unconverged(result).values()) else UNFINISHED
