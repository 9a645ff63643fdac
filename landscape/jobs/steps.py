"""`landscape hessian` as jobs: measure each step apart, then merge them in the order of the steps."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from landscape.config import HessianConfig
from landscape.files.files import as_path, make_folder, output, remove_if_empty
from landscape.jobs.jobs import Job
from landscape.jobs.journal import LEASES, last_attempt
from landscape.jobs.leases import Holder
from landscape.jobs.slurm import Submission, in_queue, submit
from landscape.measure.hessian import analyse, new_tasks
from landscape.measure.parallel import Task
from landscape.measure.parts import folder_of, part_file, write_part


@dataclasses.dataclass(frozen=True)
class Step(Job):
    """Measure a step into a file of its own."""

    run: Path
    config: HessianConfig
    task: Task
    path: Path

    @property
    def outputs(self) -> tuple[Path, ...]:
        return (self.path,)

    def execute(self) -> None:
        if not self.path.exists():
            write_part(self.path, self.run, self.config, self.task)


@dataclasses.dataclass(frozen=True)
class Merge(Job):
    """Put the measured steps into the Hessian file, and measure what is missing of those that it had."""

    run: Path
    config: HessianConfig
    path: Path
    overwrite: bool

    @property
    def outputs(self) -> tuple[Path, ...]:
        return (self.path,)

    def waits_for(self) -> Path | None:
        _, tasks, _ = new_tasks(self.run, self.config, self.path, self.overwrite)
        needed = [part_file(self.path, self.config, task) for task in tasks]
        return next((part for part in needed if not part.exists()), None)

    def execute(self) -> None:
        analyse(self.run, self.config, self.path, self.overwrite, quiet=True)


def submit_analysis(
    run: Path | str,
    config: HessianConfig,
    out: Path | str,
    pack: int = 1,
    options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> list[Submission]:
    """Submit to Slurm what `analyse` would measure, a step a job, and a last job that makes the file; returns at once.

    Repeated, it submits what is left and not in the queue. Dense blocks are those of `analyse` bit for bit; searches
    of matrix-free ones do not start from the checkpoint before. Raises LandscapeError.
    """
    run, out = as_path(run).resolve(), output(out).resolve()
    make_folder(out.parent)
    folder = folder_of(out)
    with contextlib.ExitStack() as stack:
        stack.callback(remove_if_empty, folder)
        holder = stack.enter_context(Holder(folder / LEASES))
        holder.take(out.name)
        waiting = in_queue(folder)
        config, tasks, is_left = new_tasks(run, config, out, overwrite)
        if not is_left or out.name in waiting:
            return []
        steps = [Step(run, config, task, part_file(out, config, task)) for task in tasks]
        left = [step for step in steps if not step.path.exists() and step.path.name not in waiting]
        needed = {waiting[step.path.name] for step in steps if waiting.get(step.path.name)}
        merge = Merge(run, config, out, overwrite)
        return submit([left, [merge]], folder, 1 + last_attempt(folder), out.stem, pack, options or {}, needed)
