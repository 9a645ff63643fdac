"""`landscape sweep`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from landscape.cli import tables
from landscape.cli.cluster import Cluster
from landscape.cli.declared import Command
from landscape.cli.printing import say
from landscape.cli.train import reached
from landscape.errors import UNFINISHED, ConfigError, FileError, complain, working_on
from landscape.options import field, required
from landscape.text import printable

if TYPE_CHECKING:
    from landscape.jobs.plan import SweepConfig


@dataclasses.dataclass(frozen=True)
class Sweep(Command):
    """Many runs and their analyses on all cores; run again, it resumes."""

    examples = (
        "landscape sweep sweep.json            # train and analyse, on all cores",
        "landscape sweep sweep.json --status   # what is done, runs or failed",
    )
    groups = {
        "work": ("config", "status", "cancel"),
        "processes": ("jobs", "executor", "pack", "slurm"),
        "output": ("out", "overwrite", "json", "csv", "quiet"),
    }

    cluster: Cluster
    config: tyro.conf.Positional[Path] = required("JSON file with cases, grid, seeds and analyses.")
    out: Path = field(
        Path("checkpoints"), "Folder to write: OUT/NAME/CASE-FIELD=VALUE-sSEED.h5 and .hessian.h5 beside each."
    )
    jobs: int | None = field(
        None, "Number of single-threaded worker processes. By default one per core.", at_least=1, at_most=1024
    )
    executor: Literal["local", "slurm", "debug"] = field(
        "local",
        "local: worker processes of this command. slurm: arrays of Slurm, which it submits. debug: this process alone.",
    )
    status: bool = field(False, "Print what is done, running, failed and waiting, and where the logs are.")
    cancel: bool = field(False, "End the jobs of Slurm that run or wait; the same command without it resumes.")
    overwrite: bool = field(
        False, "Remove the files of the sweep in the folder and start again; other files are refused."
    )
    json: bool = field(False, "Print the results as one JSON document.")
    csv: bool = field(False, "Print a row a run as CSV.")
    quiet: bool = field(False, "No progress bar.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cluster.require(self.executor)
        if self.executor != "local" and self.jobs is not None:
            raise ConfigError(f"jobs is {self.jobs}, but executor {self.executor} has no workers", "leave out --jobs")
        if self.status and self.cancel:
            raise ConfigError("status and cancel are two commands", "give one of them")

    def execute(self) -> int:
        from landscape.jobs.plan import load_sweep

        config = load_sweep(self.config)
        with working_on(self.out):
            if self.status:
                return self._show(config)
            if self.cancel:
                from landscape.jobs.slurm import cancel_sweep

                count = cancel_sweep(config, self.out)
                say(f"cancelled: {count:,} jobs" if count else "Slurm has no job of this sweep in its queue")
                return 0
            return self._submit(config) if self.executor == "slurm" else self._run(config)

    def _run(self, config: SweepConfig) -> int:
        from landscape.jobs.run import run_sweep

        jobs = 0 if self.executor == "debug" else self.jobs
        result = run_sweep(config, self.out, jobs, self.overwrite, self.quiet)
        if self.json:
            say(tables.document(result.document()))
        elif self.csv:
            say(tables.rows_csv(result.rows()))
        else:
            lines = [
                f"{summary.path}: {summary.steps} step{'s' * (summary.steps != 1)}; {reached(summary)}"
                for _, summary in result.runs
            ]
            lines += [f"{path}: not every eigenvalue converged" for path in result.unconverged]
            for line in lines:
                say(printable(line))
        for failure in result.failures:
            complain(FileError(f"{failure.path}: {failure.error}", failure.hint))
        return 1 if result.failures else UNFINISHED if result.unconverged else 0

    def _submit(self, config: SweepConfig) -> int:
        from landscape.jobs.slurm import submit_sweep

        submitted = submit_sweep(config, self.out, self.cluster.pack, self.cluster.options, self.overwrite)
        say(tables.submissions(submitted, self.json))
        return 0

    def _show(self, config: SweepConfig) -> int:
        from landscape.jobs.status import status

        found = status(config, self.out)
        if self.json:
            say(tables.document({"counts": found.counts, "files": [dataclasses.asdict(file) for file in found.files]}))
        elif self.csv:
            say(tables.rows_csv(list(map(dataclasses.asdict, found.files))))
        else:
            say(tables.sweep_status(found))
        return 0
