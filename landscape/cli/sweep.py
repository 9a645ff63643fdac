"""`landscape sweep`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from landscape.cli import tables
from landscape.cli.printing import say
from landscape.cli.train import reached
from landscape.errors import UNFINISHED, FileError, complain, working_on
from landscape.options import check_bounds, field
from landscape.text import printable


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Many runs and their analyses on all cores; run again, it resumes."""

    config: Path
    """JSON file with cases, grid, seeds and analyses."""
    out: Path = Path("checkpoints")
    """Folder to write: OUT/NAME/CASE-FIELD=VALUE-sSEED.h5 and .hessian.h5 beside each."""
    jobs: int | None = field(
        None, "Number of single-threaded worker processes. None: one per core.", at_least=1, at_most=1024
    )
    overwrite: bool = False
    """Remove the files of the sweep in the folder and start again; other files are refused."""
    json: bool = False
    """Print the results as one JSON document."""
    quiet: bool = False
    """No progress bar."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def execute(self) -> int:
        """Run the command; returns its exit code."""
        from landscape.sweep.plan import load_sweep
        from landscape.sweep.run import run_sweep

        with working_on(self.out):
            result = run_sweep(load_sweep(self.config), self.out, self.jobs, self.overwrite, self.quiet)
        if self.json:
            say(tables.document(result.document()))
        else:
            lines = [f"{summary.path}: {summary.steps} steps; {reached(summary)}" for _, summary in result.runs]
            lines += [f"{path}: not every eigenvalue converged" for path in result.unconverged]
            for line in lines:
                say(printable(line))
        for failure in result.failures:
            complain(FileError(f"{failure.path}: {failure.error}", failure.hint))
        return 1 if result.failures else UNFINISHED if result.unconverged else 0
