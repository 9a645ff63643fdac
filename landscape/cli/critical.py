"""`landscape critical`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from landscape.cli import tables
from landscape.cli.declared import Command, RunFile
from landscape.cli.hessian import MEASURED, METHOD
from landscape.cli.printing import say
from landscape.config import MOST, AnalysisConfig
from landscape.errors import UNFINISHED, working_on
from landscape.models.embedding_mlp.blocks import CLAIM
from landscape.options import field, required
from landscape.text import printable


@dataclasses.dataclass(frozen=True)
class Critical(Command):
    """The critical point of the objective nearest to a checkpoint, and the Hessian there."""

    examples = (
        "landscape critical checkpoints/run.h5 --step 500               # all blocks",
        f"landscape critical checkpoints/run.h5 --step 500 --blocks {CLAIM}  # one pair",
    )
    groups = {
        "search": ("run", "step", "search_tol", "search_hvps", "resume"),
        "what is measured": MEASURED,
        "method": METHOD,
        "output": ("out", "overwrite", "json", "csv", "quiet"),
    }

    run: RunFile = required("Run file to start from.", was="ckpt")
    step: int = required("Stored step to start from.")
    # A saddle index belongs to a critical point of what was minimised.
    analysis: AnalysisConfig = AnalysisConfig(objective="regularised")
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
        60_000,
        "Largest number of Hessian-vector products of the search.",
        was="search_products",
        at_least=0,
        at_most=MOST,
    )
    resume: bool = field(
        False,
        "With --overwrite: continue a search that matches instead of replacing it. Without --overwrite the same "
        "command does so anyway, also with more products or blocks.",
    )
    overwrite: bool = field(False, "Replace a file of another search or other settings.")
    json: bool = field(False, "Print everything measured as one JSON document.")
    csv: bool = field(False, "Print what belongs to a block as CSV.")
    quiet: bool = field(False, "No progress bar.")

    def execute(self) -> int:
        from landscape.files.files import critical_file
        from landscape.measure.critical import ENDS, refine
        from landscape.measure.tables import rows, unconverged

        out = self.out or critical_file(self.run, self.step)
        with working_on(out):
            result = refine(
                self.run,
                self.step,
                self.analysis,
                out,
                self.search_tol,
                self.search_hvps,
                self.resume or not self.overwrite,
                self.overwrite,
                self.quiet,
            )
        point = rows(result, "critical_point")[self.step]
        status = ENDS[int(point["status"])]
        if self.csv:
            say(tables.hessian_csv(out))
        elif self.json:
            found = {**point, "status": status}
            say(tables.hessian_document(result, critical_point=found))
        else:
            say(f"{tables.critical_point(status, point)}\n\n{tables.measurements(result)}\nwritten: {printable(out)}")
        return 0 if status == "critical" and not any(unconverged(result).values()) else UNFINISHED
