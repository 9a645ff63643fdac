"""Measure the Hessian of a run's checkpoints: `landscape hessian`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from landscape import models
from landscape.config import AnalysisConfig, HessianConfig, Spectra, replace, to_json
from landscape.curvature.objective import differentiable
from landscape.errors import FileError, NumericsError, StepError, in_file, note, require_config, require_jobs, warn
from landscape.files import schema
from landscape.files.files import REPLACE, as_path, hessian_file, make_folder, output, refuse_foreign, sha256
from landscape.files.hessians import AnalysisWriter, HessianReader
from landscape.files.rows import listed
from landscape.files.runs import GROK, MEMORISE, MEMORISED, RunReader
from landscape.files.schema import misfit
from landscape.files.writing import sole_writer
from landscape.measure.expected import Blocks
from landscape.measure.fields import unlike
from landscape.measure.measurement import Measurement
from landscape.measure.parallel import Origin, Part, Task, measure, measured, processes, tracked
from landscape.measure.parts import has_parts, parts, remove_parts
from landscape.models import spread
from landscape.models.choice import in_order
from landscape.models.factory import SEED, Source, unlike_problem, unlike_source
from landscape.models.problem import Problem
from landscape.progress import clock
from landscape.provenance import provenance
from landscape.ranks.group import Ranks
from landscape.workers import Workers

Analysis = TypeVar("Analysis", bound=AnalysisConfig)
LOSS_AGREEMENT = 0.01
"""Largest relative difference between measured and recorded training losses that needs no warning."""
GROWING = {"steps", "num_steps", "blocks", "device", "problem"}
"""Settings that may change when a file is extended; the source of a problem may not."""


@differentiable
def analyse(
    run: Path | str,
    config: HessianConfig | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    fsync: bool = False,
    jobs: int | None = 0,
    ranks: Ranks | None = None,
) -> HessianReader:
    """Measure the Hessian of a run's checkpoints; returns the finished file.

    A file of this run and these settings is resumed and extended by missing steps and blocks; its rows stay bit for
    bit, except the tracking of a step with a new predecessor. Any other file in the way is an error unless
    `overwrite`. fsync: sync every step to disk. jobs: checkpoints of dense blocks measured at once, each in a
    process of one thread, with the same file for any number; None: one per core, as far as memory allows; 0: none but
    this process. ranks: those that the samples are spread over, of which this is the first; it needs `follow` in the
    others. Raises LandscapeError.
    """
    run, config = as_path(run), HessianConfig() if config is None else config
    require_config(config, HessianConfig)
    require_jobs(jobs)
    out = output(out or hessian_file(run))
    with RunReader(run) as reader, contextlib.ExitStack() as preparing:
        preparing.enter_context(clock("preparing", quiet))
        if out.resolve() == run.resolve():
            raise FileError(f"{out} is the run file itself", "choose another --out")
        chosen = finite_steps(reader, choose_steps(reader, config.steps, config.num_steps))
        warn_of_damage(reader)
        problem, source = spread.opened(reader, config, ranks) if ranks else models.opened(reader, config)
        Measurement(problem, config)
        make_folder(out.parent)
        with sole_writer(out):
            found = existing(out, reader, config, overwrite, source)
            if config.steps == "auto" and (kept := sorted({*(found.steps if found else ())} - {*chosen})):
                note(f"{out} keeps what was measured before, too: {listed(kept)}")
            config = joined(config, problem, found)
            attrs = file_attrs(reader, config, source)
            plan = make_plan(found, chosen, config.blocks)
            same = found and all(found.attrs.get(name) == value for name, value in attrs.items() if name != "config")
            if found and found.attrs["status"] == "complete" and same and not plan.todo:
                return found
            measurement = Measurement(problem, config)
            if source:
                measurement.require_sound(reader.checkpoint(min(plan.todo, default=chosen[0])))
            attrs = written_attrs(reader, config, found, str(problem.device), source)
            if ranks:
                attrs |= {"world_size": ranks.size, "backend": ranks.backend(problem.device)}
            with open_writer(out, attrs, len(plan.steps), *measurement.layout(), found, fsync) as writer:
                preparing.close()
                tasks = _tasks(reader, source, plan, HessianReader(out))
                _measure(reader, measurement, plan, tasks, writer, quiet, jobs)
                writer.finish("complete")
                remove_parts(out)
    return HessianReader(out)


def follow(run: Path, config: HessianConfig, ranks: Ranks) -> int:
    """Do the part of a rank that is not the first in its `analyse`; returns the exit code that the first one sends."""
    with RunReader(run) as reader:
        problem, _ = spread.opened(reader, config, ranks)
        return problem.serve()


def new_tasks(run: Path, config: HessianConfig, out: Path, overwrite: bool) -> tuple[HessianConfig, list[Task], bool]:
    """What `analyse` would measure of steps that the file does not have: settings of the whole file, and a task each.

    Last, whether it would do anything at all. Raises as `analyse`.
    """
    with RunReader(run) as reader:
        chosen = finite_steps(reader, choose_steps(reader, config.steps, config.num_steps))
        problem, source = models.opened(reader, config)
        found = existing(out, reader, config, overwrite, source)
        config = joined(config, problem, found)
        Measurement(problem, config)
        plan = make_plan(found, chosen, config.blocks)
        new = {step: _origin(reader, step, source) for step in plan.todo if not (found and step in found.steps)}
    blocks = frozenset(config.blocks)
    tasks = [Task(step, origin, blocks, plan.again(step), None, False) for step, origin in new.items()]
    return config, tasks, bool(plan.todo)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The work left in an analysis: all steps of the finished file, and those with missing rows or blocks.

    todo: blocks to measure by step; all of them where the preceding step has changed.
    """

    steps: list[int]
    todo: dict[int, set[str]]

    def previous(self, step: int) -> int:
        """The preceding step; -1: none."""
        return ([-1, *self.steps])[self.steps.index(step)]

    def again(self, step: int) -> frozenset[str]:
        """The blocks from which the next step is tracked."""
        return frozenset(self.todo.get(([*self.steps, -1])[self.steps.index(step) + 1], ()))


def make_plan(found: HessianReader | None, chosen: Sequence[int], blocks: Sequence[str]) -> Plan:
    """Steps and blocks that a file lacks."""
    steps = sorted({*chosen, *(found.steps if found else ())})
    plan = Plan(steps, {})
    for step in steps:
        if found is None or step not in found.steps or found.previous(step) != plan.previous(step):
            plan.todo[step] = set(blocks)
        elif lacking := set(blocks) - set(found.measured(step)):
            plan.todo[step] = lacking
    return plan


def _measure(
    reader: RunReader,
    measurement: Measurement,
    plan: Plan,
    tasks: Sequence[Task],
    writer: AnalysisWriter,
    quiet: bool,
    jobs: int | None,
) -> None:
    """Carry out the plan, and commit it step by step."""
    count = processes(measurement, len(tasks), jobs)
    done: Iterator[Part] | None = None
    todo = [task.blocks for task in tasks]
    losses: dict[int, tuple[float, float]] = {}
    with Blocks(measurement, todo, count, quiet) as progress, contextlib.ExitStack() as stack:
        if from_jobs := has_parts(writer.path):
            done = parts(writer.path, reader, measurement, tasks)
        elif count:
            calls = [(reader.path, measurement.config, task) for task in tasks]
            workers = stack.enter_context(Workers(count))
            done = workers.results(measure, calls, lambda told: progress.show(*told))
        for task in tasks:
            if done:
                rows = tracked(measurement, task, next(done))
            else:
                measurement.progress = functools.partial(progress.show, step=task.step)
                rows = measured(reader, measurement, task)
            if from_jobs:
                progress.count(task.blocks)
            if rows is None:
                continue
            rows["/"] |= {"previous_step": plan.previous(task.step), "checkpoint_crc32": task.origin.record}
            rows["/"]["recorded_loss"] = reader.recorded_loss(task.step)
            losses[task.step] = float(rows["/"]["train_loss"]), rows["/"]["recorded_loss"]
            if task.known:
                writer.replace(task.step, rows)
            else:
                writer.append(task.step, rows)
    warn_of_losses(reader, losses)


def _tasks(reader: RunReader, source: Source | None, plan: Plan, stored: HessianReader) -> list[Task]:
    """The work left, by step."""
    tasks = []
    for step in plan.steps:
        todo, again = frozenset(plan.todo.get(step, ())), plan.again(step)
        known = stored.rows(step) if todo and step in stored.steps else None
        retrack = known is not None and stored.previous(step) != plan.previous(step)
        if todo | again:
            tasks.append(Task(step, _origin(reader, step, source), todo, again, known, retrack))
    return tasks


def _origin(reader: RunReader, step: int, source: Source | None) -> Origin:
    of_problem = (source.sha256, source.checksum) if source else ()
    return Origin(str(reader.attrs["run_id"]), reader.record(step), *of_problem)


def existing(
    out: Path, reader: RunReader, config: AnalysisConfig, overwrite: bool = False, source: Source | None = None
) -> HessianReader | None:
    """The analysis in `out`, if it is of this run and these settings; None if a new one is to be started.

    Raises FileError for damaged rows and for any other file, except a Hessian file with `overwrite` or that is empty.
    """
    if not out.exists():
        return None
    refuse_foreign(out, schema.HESSIAN)
    found = HessianReader(out)
    wrong = unlike(found) or _difference(found, reader, config, source)
    if not wrong and found.damage:
        wrong = f"rows fail their checksums: {found.damage}"
    # As an analysis leaves it that was refused at its first step; it has nothing to lose.
    is_empty = not (found.steps or found.search or found.damage or has_parts(out))
    if wrong and not (overwrite or is_empty):
        raise FileError(f"{out}: {wrong}", REPLACE)
    if wrong or not source:
        return None if wrong else found
    if not (differs := unlike_problem(str(found.attrs.get("problem_checksum", "")), source.checksum)):
        return found
    if not (overwrite or is_empty):
        raise FileError(
            f"{out}: it was measured on another problem: the {differs} of --problem {source.name} is not the same",
            f"{SEED}; then --overwrite measures all steps anew",
        )
    return None


def _difference(found: HessianReader, reader: RunReader, config: AnalysisConfig, source: Source | None) -> str:
    """Why a Hessian file cannot be resumed with these settings; empty if it can."""
    if wrong := found.mismatch(reader):
        return wrong
    if wrong := unlike_source(found.attrs, source):
        return wrong
    if found.is_refined == isinstance(config, HessianConfig):
        return f"it is {'the analysis of a critical point' if found.is_refined else 'no analysis of a critical point'}"
    with in_file(found.path, "config"):
        was, now = (json.loads(to_json(c)) for c in (replace(type(config)(), found.config), config))
    was["spectra"] = _stored_spectra(found)
    now["spectra"] = _spectra(config, found)
    for name in was.keys() - GROWING:
        if was[name] != now[name]:
            return f"it was made with {name} {was[name]}, not {now[name]}"
    return ""


def joined(config: Analysis, problem: Problem, found: HessianReader | None) -> Analysis:
    """The settings of an existing file once extended."""
    held = found.blocks if found else []
    wanted = in_order(config.blocks or problem.default_blocks, {*held, *problem.blocks})
    blocks = dict.fromkeys([*held, *wanted])
    return dataclasses.replace(config, blocks=tuple(blocks), spectra=_spectra(config, found))


def _spectra(config: AnalysisConfig, found: HessianReader | None) -> Spectra:
    """Which eigenvalues are computed: auto follows an existing file."""
    held: Spectra = _stored_spectra(found) if found else "auto"
    return held if config.spectra == "auto" else config.spectra


def _stored_spectra(found: HessianReader) -> Spectra:
    """Which eigenvalues a file has: where an earlier version did not say, all of them, unless it formed no matrix."""
    stored: Spectra = found.config.get("spectra", "auto" if found.config["method"] == "lanczos" else "full")
    return stored


def warn_of_damage(reader: RunReader) -> None:
    """Warn about missing data in a run file."""
    if reader.damage:
        warn(f"{reader.path}: left out, for their checksums fail: {reader.damage}")


def warn_of_losses(reader: RunReader, losses: Mapping[int, tuple[float, float]]) -> None:
    """Warn where measured training losses, first of each pair by step, differ from those that the run recorded."""

    def apart(step: int) -> float:
        measured, recorded = losses[step]
        return abs(measured - recorded) / max(abs(measured), abs(recorded), sys.float_info.min)

    if wrong := [step for step in losses if apart(step) > LOSS_AGREEMENT]:
        worst = max(wrong, key=apart)
        measured, recorded = losses[worst]
        others = f"; it differs by more than {LOSS_AGREEMENT:.0%} at {len(wrong)} steps" if len(wrong) > 1 else ""
        warn(
            f"{reader.path}: at step {worst} the loss of the measured data is {measured:.6g}, but the training "
            f"recorded {recorded:.6g} (by {apart(worst):.0%}){others}. Data, loss or mode may be others than in "
            "training, or what was recorded is that of a mini-batch, or of another step"
        )


def file_attrs(reader: RunReader, config: AnalysisConfig, source: Source | None) -> dict[str, Any]:
    """The attributes of a Hessian file: its run and settings."""
    return {
        **(source.attrs if source else {}),
        "parent_run_id": reader.attrs["run_id"],
        "parent_sha256": sha256(reader.path),
        "parent_config": reader.attrs["config"],
        "config": to_json(config),
        "objective": config.objective,
        "dtype": config.dtype,
        "method": config.method,
        "memorise_step": -1 if (s := reader.first_step(*MEMORISE)) is None else s,
        "grok_step": -1 if (s := reader.first_step(*GROK)) is None else s,
    }


def written_attrs(
    reader: RunReader, config: AnalysisConfig, found: HessianReader | None, device: str, source: Source | None
) -> dict[str, Any]:
    """The attributes of a file being written; an extended one keeps its provenance."""
    made = found.attrs if found else provenance(device)
    return {**made, **file_attrs(reader, config, source), "status": "running"}


def open_writer(
    out: Path,
    attrs: dict[str, Any],
    steps: int,
    tables: Sequence[schema.Table],
    scales: schema.Scales,
    found: HessianReader | None,
    fsync: bool = False,
) -> AnalysisWriter:
    """A file with room for `steps` steps: a new one, or the existing one extended.

    Raises FileError if the existing file has other axes than this analysis.
    """
    if found is None:
        rooms = [(table, 2 if table.newest else steps) for table in tables]
        return AnalysisWriter.create(out, schema.HESSIAN, attrs, rooms, scales, fsync=fsync)
    lengths = {axis: len(labels) for axis, labels in scales.items() if isinstance(labels, range)}
    if wrong := misfit(found.layout, found.scales, tables, lengths, may_lack=True):
        raise FileError(f"{out}: {wrong}", "choose another --out")
    more = {table.group: steps - len(found.steps) for table in tables}
    # Files of the first version were tracked from the preceding row, and do not say so.
    rows = {step: {"/": {"previous_step": found.previous(step)}} for step in found.steps}
    return AnalysisWriter.extend(out, attrs, more, tables, scales, rows, fsync)


def choose_steps(reader: RunReader, wanted: str, count: int = 12) -> list[int]:
    """Stored steps to analyse.

    auto: at most `count`: the steps where train hits 99 % and test 95 %, step 0, the last, and log-spaced ones.
    plateau: the one nearest to the geometric mean of these two events, the last step in the place of the second where
    that never came. Raises StepError for a step that is not stored, or without the first event.
    """
    stored = reader.steps
    if wanted == "all":
        return stored
    if wanted not in ("auto", "plateau"):
        chosen = sorted({int(s) for s in wanted.split(",")})
        for step in chosen:
            with contextlib.suppress(NumericsError):
                reader.checkpoint(step)
            reader.require_beside(step)
        return chosen
    if not stored:
        raise StepError(f"{reader.path} holds no checkpoint", "train it first, or resume it with --resume")
    events = [reader.first_step(*event) for event in (MEMORISE, GROK)]
    if wanted == "plateau":
        memorised, grokked = events
        if not memorised:
            further = "" if reader.is_recorded else "train it further with --resume, or "
            raise StepError(
                f"{reader.path} never reached {MEMORISED:.0%} on its training set and has no plateau",
                f"{further}name --steps",
            )
        return [_nearest(stored, math.sqrt(memorised * max(memorised, grokked or stored[-1])))]
    reached = [_nearest(stored, event) for event in events if event is not None]
    # Far apart first, so that a small count still spans the run.
    spread = (_nearest(stored, x) for x in _bisected(max(stored[min(1, len(stored) - 1)], 1), max(stored[-1], 1)))
    chosen_steps: set[int] = set()
    for step in itertools.chain(reached or stored[-1:], stored[:1], spread):
        if len(chosen_steps) == min(count, len(stored)):
            break
        chosen_steps.add(step)
    return sorted(chosen_steps)


def finite_steps(reader: RunReader, steps: list[int]) -> list[int]:
    """The steps whose parameters are finite; names the others on stderr. Raises NumericsError if none is left."""
    finite, errors = [], []
    for step in steps:
        try:
            reader.checkpoint(step)
            finite.append(step)
        except NumericsError as error:
            errors.append(error)
    if errors and not finite:
        raise errors[0]
    for left_out in errors:
        warn(f"{left_out}: left out")
    return finite


def _nearest(stored: list[int], target: float) -> int:
    return min(stored, key=lambda s: abs(s - target))


def _bisected(first: int, last: int) -> Iterator[float]:
    """Log-spaced points from first to last: the ends, the middle, the quarters, the eighths, ..."""
    yield from (last, first)
    for level in range(1, 12):
        for i in range(1, 2**level, 2):
            yield first * (last / first) ** (i / 2**level)
