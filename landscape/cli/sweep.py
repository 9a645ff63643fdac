"""`landscape sweep`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from landscape.cli import tables
from landscape.cli.parser import Printed
from landscape.cli.printing import say
from landscape.cli.train import reached
from landscape.errors import UNFINISHED, ConfigError, FileError, complain, working_on
from landscape.options import field
from landscape.text import printable

if TYPE_CHECKING:
    from landscape.jobs.plan import SweepConfig

EXAMPLES = (
    "landscape sweep sweep.json            # train and analyse, on all cores",
    "landscape sweep sweep.json --status   # what is done, runs or failed",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepOptions(Printed):
    """Where the work is done, and where the results go."""

    out: Path = field(
        Path("checkpoints"), "Folder to write: OUT/NAME/CASE-FIELD=VALUE-sSEED.h5 and .hessian.h5 beside each."
    )
    status: bool = field(False, "Print what is done, running, failed and waiting, and where the logs are.")
    cancel: bool = field(False, "End the jobs of Slurm that run or wait; the same command without it resumes.")
    jobs: int | None = field(
        None, "Number of single-threaded worker processes. By default one per core.", at_least=1, at_most=1024
    )
    executor: Literal["local", "slurm", "debug"] = field(
        "local",
        "local: worker processes of this command. slurm: arrays of Slurm, which it submits. debug: this process alone.",
    )
    pack: int = field(1, "Runs of one job of Slurm, trained side by side.", at_least=1, at_most=10_000)
    slurm: tuple[str, ...] = field(
        (), "Options of Slurm: partition=gpu time=120 gpus=1 mem=8GB array_parallelism=50 and others of submitit."
    )
    overwrite: bool = field(
        False, "Remove the files of the sweep in the folder and start again; other files are refused."
    )
    quiet: bool = field(False, "No progress bar.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.executor != "slurm" and (self.pack, self.slurm) != (1, ()):
            raise ConfigError("pack and slurm are options of Slurm", "add --executor slurm, or leave them out")
        if self.executor != "local" and self.jobs is not None:
            raise ConfigError(f"jobs is {self.jobs}, but executor {self.executor} has no workers", "leave out --jobs")
        if self.status and self.cancel:
            raise ConfigError("status and cancel are two commands", "give one of them")


def sweep(
    config: Annotated[Path, Parameter(help="JSON file with cases, grid, seeds and analyses.")],
    *,
    options: SweepOptions = SweepOptions(),
) -> int:
    """Train and analyse many runs on all cores; the same command resumes."""
    from landscape.jobs.plan import load_sweep

    plan = load_sweep(config)
    with working_on(options.out):
        if options.status:
            return _status(plan, options)
        if options.cancel:
            from landscape.jobs.slurm import cancel_sweep

            count = cancel_sweep(plan, options.out)
            say(f"cancelled: {count:,} jobs" if count else "Slurm has no job of this sweep in its queue")
            return 0
        return _submit(plan, options) if options.executor == "slurm" else _run(plan, options)


def _run(plan: SweepConfig, options: SweepOptions) -> int:
    from landscape.jobs import run

    jobs = 0 if options.executor == "debug" else options.jobs
    result = run.sweep(plan, options.out, jobs, options.overwrite, options.quiet)
    if options.json:
        say(tables.document(result.document()))
    elif options.csv:
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


def _submit(plan: SweepConfig, options: SweepOptions) -> int:
    from landscape.jobs import slurm

    submitted = slurm.submit_sweep(plan, options.out, options.pack, slurm.options(options.slurm), options.overwrite)
    say(tables.submissions(submitted, options.json))
    return 0


def _status(plan: SweepConfig, options: SweepOptions) -> int:
    from landscape.jobs.status import status

    state = status(plan, options.out)
    if options.json:
        say(tables.document({"counts": state.counts, "files": [dataclasses.asdict(file) for file in state.files]}))
    elif options.csv:
        say(tables.rows_csv(list(map(dataclasses.asdict, state.files))))
    else:
        say(tables.sweep_status(state))
    return 0
