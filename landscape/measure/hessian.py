"""Measure the Hessian of a run's checkpoints: `landscape hessian`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from landscape import models
from landscape.config import HessianConfig
from landscape.curvature.objective import differentiable
from landscape.errors import note, require_config, require_jobs, warn
from landscape.files import schema, views
from landscape.files.files import as_path, hessian_file, make_folder, output, settled_file
from landscape.files.rows import listed
from landscape.files.runs import RunReader
from landscape.files.views import File
from landscape.files.writing import sole_writer
from landscape.measure.analysis import Analysis, attributes, existing, is_whole, joined, require_other
from landscape.measure.forecast import Blocks, forecast, in_words, memory
from landscape.measure.measure import Measured, track
from landscape.measure.measurement import Measurement, Point, Vectors
from landscape.measure.parallel import Origin, Task, in_worker, one_by_one, processes
from landscape.measure.steps import choose_steps, finite_steps, warn_of_damage
from landscape.models import spread
from landscape.ranks import Ranks
from landscape.workers import Workers

LOSS_AGREEMENT = 0.01
"""Largest relative difference between measured and recorded training losses that needs no warning."""


@differentiable
def hessian(
    run: Path | str,
    config: HessianConfig | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    jobs: int | None = 0,
    ranks: Ranks | None = None,
) -> File:
    """Measure the Hessian of a run's checkpoints.

    A file of this run and these settings is extended by the steps that it lacks, for the blocks that it has; an
    interrupted analysis continues after its last whole step.

    Args:
        run: the run file.
        config: what is measured and how.
        out: by default RUN.hessian.h5 beside the run, with `settle` RUN.settled.h5.
        overwrite: replace a Hessian file of another run or other settings, which is an error otherwise.
        quiet: without a progress bar.
        jobs: checkpoints of dense blocks measured at once, each in a process of one thread, with the same file for any
            number; None: one per core, as far as memory allows; 0: none but this process.
        ranks: those that the samples are spread over, of which this is the first; it needs `follow` in the others.

    Returns:
        The finished file.

    Raises:
        LandscapeError: for what cannot be measured or written.
    """
    run, config = as_path(run), HessianConfig() if config is None else config
    require_config(config, HessianConfig)
    require_jobs(jobs)
    out = output(out or (settled_file if config.settle else hessian_file)(run))
    with RunReader(run) as reader:
        require_other(out, run)
        chosen = finite_steps(reader, choose_steps(reader, config.steps, config.num_steps))
        warn_of_damage(reader)
        problem, source = spread.opened(reader, config, ranks) if ranks else models.opened(reader, config)
        Measurement.of(problem, config)
        make_folder(out.parent)
        with sole_writer(out):
            stored = existing(out, reader, config, overwrite, source)
            if config.steps == "auto" and stored and (kept := sorted({*stored.steps} - {*chosen})):
                note(f"{out} keeps what was measured before, too: {listed(kept)}")
            what = Measurement.of(problem, joined(config, problem, stored))
            attrs = attributes(reader, what.config, str(problem.device), source, stored)
            analysis = Analysis.begun(out, attrs, what.layout(), stored)
            tasks = plan(reader, chosen, analysis)
            if stored and not tasks and is_whole(stored, attrs):
                if ranks:
                    ranks.broadcast()
                return views.open(out)
            if ranks:
                ranks.broadcast((what.config, tasks))
                backend = "nccl" if problem.device.type == "cuda" else "gloo"
                analysis.attrs |= {"world_size": ranks.size, "backend": backend}
            if source and tasks:
                what.require_sound(reader.checkpoint(tasks[0].step))
            with contextlib.ExitStack() as pool:
                count = processes(what, len(tasks), jobs)
                seconds = _expected(reader, what, tasks, count) if tasks and not (quiet or ranks) else None
                bar = pool.enter_context(Blocks(what, len(tasks), quiet, seconds, max(count, 1)))
                if count:
                    calls = [(Origin.of(reader, what, source), task) for task in tasks]
                    workers = pool.enter_context(Workers(count))
                    done = workers.results(in_worker, calls, lambda progress: bar.show(*progress))
                else:
                    done = one_by_one(reader, what, tasks, bar.show)
                losses = _take(reader, what, analysis, zip(tasks, done, strict=True))
            _warn_of_losses(reader, losses)
            analysis.write("complete")
    return views.open(out)


def _expected(reader: RunReader, what: Measurement, tasks: Sequence[Task], count: int) -> dict[str, float]:
    """Seconds that each block will take at a step; says what all of them will, and how much memory."""
    step = tasks[0].step
    seconds = forecast(what, Point(reader.checkpoint(step), what.problem.training(reader, step)))
    whole = in_words(len(tasks) * sum(seconds.values()) / max(count, 1))
    needed = memory(what, count) / 1e9
    steps = f"{len(tasks)} step{'s' * (len(tasks) > 1)}"
    note(f"about {whole} and at most {needed:.1f} GB for {steps} of {', '.join(seconds)}")
    return seconds


def _take(
    reader: RunReader, what: Measurement, analysis: Analysis, done: Iterable[tuple[Task, Measured]]
) -> dict[int, tuple[float, float]]:
    """Track the steps as they come and write each; measured and recorded training losses by step."""
    losses = {}
    before: Vectors = {}
    for task, measured in done:
        if task.is_tracked:
            rows = measured.datasets if task.is_new else analysis.at(task.step)
            rows = track(what, Measured(rows, measured.vectors), before)
            recorded = reader.recorded_loss(task.step)
            if what.settles:
                losses[task.step] = float(rows["settled"]["start_loss"]), recorded
            else:
                losses[task.step] = float(rows["/"]["train_loss"]), recorded
                rows["/"]["recorded_loss"].values[...] = recorded
            rows["/"]["checkpoint_crc32"].values[...] = task.record
            rows["/"]["previous_step"].values[...] = task.before
            analysis.put(task.step, rows)
            analysis.write("running")
        before = measured.vectors
    return losses


def follow(run: Path, config: HessianConfig, ranks: Ranks) -> None:
    """Do the part of a rank that is not the first in its `hessian`."""
    with RunReader(run) as reader:
        problem, source = spread.opened(reader, config, ranks)
        if begun := ranks.broadcast():
            settings, tasks = begun
            what = Measurement.of(problem, settings)
            if source and tasks:
                what.require_sound(reader.checkpoint(tasks[0].step))
            for _ in one_by_one(reader, what, tasks, lambda *_, **__: None):
                pass


def plan(reader: RunReader, chosen: Sequence[int], analysis: Analysis) -> list[Task]:
    """What is left to do: the steps that are missing, and vectors to track those that follow another step by now."""
    steps = sorted({*chosen, *analysis.steps})
    before = dict(zip(steps, [schema.UNKNOWN, *steps], strict=False))
    previous = analysis.numbers("previous_step")
    tracked = {step for step in steps if previous.get(step) != before[step]}
    needed = tracked | {before[step] for step in tracked}
    return [
        Task(step, before[step], reader.record(step), step not in previous, step in tracked)
        for step in steps
        if step in needed
    ]


def _warn_of_losses(reader: RunReader, losses: Mapping[int, tuple[float, float]]) -> None:
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
