"""Train and analyse the runs of a sweep in worker processes; finished files are kept, unfinished ones resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from landscape import models
from landscape.config import AnalysisConfig, TrainConfig, to_json
from landscape.errors import ConfigError, FileError, LandscapeError, require_jobs
from landscape.files import schema
from landscape.files.files import (
    make_folder,
    output,
    refuse_foreign,
    remove_if_empty,
    require_writable,
)
from landscape.files.hessians import HessianReader
from landscape.files.runs import RunReader
from landscape.files.writing import lock_of, remove_abandoned, sole_writer, temporary_file
from landscape.jobs.executors import Here, execute_all
from landscape.jobs.jobs import Analysis, Training, is_analysed, is_trained
from landscape.jobs.journal import JOBS, LEASES, Journal, forget, last_attempt
from landscape.jobs.leases import Holder, leases
from landscape.jobs.plan import DEFINITION, SweepAnalysis, SweepConfig, SweepRun, defined, sweep_folder, sweep_runs
from landscape.jobs.slurm import Submission, in_queue, submit
from landscape.measure.measurement import Measurement
from landscape.models.tasks import make_data
from landscape.progress import Bar
from landscape.results import Described, events
from landscape.training.ensemble import balanced, side_by_side
from landscape.training.loop import TOGETHER, RunSummary, clip_batch, summarise
from landscape.training.member import UNSTORED, difference
from landscape.training.schedule import checkpoint_schedule
from landscape.workers import Workers

if TYPE_CHECKING:
    import pandas as pd
    import xarray
    from matplotlib.axes import Axes


@dataclasses.dataclass(frozen=True)
class Failure:
    """A file that could not be finished, the error and its hint."""

    path: Path
    error: str
    hint: str


@dataclasses.dataclass(frozen=True, repr=False)
class SweepResult(Described):
    """The finished runs in the order of `sweep_runs`, analyses that did not converge, and failures."""

    runs: list[tuple[SweepRun, RunSummary]]
    unconverged: list[Path]
    failures: list[Failure]

    def facts(self) -> Iterator[tuple[str, object]]:
        """How many runs there are, how many memorised and grokked, and what is wrong."""
        yield "runs", [str(run.path) for run, _ in self.runs]
        for name in ("memorise_step", "grok_step"):
            yield name, f"reached by {sum(getattr(s, name) is not None for _, s in self.runs)} of {len(self.runs)}"
        yield "unconverged", list(map(str, self.unconverged)) or "none"
        yield "failures", [f"{failure.path}: {failure.error}" for failure in self.failures] or "none"

    def rows(self) -> list[dict[str, Any]]:
        """A row a run: its case, grid values and seed, and its summary."""
        return [{**run.labels, **dataclasses.asdict(summary)} for run, summary in self.runs]

    def to_dataframe(self) -> pd.DataFrame:
        """The same as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_xarray(self) -> xarray.Dataset:
        """The same by run."""
        data: xarray.Dataset = self.to_dataframe().rename_axis("run").to_xarray()
        return data

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw when each run grokked, by setting, on matplotlib axes, by default new ones; returns them."""
        settings = [{name: value for name, value in run.labels.items() if name != "seed"} for run, _ in self.runs]
        names = [", ".join(map(str, setting.values())) for setting in settings]
        data = self.to_dataframe().assign(setting=names).astype({"grok_step": float})
        return events(data, ax, "setting", "grok_step", "steps")

    def document(self) -> dict[str, Any]:
        """The result as JSON types."""
        return {
            "runs": [
                {"labels": run.labels, **dataclasses.asdict(summary), "hessian": run.hessian}
                for run, summary in self.runs
            ],
            "unconverged": self.unconverged,
            "failures": list(map(dataclasses.asdict, self.failures)),
        }


@dataclasses.dataclass(frozen=True)
class Work:
    """What a sweep still has to do, and the lease on its folder.

    configs: of all runs, as stored; folder: of its journals.
    """

    runs: list[SweepRun]
    configs: dict[Path, TrainConfig]
    untrained: dict[Path, TrainConfig]
    analyses: list[Analysis]
    holder: Holder
    folder: Path
    attempt: int


def run_sweep(
    config: SweepConfig,
    out: Path | str = "checkpoints",
    jobs: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> SweepResult:
    """Train the runs of a sweep, those of one shape side by side, then analyse them, in `jobs` processes.

    jobs: None: one per core; 0: none but this one, for a debugger. Everything is checked first: raises ConfigError for
    invalid values and FileError for a file of another config in the way. Later errors become `failures` and do not
    stop other runs. The folder keeps the sweep as sweep.json; `load_sweep` and `sweep_runs` map it to the files. The
    processes import the calling script: guard its own work with `if __name__ == "__main__"`.
    """
    require_jobs(jobs)
    jobs = len(os.sched_getaffinity(0)) if jobs is None else jobs
    with planned(config, out, overwrite) as work, contextlib.ExitStack() as stack:
        pool = stack.enter_context(Workers(jobs)) if jobs else Here()
        journal = Journal(work.folder, work.holder.process.id, work.attempt, str(work.holder.process))
        failures = []
        totals = {"runs": len(work.runs), "analyses": sum(len(run.hessian) for run in work.runs)}
        done = {"runs": len(work.runs) - len(work.untrained), "analyses": totals["analyses"] - len(work.analyses)}
        with Bar(sum(totals.values()), "file", quiet) as bar:

            def show(**ended: int) -> None:
                for kind, number in ended.items():
                    done[kind] += number
                bar.n = sum(done.values())
                bar.set_postfix_str(", ".join(f"{kind} {done[kind]}/{total}" for kind, total in totals.items()))

            show()
            groups = [Training(group) for group in balanced(work.untrained, max(1, jobs))]
            for job, reason in execute_all(groups, pool, work.holder, journal):
                failures += [Failure(path, *reason) for path in job.outputs if reason]
                show(runs=len(job.outputs))
            failed = {failure.path for failure in failures}
            analyses = [analysis for analysis in work.analyses if analysis.run not in failed]
            for job, reason in execute_all(analyses, pool, work.holder, journal):
                failures += [Failure(path, *reason) for path in job.outputs if reason]
                show(analyses=1)
        if not failures:
            forget(work.folder)
    return _result(work.runs, failures)


def submit_sweep(
    config: SweepConfig,
    out: Path | str = "checkpoints",
    pack: int = 1,
    options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> list[Submission]:
    """Submit what is left of a sweep to Slurm, `pack` jobs a task, and return: see `status`.

    options: submitit's parameters. What Slurm has in its queue is not submitted again; new analyses wait for the runs
    there. Raises as `run_sweep`, FileError where it is in the queue with other options, and LandscapeError where Slurm
    refuses the jobs.
    """
    waiting = in_queue(sweep_folder(config, out) / JOBS)
    if waiting and overwrite:
        raise FileError(f"Slurm has {len(waiting):,} files of this sweep in its queue", "end it with --cancel first")
    _require_queued(waiting.keys(), config, out)
    with planned(config, out, overwrite) as work:
        # Groups are the same whatever is left of them, as who trains beside whom changes the last bits.
        groups = balanced(work.configs, math.ceil(len(work.configs) / TOGETHER))
        left = [{p: c for p, c in group.items() if p in work.untrained and p.name not in waiting} for group in groups]
        trainings = [Training(group) for group in left if group]
        analyses = [analysis for analysis in work.analyses if analysis.path.name not in waiting]
        needed = {waiting[a.run.name] for a in analyses if waiting.get(a.run.name)}
        folder = work.folder.resolve()
        return submit([trainings, analyses], folder, work.attempt, config.name, pack, options or {}, needed)


@contextlib.contextmanager
def planned(config: SweepConfig, out: Path | str, overwrite: bool = False) -> Iterator[Work]:
    """What is left of a sweep, whose folder no other process plans or runs while the block lasts.

    Raises ConfigError for invalid values, and FileError for a file of another config in the way, or if another process
    has the folder.
    """
    runs = sweep_runs(config, out)
    analyses = {analysis.name: analysis for analysis in config.analyses}
    settings = {name: analysis.settings for name, analysis in analyses.items()}
    configs = _check(runs, analyses)
    folder = sweep_folder(config, out)
    make_folder(folder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_tidied(runs, folder / JOBS))
        holder = stack.enter_context(Holder(folder / JOBS / LEASES))
        holder.take(DEFINITION)
        stack.enter_context(sole_writer(folder))
        holder.clear()
        earlier = _earlier(folder / DEFINITION, config)
        if overwrite:
            _remove(runs, {} if earlier is None else {run.path: run for run in sweep_runs(earlier, out)}, holder)
            forget(folder / JOBS)
        untrained = {r.path: configs[r.path] for r in runs if not is_trained(r.path, configs[r.path])}
        unanalysed = [
            Analysis(run.path, analyses[name], path)
            for run in runs
            for name, path in run.hessian.items()
            if not is_analysed(run.path, settings[name], path, run.path not in untrained)
        ]
        _define(folder / DEFINITION, config, earlier)
        attempt = 1 + last_attempt(folder / JOBS)
        yield Work(runs, configs, untrained, unanalysed, holder, folder / JOBS, attempt)


def _check(runs: Sequence[SweepRun], analyses: dict[str, SweepAnalysis]) -> dict[Path, TrainConfig]:
    """The configs as stored in the files. Raises ConfigError, DeviceError or DoesNotFitError."""
    configs: dict[Path, TrainConfig] = {}
    by_path = {run.path: run for run in runs}
    for alike in side_by_side({run.path: run.config for run in runs}):
        configs |= clip_batch(alike)
        first = next(iter(alike.values()))
        data = dataclasses.asdict(make_data(first))
        steps = checkpoint_schedule(first)
        for name in {name for path in alike for name in by_path[path].hessian}:
            settings = analyses[name].settings
            problem = models.of_config(first, data, settings.device, settings.chunk_size)
            if settings.problem:
                held = {name: spec.shape for name, spec in problem.parameters.items()}
                problem, _ = models.own(settings, held, next(iter(alike)))
            Measurement.of(problem, settings)
            absent = [step for step in analyses[name].named_steps if step not in steps]
            if absent:
                raise ConfigError(
                    f"hessian {name!r} is of step {absent[0]}, but {next(iter(alike)).stem} will not store it",
                    "name it in checkpoint_at, or choose another",
                )
    return configs


def _earlier(definition: Path, config: SweepConfig) -> SweepConfig | None:
    """The sweep of an existing folder; None for a new one.

    Raises FileError for an invalid definition, and for one of another sweep that someone wrote by hand.
    """
    if not definition.exists():
        return None
    try:
        earlier = defined(definition.parent)
    except LandscapeError as error:
        raise FileError(f"{definition} is no sweep: {error}", "move it away, or choose another --out") from error
    if _text(config) != _text(earlier) != definition.read_text(encoding="utf-8"):
        raise FileError(
            f"{definition} is another sweep, and was not written by `landscape sweep`",
            "move it away, or choose another --out",
        )
    return earlier


def _require_queued(waiting: Set[str], config: SweepConfig, out: Path | str) -> None:
    """Raise FileError if a file in Slurm's queue had other options when it was submitted."""
    earlier = _earlier(sweep_folder(config, out) / DEFINITION, config) if waiting else None
    if earlier and _text(earlier) != _text(config):
        now, then = _by_file(config, out), _by_file(earlier, out)
        for name in sorted(waiting & now.keys() & then.keys()):
            if now[name] != then[name]:
                raise FileError(
                    f"Slurm has {name} in its queue, with other options", "wait for it, or end it with --cancel first"
                )


def _by_file(config: SweepConfig, out: Path | str) -> dict[str, tuple[TrainConfig, AnalysisConfig | None]]:
    """What makes each file of a sweep."""
    settings = {analysis.name: analysis.settings for analysis in config.analyses}
    found: dict[str, tuple[TrainConfig, AnalysisConfig | None]] = {}
    for run in sweep_runs(config, out):
        found[run.path.name] = run.config, None
        found |= {path.name: (run.config, settings[name]) for name, path in run.hessian.items()}
    return found


def _remove(runs: Sequence[SweepRun], earlier: Mapping[Path, SweepRun], holder: Holder) -> None:
    """Remove the files of an earlier sweep, or none of them if one is not a file of that sweep or is being written."""
    files = [path for run in runs for path in run.files if path.exists()]
    for run in runs:
        then = earlier.get(run.path)
        for path in filter(Path.exists, run.files):
            if path == run.path:
                refuse_foreign(path, schema.RUN)
                with RunReader(path) as reader:
                    stored = reader.config
            else:
                refuse_foreign(path, schema.HESSIAN)
                stored = json.loads(HessianReader(path).attrs["parent_config"])
            if then is None or path not in then.files or difference(then.config, stored, UNSTORED):
                raise FileError(
                    f"{path} is not of the sweep that {path.parent / DEFINITION} describes",
                    "move it away, or choose another --out",
                )
    for path in files:
        require_writable(output(path))
    for path in files:
        holder.take(path.name)
    for path in files:
        # The sweep wrote to the targets of links.
        with sole_writer(output(path)):
            output(path).unlink(missing_ok=True)
        holder.release(path.name)


def _define(path: Path, config: SweepConfig, earlier: SweepConfig | None) -> None:
    """Write the sweep's definition into its folder, replacing that of another sweep."""
    path, text = output(path), _text(config)
    remove_abandoned(path)
    # One that says the same may be the user's own.
    if earlier is None or _text(earlier) != text:
        with temporary_file(path, len(text)) as draft:
            draft.write_text(text, encoding="utf-8")


def _text(config: SweepConfig) -> str:
    """What a sweep's definition holds."""
    return to_json(config) + "\n"


@contextlib.contextmanager
def _tidied(runs: Sequence[SweepRun], folder: Path) -> Iterator[None]:
    """Remove lock files of stopped or killed workers, and the folder of journals once it is empty.

    Locks that are held stay, and those of outputs with a lease.
    """
    try:
        yield
    finally:
        remove_if_empty(folder)
        busy = {name for name, _ in leases(folder / LEASES)}
        for path in itertools.chain.from_iterable(run.files for run in runs):
            with contextlib.suppress(FileError):
                if path.name in busy:
                    continue
                if lock_of(output(path)).exists():
                    with sole_writer(output(path)):
                        pass


def _result(runs: Sequence[SweepRun], failures: list[Failure]) -> SweepResult:
    failed = {failure.path for failure in failures}
    finished = [run for run in runs if run.path not in failed]
    analysed = [path for run in finished for path in run.hessian.values() if path not in failed]
    readers = {path: HessianReader(path) for path in analysed}
    unconverged = [path for path, reader in readers.items() if not all(map(reader.converged, reader.steps))]
    return SweepResult([(run, summarise(run.path)) for run in finished], unconverged, failures)
