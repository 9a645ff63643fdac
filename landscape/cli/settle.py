"""`landscape settle`."""

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
    Analysis = flags(AnalysisConfig(), HEADINGS)

EXAMPLES = (
    "landscape settle checkpoints/run.h5 --step 500               # all blocks",
    f"landscape settle checkpoints/run.h5 --step 500 --curve --blocks {CLAIM}",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SettleOptions(Printed):
    """How far the descent goes, and where the result goes."""

    out: Path | None = field(
        None, "Hessian file to write, with the settled parameters. By default RUN.settled-STEP.h5 beside the run."
    )
    share: float = field(
        1e-2, "Share of the gradient norm at the checkpoint below which a point is settled.", above=0, below=1
    )
    descent_steps: int = field(
        50,
        "Largest number of steps of the descent. Thousands train the network further.",
        at_least=0,
        at_most=MOST,
    )
    resume: bool = field(
        False,
        "With --overwrite: continue a descent that matches instead of replacing it. Without --overwrite the same "
        "command does so anyway, also with more steps.",
    )
    overwrite: bool = field(False, "Replace a file of another descent or other settings.")
    tables: bool = field(False, "Print tables of all quantities at the settled point.")
    quiet: bool = field(False, "No progress bar.")


def settle(
    run: RunFile,
    *,
    step: Annotated[int, Parameter(help="Stored step to start from.")],
    config: Analysis = Analysis(),
    options: SettleOptions = SettleOptions(),
) -> int:
    """Lessen the optimiser's noise at a checkpoint by a descent, and measure the Hessian there.

    Full-batch Adam, whose rate only decreases, on the data loss with the weight decay of the run, whatever --objective
    measures. Decay that is not part of a smooth loss (AdamW, nuclear norms) is left out; --problem may have none.
    """
    from landscape.files.files import settled_file
    from landscape.measure import settle as descent
    from landscape.measure.tables import rows, unconverged

    out = options.out or settled_file(run, step)
    with working_on(out):
        result = descent.settle(
            run,
            step,
            plain(config),
            out,
            options.share,
            options.descent_steps,
            options.resume or not options.overwrite,
            options.overwrite,
            options.quiet,
        )
    point = rows(result, "settled")[step]
    status = descent.ENDS[int(point["status"])]
    if options.csv:
        say(tables.file_csv(out))
    elif options.json:
        say(tables.hessian_document(result, settled={**point, "status": status}))
    else:
        shown = tables.measurements(result) if options.tables else tables.summary(result, result.steps)
        say(f"{tables.settled(status, point)}\n{tables.descents(result)}\n\n{shown}\nwritten: {printable(out)}")
    return UNFINISHED if status == "stalled" or any(unconverged(result).values()) else 0
