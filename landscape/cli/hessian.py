"""`landscape hessian`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from landscape.cli import tables
from landscape.cli.cluster import Cluster
from landscape.cli.printing import say
from landscape.config import HessianConfig
from landscape.errors import UNFINISHED, ConfigError, NumericsError, working_on
from landscape.options import check_bounds, field
from landscape.text import printable


@dataclasses.dataclass(frozen=True)
class Hessian:
    """Block spectra, saddle indices and coupling ratios of a run's checkpoints."""

    analysis: HessianConfig
    cluster: Cluster
    ckpt: Path
    """Run file to analyse."""
    out: Path | None = None
    """Hessian file to write. None: RUN.hessian.h5 beside the run."""
    overwrite: bool = False
    """Replace a Hessian file of another run or other settings; a file that matches is always resumed and extended."""
    fsync: bool = False
    """Sync every step to disk, so that it survives a power failure."""
    jobs: int | None = field(
        None,
        "Checkpoints measured at once, each in a process of one thread; the file is the same for any number. None: one "
        "per core, as far as memory allows. Matrix-free blocks are measured one checkpoint after the other.",
        at_least=1,
        at_most=1024,
    )
    executor: Literal["local", "slurm"] = "local"
    """local: this command and its processes. slurm: a job a step, and one that makes the file; returns at once."""
    verify: bool = False
    """Compare with PyHessian's top eigenvalue, and with a dense Hessian where it fits."""
    json: bool = False
    """Print everything measured as one JSON document."""
    quiet: bool = False
    """No progress bar."""

    def __post_init__(self) -> None:
        check_bounds(self)
        self.cluster.require(self.executor)
        if self.executor == "slurm" and (self.verify or self.fsync or self.jobs is not None):
            raise ConfigError("verify, fsync and jobs are options of executor local", "leave them out")

    def execute(self) -> int:
        """Run the command; returns its exit code."""
        from landscape.analysis.hessian import analyse
        from landscape.storage.files import hessian_file

        out = self.out or hessian_file(self.ckpt)
        with working_on(out):
            if self.executor == "slurm":
                from landscape.sweep.steps import submit_analysis

                options = self.cluster.options
                submitted = submit_analysis(self.ckpt, self.analysis, out, self.cluster.pack, options, self.overwrite)
                say(tables.submissions(submitted, self.json))
                return 0
            result = analyse(self.ckpt, self.analysis, out, self.overwrite, self.quiet, self.fsync, self.jobs)
        opinions = []
        if self.verify:
            from landscape.analysis.verify import verify

            opinions = verify(self.ckpt, result)
        if self.json:
            say(tables.hessian_document(out, result, verify=[dataclasses.asdict(o) for o in opinions]))
        else:
            say(f"{tables.measurements(result)}\n{tables.verification(opinions)}written: {printable(out)}")
        if not all(o.agrees for o in opinions):
            raise NumericsError("the dense Hessian disagrees", "please report this with the run file")
        return 0 if all(map(result.converged, result.steps)) else UNFINISHED
