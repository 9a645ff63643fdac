"""Train and analyse the runs of a sweep; finished files are kept, unfinished ones resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from landscape import models
from landscape.config import TrainConfig, to_json
from landscape.errors import ConfigError, FileError, LandscapeError, require_jobs
from landscape.files import schema
from landscape.files.files import make_folder, output, refuse_foreign, remove_if_empty, require_writable
from landscape.files.runs import RunReader
from landscape.files.views import open as open_file
from landscape.files.writing import remove_abandoned, sole_writer, temporary_file
from landscape.jobs.plan import DEFINITION, SweepAnalysis, SweepConfig, SweepRun, defined, sweep_folder, sweep_runs
from landscape.jobs.work import Analysis, Job, Training, claimant, claimed, is_analysed, is_trained, work_off
from landscape.measure.measurement import Measurement
from landscape.measure.tables import unconverged
from landscape.models.tasks import make_data
from landscape.progress import Bar
from landscape.results import Described, events
from landscape.training.ensemble import balanced, side_by_side
from landscape.training.loop import RunSummary, clip_batch, summarise
from landscape.training.member import UNSTORED, difference
from landscape.training.tables import checkpoint_schedule
from landscape.workers import Workers

if TYPE_CHECKING:
    import pandas as pd
    import xarray
    from matplotlib.axes import Axes


@dataclasses.dataclass(frozen=True)
class Failure:
    """A file that could not be finished.

    Attributes:
        path: the file.
        error, hint: what went wrong, and how to mend it.
    """

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

    def plot(self, ax: Axes | None = None, **style: Any) -> Axes:
        """Draw when each run grokked, by setting, on matplotlib axes, by default new ones; returns them."""
        settings = [{name: value for name, value in run.labels.items() if name != "seed"} for run, _ in self.runs]
        names = [", ".join(map(str, setting.values())) for setting in settings]
        data = self.to_dataframe().assign(setting=names).astype({"grok_step": float})
        return events(data, ax, "setting", "grok_step", "steps", **style)

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
    """Runs of a sweep and their analyses, all that is left or what one job of Slurm does.

    runs: config by file, those trained by now left out; analyses: those that are not finished.
    """

    runs: dict[Path, TrainConfig]
    analyses: list[Analysis]

    @property
    def files(self) -> list[Path]:
        """What it ends in."""
        return [*self.runs, *(analysis.path for analysis in self.analyses)]

    def shares(self, runs: Sequence[SweepRun], pack: int) -> list[Work]:
        """Parts of `pack` runs with their analyses. The same runs go together whatever is left of them."""
        parts = []
        for i in range(0, len(runs), pack):
            mine = [run.path for run in runs[i : i + pack]]
            left = {path: self.runs[path] for path in mine if path in self.runs}
            analyses = [analysis for analysis in self.analyses if analysis.run in mine]
            if left or analyses:
                parts.append(Work(left, analyses))
        return parts

    def carry_out(self, pool: Workers | None, jobs: int, ended: Callable[[Job], object]) -> list[Failure]:
        """Do it with `jobs` runs or analyses at once, the analyses of a run after it; returns what failed.

        ended: called with each job that has ended.
        """
        failures: dict[Path, Failure] = {}
        trainings = [Training(group) for group in balanced(self.runs, max(1, jobs))]
        for stage in (trainings, self.analyses):
            # What failed by now; an analysis is not tried without its run.
            ready = [job for job in stage if not (isinstance(job, Analysis) and job.run in failures)]
            for job, reason in work_off(ready, pool):
                failures |= {path: Failure(path, *reason) for path in job.outputs if reason}
                ended(job)
        return list(failures.values())


def sweep(
    config: SweepConfig,
    out: Path | str = "checkpoints",
    jobs: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> SweepResult:
    """Train the runs of a sweep, those of one shape side by side, then analyse them.

    Everything is checked first. Later errors become `failures` and do not stop other runs. What another sweep of the
    same folder works on is waited for. The folder keeps the sweep as sweep.json; `load_sweep` and `sweep_runs` map it
    to the files. The processes import the calling script: guard its own work with `if __name__ == "__main__"`.

    Args:
        config: the sweep.
        out: the folder of its folder.
        jobs: processes; None: one per core; 0: none but this one, for a debugger.
        overwrite: remove the files of the sweep that are there, and start anew.
        quiet: show no progress.

    Returns:
        The finished runs and what failed.

    Raises:
        ConfigError: for invalid values.
        FileError: for a file of another config in the way.
    """
    require_jobs(jobs)
    jobs = len(os.sched_getaffinity(0)) if jobs is None else jobs
    runs = sweep_runs(config, out)
    work = plan(config, out, overwrite)
    totals = {"runs": len(runs), "analyses": sum(len(run.hessian) for run in runs)}
    done = {"runs": len(runs) - len(work.runs), "analyses": totals["analyses"] - len(work.analyses)}
    with Workers(jobs) if jobs else contextlib.nullcontext() as pool, Bar(sum(totals.values()), "file", quiet) as bar:

        def show(job: Job | None = None) -> None:
            if job:
                done["runs" if isinstance(job, Training) else "analyses"] += len(job.outputs)
            bar.n = sum(done.values())
            bar.set_postfix_str(", ".join(f"{kind} {done[kind]}/{total}" for kind, total in totals.items()))

        show()
        failures = work.carry_out(pool, jobs, show)
    return _result(runs, failures)


def plan(config: SweepConfig, out: Path | str, overwrite: bool = False) -> Work:
    """What is left of a sweep, whose definition is written into its folder.

    Raises ConfigError for invalid values, FileError for a file of another config in the way or, with `overwrite`, one
    that another process works on.
    """
    runs = sweep_runs(config, out)
    analyses = {analysis.name: analysis for analysis in config.analyses}
    configs = _check(runs, analyses)
    folder = sweep_folder(config, out)
    make_folder(folder)
    try:
        with claimed(folder / DEFINITION, waits=True):
            earlier = _earlier(folder / DEFINITION, config)
            if overwrite:
                _remove(runs, {} if earlier is None else {run.path: run for run in sweep_runs(earlier, out)})
            untrained = {r.path: configs[r.path] for r in runs if not is_trained(r.path, configs[r.path])}
            unanalysed = [
                Analysis(run.path, analyses[name], path)
                for run in runs
                for name, path in run.hessian.items()
                if not is_analysed(run.path, analyses[name].settings, path, run.path not in untrained)
            ]
            _define(folder / DEFINITION, config, earlier)
            # A process that was killed when it had just finished a file has left its claim.
            for path in (path for run in runs for path in run.files):
                claimant(path)
    finally:
        remove_if_empty(folder)
    return Work(untrained, unanalysed)


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
                shapes = {name: spec.shape for name, spec in problem.parameters.items()}
                problem, _ = models.own(settings, shapes, next(iter(alike)))
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


def _remove(runs: Sequence[SweepRun], earlier: Mapping[Path, SweepRun]) -> None:
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
                with open_file(path) as file:
                    stored = json.loads(file.attrs["parent_config"])
            if then is None or path not in then.files or difference(then.config, stored, UNSTORED):
                raise FileError(
                    f"{path} is not of the sweep that {path.parent / DEFINITION} describes",
                    "move it away, or choose another --out",
                )
    for path in files:
        require_writable(output(path))
    with contextlib.ExitStack() as stack:
        for path in files:
            stack.enter_context(claimed(path))
        for path in files:
            # The sweep wrote to the targets of links.
            with sole_writer(output(path)):
                output(path).unlink(missing_ok=True)


def _define(path: Path, config: SweepConfig, earlier: SweepConfig | None) -> None:
    """Write the sweep's definition into its folder, replacing that of another sweep."""
    path, text = output(path), _text(config)
    remove_abandoned(path, b"{")
    # One that says the same may be the user's own.
    if earlier is None or _text(earlier) != text:
        with temporary_file(path, len(text)) as draft:
            draft.write_text(text, encoding="utf-8")


def _text(config: SweepConfig) -> str:
    """What a sweep's definition holds."""
    return to_json(config) + "\n"


def _result(runs: Sequence[SweepRun], failures: list[Failure]) -> SweepResult:
    failed = {failure.path for failure in failures}
    finished = [run for run in runs if run.path not in failed]
    analysed = [path for run in finished for path in run.hessian.values() if path not in failed]
    return SweepResult(
        [(run, summarise(run.path)) for run in finished], list(filter(_is_unconverged, analysed)), failures
    )


def _is_unconverged(path: Path) -> bool:
    with open_file(path) as file:
        return any(unconverged(file).values())
