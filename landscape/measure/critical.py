"""Search the critical point nearest to a checkpoint and measure the Hessian there: `landscape critical`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray
from torch import Tensor

from landscape import models
from landscape.config import AnalysisConfig
from landscape.curvature.critical import CriticalPoint, SearchState, find_critical_point
from landscape.curvature.objective import differentiable
from landscape.curvature.operators import FunctionOperator, LinearOperator
from landscape.errors import ConfigError, FileError
from landscape.files import views
from landscape.files.files import REPLACE, as_path, critical_file, make_folder, output, refuse_existing, unmade
from landscape.files.runs import RunReader
from landscape.files.schema import Field
from landscape.files.views import File
from landscape.files.writing import sole_writer
from landscape.measure.analysis import (
    RESUME,
    Analysis,
    attributes,
    existing,
    is_whole,
    joined,
    require_distinct,
    require_other,
)
from landscape.measure.datasets import dataset
from landscape.measure.fields import STATUS, critical_table, losses_in, search_table
from landscape.measure.forecast import Blocks
from landscape.measure.measure import measure
from landscape.measure.measurement import Measurement, Point
from landscape.measure.steps import warn_of_damage
from landscape.models.problem import Arrays, Problem, hessian, tensors, with_state
from landscape.progress import Bar

_NUMBERS = [f.name for f in dataclasses.fields(SearchState) if f.name != "params"]
ENDS = str(STATUS["flag_meanings"]).split()


@differentiable
def critical(
    run: Path | str,
    step: int,
    config: AnalysisConfig,
    out: Path | str | None = None,
    tol: float = 1e-10,
    max_products: int = 60_000,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> File:
    """Search the critical point of the objective nearest to a checkpoint, and measure the Hessian there.

    The file is a Hessian file of one step; its group `critical_point` has the refined parameters, their gradient norm
    and the status, and `resume` the state of the search after its last step, from which `resume` continues it bit for
    bit on as many threads, also after Ctrl-C or a kill.

    Args:
        run: the run file.
        step: stored step to start from.
        config: what is measured at the point and how.
        out: by default RUN.critical-STEP.h5 beside the run.
        tol: distance to the critical point in units of |theta| up to which a point is critical.
        max_products: most Hessian-vector products of the search.
        resume: continue a search of these settings, also one that used up its products.
        overwrite: replace a file of another search or other settings, which is an error otherwise.
        quiet: without a progress bar.

    Returns:
        The finished file.

    Raises:
        LandscapeError: for what cannot be searched, measured or written.
    """
    run = as_path(run)
    out = output(out or critical_file(run, step))
    if not 0 < tol < 1:
        raise ConfigError(f"tol is {tol}", "--search-tol takes a number between 0 and 1")
    require_other(out, run)
    with unmade(out.parent), RunReader(run) as reader:
        warn_of_damage(reader)
        make_folder(out.parent)
        with sole_writer(out):
            if not (resume or overwrite):
                refuse_existing(out, "use --resume to continue it, --overwrite to replace it, or another --out")
            problem, source = models.opened(reader, config)
            stored = existing(out, reader, config, overwrite, source)
            stored = stored if resume else None
            if stored and step not in (stored.steps or [int(stored.groups[RESUME]["step"])]):
                raise FileError(f"{out} holds no search from step {step}", REPLACE)
            start = reader.checkpoint(step)
            what = Measurement.of(problem, joined(config, problem, stored))
            if source:
                what.require_sound(start)
            tables, scales = what.layout()
            scales = {**scales, **_axes(problem)}
            of_point, of_search = losses_in(critical_table(_fields(problem)), config), search_table(_fields(problem))
            attrs = attributes(reader, what.config, str(problem.device), source, stored)
            require_distinct(out, [of_search])
            analysis = Analysis.begun(out, attrs, ([*tables, of_point], scales), stored)
            search = _Search(with_state(problem, start), config.objective, start)

            def save(state: SearchState) -> None:
                numbers = {name: getattr(state, name) for name in _NUMBERS}
                where = {"step": step, "checkpoint_crc32": reader.record(step)}
                analysis.groups[RESUME] = dataset(of_search, scales, where | numbers | _arrays(state.params))
                analysis.write("running")

            saved = analysis.groups.get(RESUME)
            state = None if saved is None else _state(problem, saved)
            point = search.carried_out(tol, max_products, state, save, quiet)
            row = search.row(point)
            rows = analysis.at(step) if step in analysis.steps else {}
            if not all(np.array_equal(rows["critical_point"][name], row[name]) for name in problem.parameters if rows):
                rows = {}
            if rows and stored and is_whole(stored, attrs) and rows["critical_point"]["status"] == row["status"]:
                return views.open(out)
            if not rows:
                there = Point({**start, **_arrays(point.params)}, problem.training(reader, step))
                with Blocks(what, 1, quiet) as bar:
                    rows = measure(what, there, bar.show).datasets
            rows["critical_point"] = dataset(of_point, scales, row)
            rows["/"]["checkpoint_crc32"].values[...] = reader.record(step)
            analysis.put(step, rows)
            analysis.write("complete")
    return views.open(out)


class _Search:
    """A search from a checkpoint."""

    def __init__(self, problem: Problem, objective: str, start: Arrays) -> None:
        self.problem, self.params = problem, tensors(problem, start)
        self.decay = problem.decay(objective)
        self.objective = problem.objective(self.decay)

    def carried_out(
        self, tol: float, most: int, state: SearchState | None, save: Callable[[SearchState], None], quiet: bool
    ) -> CriticalPoint:
        """Search, from the state of an earlier search if there is one."""
        # Most searches end long before their products are used up, so that the time until then says nothing.
        with Bar(None, "product", quiet) as bar:

            def counted(at: Mapping[str, Tensor]) -> LinearOperator:
                op = hessian(self.problem, at, self.decay)

                def apply(vectors: Tensor) -> Tensor:
                    # A step of the search takes up to a thousand products.
                    bar.update()
                    return op @ vectors

                return FunctionOperator(apply, op.shape, op)

            def progress(grad_norm: float, products: int) -> bool:
                bar.set_postfix(grad_norm=f"{grad_norm:.2e}", refresh=False)
                bar.n = products
                return False

            return find_critical_point(self.objective, self.params, tol, most, progress, counted, state, save)

    def row(self, point: CriticalPoint) -> dict[str, Any]:
        """The point and how it was found."""
        return {
            **_arrays(point.params),
            "status": ENDS.index(point.status),
            "grad_norm": point.grad_norm,
            "start_grad_norm": _norm(self.objective.gradient(self.params)),
            "loss": self.objective.value(point.params),
            "start_loss": self.objective.value(self.params),
            "remaining": point.remaining,
            "flatness": point.flatness,
            "distance": _norm({n: p - self.params[n] for n, p in point.params.items()}),
            "num_products": point.num_products,
        }


def _axes(problem: Problem) -> dict[str, range]:
    return {a: range(n) for spec in problem.parameters.values() for a, n in zip(spec.axes, spec.shape, strict=True)}


def _fields(problem: Problem) -> list[Field]:
    return [Field(name, spec.axes, "f8", spec.meaning or name) for name, spec in problem.parameters.items()]


def _state(problem: Problem, saved: xarray.Dataset) -> SearchState:
    """The state of an earlier search."""
    params = tensors(problem, {name: saved[name].values for name in problem.parameters})
    numbers: dict[str, Any] = {name: saved[name].item() for name in _NUMBERS}
    return SearchState(params, **numbers)


def _arrays(params: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: p.cpu().numpy() for name, p in params.items()}


def _norm(pieces: Mapping[str, Tensor]) -> float:
    return float(torch.stack([p.square().sum() for p in pieces.values()]).sum().sqrt())
