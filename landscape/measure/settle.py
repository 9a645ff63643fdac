"""Let a checkpoint settle in its basin and measure the Hessian there: `landscape settle`."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from landscape.config import AnalysisConfig
from landscape.curvature.objective import differentiable
from landscape.curvature.settle import SHARE, STEPS, DescentState, descend
from landscape.curvature.vectors import norm
from landscape.devices import one_thread
from landscape.errors import ConfigError
from landscape.files.files import as_path, settled_file
from landscape.files.runs import RunReader
from landscape.files.views import File
from landscape.measure.fields import MOMENTS, SETTLED_STATUS, descent_table, settled_table
from landscape.measure.search import Search, Start, as_arrays, searched
from landscape.models.problem import Arrays, Problem
from landscape.models.tasks import TEST, TRAIN
from landscape.models.trained import TrainedProblem
from landscape.progress import Bar

ENDS = str(SETTLED_STATUS["flag_meanings"]).split()
_EVERY = 2.0
"""Seconds between two states that are stored: a step takes milliseconds."""


@differentiable
def settle(
    run: Path | str,
    step: int,
    config: AnalysisConfig,
    out: Path | str | None = None,
    share: float = SHARE,
    max_steps: int = STEPS,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> File:
    """Descend from a checkpoint until the gradient is small, and measure the Hessian there.

    Full-batch Adam, whose rate only decreases, on the data loss with the weight decay of the run, lessens the noise of
    its optimiser. Decay that is not part of a smooth loss, as that of AdamW and nuclear norms, is left out.

    The file is a Hessian file of one step; its group `settled` has the settled parameters and what changed on the way,
    and `resume` the state of the descent, from which `resume` continues it bit for bit, also after Ctrl-C or a kill.

    Args:
        run: the run file.
        step: stored step to start from.
        config: what is measured at the point and how.
        out: by default RUN.settled-STEP.h5 beside the run.
        share: of the first |grad|, at which the descent ends.
        max_steps: most steps of the descent.
        resume: continue a descent of these settings, also one that used up its steps.
        overwrite: replace a file of another descent or other settings, which is an error otherwise.
        quiet: without a progress bar.

    Returns:
        The finished file.

    Raises:
        LandscapeError: for what cannot be descended, measured or written.
    """
    run = as_path(run)
    out = as_path(out or settled_file(run, step))
    if not 0 < share < 1:
        raise ConfigError(f"share is {share}", "--share takes a fraction between 0 and 1")
    carry_out = functools.partial(_carried_out, share=share, most=max_steps)
    search = Search(settled_table, descent_table, DescentState, carry_out, MOMENTS)
    return searched(search, run, step, config, out, resume, overwrite, quiet)


def settled(reader: RunReader, problem: Problem, config: AnalysisConfig, step: int) -> tuple[Arrays, dict[str, Any]]:
    """What is stored at a step with its parameters settled by default, and the row of `settled_table`."""
    row = _carried_out(Start.of(reader, step, problem, config), None, lambda state: None, True, SHARE, STEPS)
    return {**reader.checkpoint(step), **{name: row[name] for name in problem.parameters}}, row


def minimised(problem: Problem) -> float:
    """The weight decay of the smooth loss that a run minimised; 0 where it had none."""
    try:
        return problem.decay("regularised")
    except ConfigError:
        return 0.0


def _carried_out(
    start: Start,
    state: DescentState | None,
    save: Callable[[DescentState], None],
    quiet: bool,
    share: float,
    most: int,
) -> dict[str, Any]:
    """The settled point, and what changed on the way."""
    problem, params, decay = start.problem, start.params, minimised(start.problem)
    objective = problem.objective(decay)
    latest, saved = None, -math.inf

    def seldom(state: DescentState) -> None:
        nonlocal latest, saved
        latest = state
        if time.monotonic() - saved >= _EVERY:
            save(state)
            latest, saved = None, time.monotonic()

    with one_thread(), Bar(most, "step", quiet, state.num_steps if state else 0) as bar:

        def progress(grad_norm: float, steps: int) -> bool:
            bar.set_postfix(grad_norm=f"{grad_norm:.2e}", refresh=False)
            bar.update(steps - bar.n)
            return False

        try:
            point = descend(objective, params, share, most, progress, state, seldom)
        finally:
            if latest:
                save(latest)
        before, after = _numbers(start, params, decay), _numbers(start, point.params, decay)
    return {
        **as_arrays(point.params),
        "status": ENDS.index(point.status),
        "num_steps": point.num_steps,
        "rate": point.rate,
        "weight_decay": decay,
        "distance": point.distance,
        "relative_distance": point.distance / (norm(params) or math.nan),
        **after,
        **{f"start_{name}": value for name, value in before.items()},
    }


def _numbers(start: Start, params: Mapping[str, Tensor], decay: float) -> dict[str, float]:
    """What is compared before and after."""
    problem, objective = start.problem, start.problem.objective(decay)
    structure = problem.structure(params, 0.0)
    pulls = structure.pulls() if structure and decay else {}
    return {
        "grad_norm": norm(objective.gradient(params)),
        "objective": objective.value(params),
        "loss": problem.objective(0.0).value(params),
        **_accuracies(start, params),
        "saddle_excess": pulls.get("tables", math.nan) - decay,
        "bias_gradient": pulls["bias"] / decay if "bias" in pulls else math.nan,
    }


def _accuracies(start: Start, params: Mapping[str, Tensor]) -> dict[str, float]:
    if not isinstance(start.problem, TrainedProblem):
        return {"train_accuracy": math.nan, "test_accuracy": math.nan}
    data = start.reader.data()
    right = start.problem.logits(as_arrays(params), data["tokens"]).argmax(1) == data["labels"]
    parts = {"train": right[data["split"] == TRAIN], "test": right[data["split"] == TEST]}
    return {f"{name}_accuracy": float(np.mean(part)) if part.size else math.nan for name, part in parts.items()}
