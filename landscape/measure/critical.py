"""Search the critical point nearest to a checkpoint and measure the Hessian there: `landscape critical`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscape import models
from landscape.config import AnalysisConfig
from landscape.curvature.critical import CriticalPoint, SearchState, find_critical_point
from landscape.curvature.objective import differentiable
from landscape.curvature.operators import LinearMap, Product
from landscape.errors import ConfigError, FileError
from landscape.files.files import REPLACE, as_path, critical_file, make_folder, output, refuse_existing, unmade
from landscape.files.hessians import AnalysisWriter, HessianReader
from landscape.files.runs import RunReader
from landscape.files.schema import Field
from landscape.files.writing import sole_writer
from landscape.measure.expected import Blocks
from landscape.measure.fields import STATUS, critical_table, losses_in, search_table
from landscape.measure.hessian import (
    existing,
    joined,
    make_plan,
    open_writer,
    warn_of_damage,
    written_attrs,
)
from landscape.measure.measurement import Measurement
from landscape.models.factory import Source
from landscape.models.problem import Problem, hessian, tensors, with_state
from landscape.progress import Bar

_NUMBERS = [f.name for f in dataclasses.fields(SearchState) if f.name != "params"]
ENDS = str(STATUS["flag_meanings"]).split()


@differentiable
def refine(
    run: Path | str,
    step: int,
    config: AnalysisConfig,
    out: Path | str | None = None,
    tol: float = 1e-10,
    max_products: int = 60_000,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> HessianReader:
    """Search the critical point of the objective nearest to a checkpoint, and measure the Hessian there.

    The file (default RUN.critical-STEP.h5) is a Hessian file of one step; its group `critical_point` has the refined
    parameters, their gradient norm and the status. Each step of the search is committed, so that `resume` continues
    after Ctrl-C or a kill: the search bit for bit on as many threads, the measurement from its start. `resume` also
    continues a search that used up its products, tightens `tol`, and adds blocks. Raises LandscapeError.
    """
    run = as_path(run)
    out = output(out or critical_file(run, step))
    if not 0 < tol < 1:
        raise ConfigError(f"tol is {tol}", "--search-tol takes a number between 0 and 1")
    if out.resolve() == run.resolve():
        raise FileError(f"{out} is the run file itself", "choose another --out")
    with unmade(out.parent), RunReader(run) as reader:
        warn_of_damage(reader)
        make_folder(out.parent)
        with sole_writer(out):
            if not (resume or overwrite):
                refuse_existing(out, "use --resume to continue it, --overwrite to replace it, or another --out")
            problem, source = models.opened(reader, config)
            found = existing(out, reader, config, overwrite, source)
            if not resume or found and not (found.steps or found.search):
                found = None
            if found and found.search.get("step", *found.steps) != step:
                raise FileError(f"{out} holds no search from step {step}", REPLACE)
            refinement = _Refinement(reader, step, problem, source, joined(config, problem, found), out, found)
            with refinement.closing:
                refinement.measure(refinement.search(tol, max_products, quiet), quiet)
    return HessianReader(out)


class _Refinement:
    """One search with its file, which is opened at the first write."""

    def __init__(
        self,
        reader: RunReader,
        step: int,
        problem: Problem,
        source: Source | None,
        config: AnalysisConfig,
        out: Path,
        found: HessianReader | None,
    ) -> None:
        self.reader, self.step, self.source = reader, step, source
        self.config, self.out, self.found = config, out, found
        self.closing = contextlib.ExitStack()
        self.start = reader.checkpoint(step)
        self.problem = with_state(problem, self.start)
        self.measurement = Measurement(self.problem, config)
        if source:
            self.measurement.require_sound(self.start)
        self.params = tensors(self.problem, self.start)
        self.decay = self.problem.decay(config.objective)
        self.objective = self.problem.objective(self.decay)

    @functools.cached_property
    def writer(self) -> AnalysisWriter:
        """The file: a new one, or the existing one extended to hold everything."""
        specs = self.problem.parameters
        axes = {axis: n for spec in specs.values() for axis, n in zip(spec.axes, spec.shape, strict=True)}
        parameters = [Field(name, spec.axes, "f8", spec.meaning or name) for name, spec in specs.items()]
        tables, scales = self.measurement.layout()
        tables += [losses_in(critical_table(parameters), self.config), search_table(parameters)]
        scales = {**scales, **{axis: range(n) for axis, n in axes.items()}}
        attrs = written_attrs(self.reader, self.config, self.found, str(self.problem.device), self.source)
        return self.closing.enter_context(open_writer(self.out, attrs, 1, tables, scales, self.found))

    def search(self, tol: float, max_products: int, quiet: bool) -> CriticalPoint:
        """Search, from the state of an earlier search if there is one."""
        # Most searches end long before `max_products`, so that the time until then says nothing.
        with Bar(None, "product", quiet) as bar:

            def counted(at: Mapping[str, Tensor]) -> LinearMap:
                op = hessian(self.problem, at, self.decay)

                def apply(vectors: Tensor) -> Tensor:
                    # A step of the search takes up to a thousand products.
                    bar.update()
                    return op @ vectors

                return Product.square(apply, op.shape[0], op)

            def progress(grad_norm: float, products: int) -> bool:
                bar.set_postfix(grad_norm=f"{grad_norm:.2e}", refresh=False)
                bar.n = products
                return False

            state = self._state()
            return find_critical_point(
                self.objective, self.params, tol, max_products, progress, counted, state, self._save
            )

    def measure(self, point: CriticalPoint, quiet: bool) -> None:
        """Measure what the file lacks of the Hessian at the point."""
        objective = self.objective
        row = {
            **_arrays(point.params),
            "status": ENDS.index(point.status),
            "grad_norm": point.grad_norm,
            "start_grad_norm": _norm(objective.gradient(self.params)),
            "loss": objective.value(point.params),
            "start_loss": objective.value(self.params),
            "remaining": point.remaining,
            "flatness": point.flatness,
            "distance": _norm({n: p - self.params[n] for n, p in point.params.items()}),
            "num_products": point.num_products,
        }
        found = self.found if self.found and self.found.steps else None
        before = found.critical_point(self.step) if found else {}
        is_there = bool(before) and all(np.array_equal(before[name], row[name]) for name in self.problem.parameters)
        is_done = is_there and found is not None and found.attrs["status"] == "complete"
        if is_done and before["status"] == row["status"] and not make_plan(found, [], self.config.blocks).todo:
            return
        writer = self.writer
        known = HessianReader(self.out).rows(self.step) if is_there else None
        with Blocks(self.measurement, [self.config.blocks], quiet=quiet) as progress:
            self.measurement.progress = progress.show
            there = {**self.start, **_arrays(point.params)}
            rows = self.measurement.run(there, self.problem.training(self.reader, self.step), known)
        rows["critical_point"] = row
        rows["/"] |= {"previous_step": -1, "checkpoint_crc32": self.reader.record(self.step)}
        # The loss that was recorded is that of the checkpoint, not of this point.
        rows["/"]["recorded_loss"] = float("nan")
        (writer.replace if writer.steps else writer.append)(self.step, rows)
        writer.finish("complete")

    def _state(self) -> SearchState | None:
        """The state of an earlier search; older versions stored its point only."""
        if self.found is None:
            return None
        saved = self.found.search
        if not saved:
            point = self.found.critical_point(self.step)
            return SearchState.begin(self.objective, self._point(point), int(point["num_products"]))
        numbers: dict[str, Any] = {name: saved[name].item() for name in _NUMBERS if name in saved}
        return SearchState(self._point(saved), **numbers)

    def _save(self, state: SearchState) -> None:
        numbers = {name: getattr(state, name) for name in _NUMBERS}
        where = {"step": self.step, "checkpoint_crc32": self.reader.record(self.step)}
        self.writer.save({**where, **numbers, **_arrays(state.params)})

    def _point(self, row: Mapping[str, Any]) -> dict[str, Tensor]:
        return tensors(self.problem, {name: row[name] for name in self.problem.parameters})


def _arrays(params: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: p.cpu().numpy() for name, p in params.items()}


def _norm(pieces: Mapping[str, Tensor]) -> float:
    return float(torch.stack([p.square().sum() for p in pieces.values()]).sum().sqrt())
