"""Train and analyse the runs of a sweep in worker processes; finished files are kept, unfinished ones resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from landscape import problems
from landscape.analysis.critical import refine
from landscape.analysis.hessian import analyse, choose_steps, existing, make_plan
from landscape.analysis.measurement import Measurement
from landscape.config import AnalysisConfig, HessianConfig, TrainConfig, to_json
from landscape.errors import ConfigError, FileError, LandscapeError
from landscape.problems.tasks import make_data
from landscape.storage import schema
from landscape.storage.files import as_path, make_folder, output, refuse_existing, refuse_foreign
from landscape.storage.hessians import HessianReader
from landscape.storage.runs import RunReader
from landscape.storage.writing import lock_of, remove_abandoned, sole_writer, temporary_file
from landscape.sweep.plan import DEFINITION, SweepAnalysis, SweepConfig, SweepRun, load_sweep, sweep_runs
from landscape.training.ensemble import balanced, side_by_side
from landscape.training.loop import RunSummary, clip_batch, summarise, train_ensemble
from landscape.training.member import checkpoint_schedule, difference
from landscape.workers import Workers

IN_THE_WAY = "use --overwrite to start the sweep anew, or another --out"


@dataclasses.dataclass(frozen=True)
class Failure:
    """A file that could not be finished, the error and its hint."""

    path: Path
    error: str
    hint: str


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """The finished runs in the order of `sweep_runs`, analyses that did not converge, and failures."""

    runs: list[tuple[SweepRun, RunSummary]]
    unconverged: list[Path]
    failures: list[Failure]

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


def run_sweep(
    config: SweepConfig,
    out: Path | str = "checkpoints",
    jobs: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> SweepResult:
    """Train the runs of a sweep, those of one shape side by side, then analyse them, in `jobs` processes.

    Everything is checked first: raises ConfigError for invalid values and FileError for a file of another config in the
    way. Later errors become `failures` and do not stop other runs. The folder keeps the sweep as sweep.json;
    `load_sweep` and `sweep_runs` map it to the files. The processes import the calling script: guard its own work with
    `if __name__ == "__main__"`.
    """
    jobs = len(os.sched_getaffinity(0)) if jobs is None else jobs
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}", "--jobs takes an integer >= 1")
    analyses = {analysis.name: analysis for analysis in config.analyses}
    runs = sweep_runs(config, out)
    configs = _check(runs, analyses)
    folder = as_path(out) / config.name
    make_folder(folder)
    with sole_writer(folder), _without_locks(runs), Workers(jobs) as workers:
        earlier = _earlier(folder / DEFINITION)
        if overwrite:
            _remove(runs, {} if earlier is None else {run.path: run for run in sweep_runs(earlier, out)})
        untrained = {r.path: configs[r.path] for r in runs if not _is_trained(r.path, configs[r.path])}
        unanalysed = [
            (run.path, analyses[name], path)
            for run in runs
            for name, path in run.hessian.items()
            if not _is_analysed(run.path, analyses[name].settings, path, run.path not in untrained)
        ]
        _define(folder / DEFINITION, config)
        failures = []
        totals = {"runs": len(runs), "analyses": sum(len(run.hessian) for run in runs)}
        done = {"runs": len(runs) - len(untrained), "analyses": totals["analyses"] - len(unanalysed)}
        with tqdm(total=sum(totals.values()), unit="file", disable=quiet, file=sys.stderr) as bar:

            def show(**ended: int) -> None:
                for kind, number in ended.items():
                    done[kind] += number
                bar.n = sum(done.values())
                bar.set_postfix_str(", ".join(f"{kind} {done[kind]}/{total}" for kind, total in totals.items()))

            show()
            alone: list[dict[Path, TrainConfig]] = []
            for groups in (balanced(untrained, jobs), alone):
                for reason, group in workers.run(_train, [(group,) for group in groups]):
                    if reason and len(group) > 1:
                        # Retry the members one by one, so that only the failing one fails.
                        alone += [{path: member} for path, member in group.items()]
                        continue
                    failures += [Failure(path, *reason) for path in group if reason]
                    show(runs=len(group))
            failed = {failure.path for failure in failures}
            calls = [call for call in unanalysed if call[0] not in failed]
            for reason, _, _, path in workers.run(_analyse, calls):
                failures += [Failure(path, *reason)] if reason else []
                show(analyses=1)
    return _result(runs, failures)


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
            problem = problems.of_config(first, data, settings.device, settings.chunk_size)
            if settings.problem:
                held = {name: spec.shape for name, spec in problem.parameters.items()}
                problem, _ = problems.own(settings, held, next(iter(alike)))
            Measurement(problem, settings)
            absent = [step for step in analyses[name].named_steps if step not in steps]
            if absent:
                raise ConfigError(
                    f"hessian {name!r} is of step {absent[0]}, but {next(iter(alike)).stem} will not store it",
                    "name it in checkpoint_at, or choose another",
                )
    return configs


def _earlier(definition: Path) -> SweepConfig | None:
    """The sweep of an existing folder; None for a new one. Raises FileError for an invalid definition."""
    if not definition.exists():
        return None
    try:
        return load_sweep(definition)
    except LandscapeError as error:
        raise FileError(f"{definition} is no sweep: {error}", "move it away, or choose another --out") from error


def _remove(runs: Sequence[SweepRun], earlier: Mapping[Path, SweepRun]) -> None:
    """Remove the files of an earlier sweep, or none of them if one is not a file of that sweep."""
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
            # A batch larger than the training set is stored as the training set's size.
            if then is None or path not in then.files or difference(then.config, stored, {"device", "batch_size"}):
                raise FileError(
                    f"{path} is not of the sweep that {path.parent / DEFINITION} describes",
                    "move it away, or choose another --out",
                )
    # The sweep wrote to the targets of links.
    for path in map(output, files):
        with sole_writer(path):
            path.unlink(missing_ok=True)


def _define(path: Path, config: SweepConfig) -> None:
    """Write the sweep's definition into its folder, replacing an earlier one."""
    path, text = output(path), to_json(config) + "\n"
    remove_abandoned(path, b"{")
    with temporary_file(path, len(text)) as draft:
        draft.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _without_locks(runs: Sequence[SweepRun]) -> Iterator[None]:
    """Remove lock files of stopped or killed workers; locks that are held stay."""
    try:
        yield
    finally:
        for path in itertools.chain.from_iterable(run.files for run in runs):
            with contextlib.suppress(FileError):
                if lock_of(output(path)).exists():
                    with sole_writer(output(path)):
                        pass


def _is_trained(path: Path, config: TrainConfig) -> bool:
    """Whether a run is finished. Raises FileError for a file of another config or with damage."""
    if not path.exists():
        return False
    with RunReader(path) as reader:
        reader.require_whole()
        if other := difference(config, reader.config, {"device"}):
            raise FileError(f"{path}: {other}", IN_THE_WAY)
        return bool(reader.attrs["status"] == "complete")


def _is_analysed(run: Path, config: AnalysisConfig, path: Path, is_trained: bool) -> bool:
    """Whether an analysis is finished. Raises FileError for a file of another run or config."""
    if not is_trained:
        refuse_existing(path, IN_THE_WAY)
    if not path.exists():
        return False
    with RunReader(run) as reader:
        source = problems.opened(reader, config)[1] if config.problem else None
        found = existing(path, reader, config, source=source)
        steps = choose_steps(reader, config.steps, config.num_steps) if isinstance(config, HessianConfig) else []
    if found is None or found.attrs["status"] != "complete":
        return False
    return not make_plan(found, steps, config.blocks or found.blocks).todo


def _train(group: dict[Path, TrainConfig]) -> None:
    for summary in train_ensemble(group, resume=True, quiet=True):
        if summary.divergence:
            raise summary.divergence
        if summary.status != "complete":
            raise FileError(f"{summary.status} at step {summary.steps}", "the same command resumes")


def _analyse(run: Path, analysis: SweepAnalysis, path: Path) -> None:
    settings = analysis.settings
    if isinstance(settings, HessianConfig):
        analyse(run, settings, path, quiet=True)
    elif analysis.refine_from is not None:
        refine(run, analysis.refine_from, settings, path, resume=True, quiet=True)


def _result(runs: Sequence[SweepRun], failures: list[Failure]) -> SweepResult:
    failed = {failure.path for failure in failures}
    finished = [run for run in runs if run.path not in failed]
    analysed = [path for run in finished for path in run.hessian.values() if path not in failed]
    readers = {path: HessianReader(path) for path in analysed}
    unconverged = [path for path, reader in readers.items() if not all(map(reader.converged, reader.steps))]
    return SweepResult([(run, summarise(run.path)) for run in finished], unconverged, failures)
