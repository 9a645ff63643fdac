"""`landscape critical`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from landscape.cli import tables
from landscape.cli.printing import say
from landscape.config import MOST, AnalysisConfig
from landscape.errors import UNFINISHED, working_on
from landscape.options import check_bounds, field
from landscape.text import printable


@dataclasses.dataclass(frozen=True)
class Critical:
    """The critical point of the objective nearest to a checkpoint, and the Hessian there."""

    ckpt: Path
    """Run file to start from."""
    step: int
    """Stored step to start from."""
    # A saddle index belongs to a critical point of what was minimised.
    analysis: AnalysisConfig = AnalysisConfig(objective="regularised")
    out: Path | None = None
    """Hessian file to write, with the refined parameters. None: RUN.critical-STEP.h5 beside the run."""
    grad_tol: float = field(1e-10, "Gradient norm below which a point is critical.", above=0, below=1)
    search_hvps: int = field(
        60_000,
        "Largest number of Hessian-vector products of the search.",
        was="search_products",
        at_least=0,
        at_most=MOST,
    )
    resume: bool = False
    """Continue an earlier search, also with more products or blocks; start one if there is none."""
    overwrite: bool = False
    """Replace an existing file."""
    json: bool = False
    """Print everything measured as one JSON document."""
    quiet: bool = False
    """No progress bar."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def execute(self) -> int:
        """Run the command; returns its exit code."""
        from landscape.analysis.critical import ENDS, default_output, refine

        out = self.out or default_output(self.ckpt, self.step)
        with working_on(out):
            result = refine(
                self.ckpt,
                self.step,
                self.analysis,
                out,
                self.grad_tol,
                self.search_hvps,
                self.resume,
                self.overwrite,
                self.quiet,
            )
        point = result.critical_point(self.step)
        status = ENDS[point["status"]]
        if self.json:
            found = {**point, "status": status}
            say(tables.hessian_document(out, result, critical_point=found))
        else:
            say(f"{tables.critical_point(status, point)}\n\n{tables.measurements(result)}\nwritten: {printable(out)}")
        return 0 if status == "critical" and all(map(result.converged, result.steps)) else UNFINISHED
