"""`landscape hessian`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from landscape.cli import tables
from landscape.cli.declared import Command, RunFile
from landscape.cli.printing import say
from landscape.config import HessianConfig
from landscape.errors import UNFINISHED, ConfigError, NumericsError, working_on
from landscape.models.embedding_mlp.blocks import BALANCED
from landscape.options import field, required
from landscape.ranks.launch import PATIENCE, Launch, launched
from landscape.text import printable

if TYPE_CHECKING:
    from landscape.files.views import File
    from landscape.ranks.group import Ranks

MEASURED = ("blocks", "k", "objective", "problem", "eigenvectors")
METHOD = (
    "method", "dense_limit", "spectra", "rtol", "rel_tau", "max_hvps", "probes", "probe_steps", "bandwidth", "seed",
    "chunk_size", "device", "dtype",
)  # fmt: skip
"""Names under two headings of the help, for commands with an AnalysisConfig."""


@dataclasses.dataclass(frozen=True)
class Hessian(Command):
    """Block spectra, saddle indices and coupling ratios of a run's checkpoints."""

    examples = (
        "landscape hessian checkpoints/run.h5 --steps 0,500   # two checkpoints",
        f"landscape hessian checkpoints/run.h5 --blocks {' '.join(BALANCED)}    # no pairs: cheaper",
    )
    groups = {
        "what is measured": ("run", "steps", "num_steps", *MEASURED),
        "method": (*METHOD, "verify"),
        "processes": ("jobs", "patience"),
        "output": ("out", "overwrite", "json", "csv", "quiet"),
    }

    analysis: HessianConfig
    run: RunFile = required("Run file to analyse; also --ckpt RUN.", was="ckpt")
    out: Path | None = field(None, "Hessian file to write. By default RUN.hessian.h5 beside the run.")
    overwrite: bool = field(
        False,
        "Replace a Hessian file of another run or other settings; a file that matches is always resumed and extended.",
    )
    jobs: int | None = field(
        None,
        "Checkpoints measured at once, each in a process of one thread; the file is the same for any number. "
        "By default one per core, as far as memory allows. Matrix-free blocks are measured one checkpoint after the "
        "other.",
        at_least=1,
        at_most=1024,
    )
    patience: float = field(
        PATIENCE, "Under torchrun: seconds of doing nothing after which a rank counts as hanging.", at_least=2
    )
    verify: bool = field(False, "Compare with PyHessian's top eigenvalue, and with a dense Hessian where it fits.")
    json: bool = field(False, "Print everything measured as one JSON document.")
    csv: bool = field(False, "Print what belongs to a step and a block as CSV.")
    quiet: bool = field(False, "No progress bar.")

    def execute(self) -> int:
        from landscape.files.files import hessian_file

        out = self.out or hessian_file(self.run)
        with working_on(out):
            if launch := launched():
                return self._over_ranks(launch, out)
            return self._print(self._measure(out), out)

    def _over_ranks(self, launch: Launch, out: Path) -> int:
        """Measure as one of several ranks, and print as the first of them."""
        from landscape.ranks.group import joined

        if self.jobs is not None:
            raise ConfigError("jobs are for one process", "leave out --jobs, or start it without torchrun")
        with joined(launch, self.patience) as ranks:
            if ranks.rank:
                from landscape.measure.hessian import follow

                return follow(self.run, self.analysis, ranks)
            result = self._measure(out, ranks)
            ranks.say(("end", _code(result)))
        # Whoever reads it may take their time: a rank that printed it would count as hanging.
        return self._print(result, out)

    def _measure(self, out: Path, ranks: Ranks | None = None) -> File:
        from landscape.measure.hessian import analyse

        jobs = 0 if ranks else self.jobs
        return analyse(self.run, self.analysis, out, self.overwrite, self.quiet, jobs, ranks)

    def _print(self, result: File, out: Path) -> int:
        """Compare with other tools if asked to, and print; returns the exit code."""
        opinions = []
        if self.verify:
            from landscape.measure.verify import verify

            opinions = verify(self.run, result, self.quiet)
        if self.csv:
            say(tables.hessian_csv(out))
        elif self.json:
            say(tables.hessian_document(result, verify=[dataclasses.asdict(o) for o in opinions]))
        else:
            say(f"{tables.measurements(result)}\n{tables.verification(opinions)}written: {printable(out)}")
        if not all(o.agrees for o in opinions):
            raise NumericsError("the dense Hessian disagrees", "please report this with the run file")
        return _code(result)


def _code(result: File) -> int:
    from landscape.measure.tables import unconverged

    return UNFINISHED if any(unconverged(result).values()) else 0
