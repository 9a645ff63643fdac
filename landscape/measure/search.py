"""An analysis at the point where a search that starts from a checkpoint ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from torch import Tensor

from landscape import models
from landscape.config import AnalysisConfig
from landscape.errors import FileError
from landscape.files import views
from landscape.files.files import REPLACE, make_folder, output, refuse_existing, unmade
from landscape.files.runs import RunReader
from landscape.files.schema import Field, Table
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
from landscape.measure.fields import losses_in
from landscape.measure.forecast import Blocks
from landscape.measure.measure import measure
from landscape.measure.measurement import Measurement, Point
from landscape.measure.steps import warn_of_damage
from landscape.models.problem import Problem, tensors, with_state


@dataclasses.dataclass(frozen=True)
class Start:
    """Where a search begins: a checkpoint of a run, the problem with its buffers, and what is measured at the end."""

    reader: RunReader
    step: int
    problem: Problem
    config: AnalysisConfig

    @classmethod
    def of(cls, reader: RunReader, step: int, problem: Problem, config: AnalysisConfig) -> Start:
        """The start at a stored step."""
        return cls(reader, step, with_state(problem, reader.checkpoint(step)), config)

    @property
    def params(self) -> dict[str, Tensor]:
        """The parameters of the checkpoint."""
        return tensors(self.problem, self.reader.checkpoint(self.step))


@dataclasses.dataclass(frozen=True)
class Search:
    """A search with its settings.

    table, state_table: of its end and of its state, from the fields of the parameters; state: a dataclass of `params`,
    moments and numbers; carry_out: searches from the state of an earlier search, if there is one, with a function that
    saves its own, and whether to be quiet; returns the row of `table` where it ends; moments: what else the state has
    of each parameter.
    """

    table: Callable[[Iterable[Field]], Table]
    state_table: Callable[[Iterable[Field]], Table]
    state: type[Any]
    carry_out: Callable[[Start, Any, Callable[[Any], None], bool], dict[str, Any]]
    moments: Collection[str] = ()

    def numbers(self) -> list[str]:
        """The fields of the state that are numbers."""
        return [f.name for f in dataclasses.fields(self.state) if f.name not in ("params", *self.moments)]

    def stored(self, state: Any) -> dict[str, Any]:
        """A state as datasets."""
        moments = {f"{of}_{n}": array for of in self.moments for n, array in as_arrays(getattr(state, of)).items()}
        return {name: getattr(state, name) for name in self.numbers()} | moments | as_arrays(state.params)

    def restored(self, saved: xarray.Dataset, problem: Problem) -> Any:
        """The state that was stored."""

        def each(prefix: str) -> dict[str, Tensor]:
            return tensors(problem, {name: saved[f"{prefix}{name}"].values for name in problem.parameters})

        moments = {of: each(f"{of}_") for of in self.moments}
        return self.state(each(""), **moments, **{name: saved[name].item() for name in self.numbers()})


def searched(
    search: Search,
    run: Path,
    step: int,
    config: AnalysisConfig,
    out: Path,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> File:
    """Search from a checkpoint and measure the Hessian at the end: a Hessian file of one step.

    Its group `resume` has the state of the search, from which `resume` continues it.
    """
    out = output(out)
    require_other(out, run)
    with unmade(out.parent), RunReader(run) as reader:
        warn_of_damage(reader)
        make_folder(out.parent)
        with sole_writer(out):
            if not (resume or overwrite):
                refuse_existing(out, "use --resume to continue it, --overwrite to replace it, or another --out")
            problem, source = models.opened(reader, config)
            parameters = [Field(n, spec.axes, "f8", spec.meaning or n) for n, spec in problem.parameters.items()]
            of_point, of_search = losses_in(search.table(parameters), config), search.state_table(parameters)
            group = of_point.group
            stored = existing(out, reader, config, overwrite, source, group)
            stored = stored if resume else None
            if stored and step not in (stored.steps or [int(stored.groups[RESUME]["step"])]):
                raise FileError(f"{out} does not start from step {step}", REPLACE)
            arrays = reader.checkpoint(step)
            what = Measurement.of(problem, joined(config, problem, stored))
            if source:
                what.require_sound(arrays)
            tables, scales = what.layout()
            scales = {**scales, **_axes(problem)}
            attrs = attributes(reader, what.config, str(problem.device), source, stored)
            require_distinct(out, [of_search])
            analysis = Analysis.begun(out, attrs, ([*tables, of_point], scales), stored)

            def save(state: Any) -> None:
                where = {"step": step, "checkpoint_crc32": reader.record(step)}
                analysis.groups[RESUME] = dataset(of_search, scales, where | search.stored(state))
                analysis.write("running")

            saved = analysis.groups.get(RESUME)
            state = None if saved is None else search.restored(saved, problem)
            row = search.carry_out(Start.of(reader, step, problem, config), state, save, quiet)
            rows = analysis.at(step) if step in analysis.steps else {}
            if not all(np.array_equal(rows[group][name], row[name]) for name in problem.parameters if rows):
                rows = {}
            if rows and stored and is_whole(stored, attrs) and rows[group]["status"] == row["status"]:
                return views.open(out)
            if not rows:
                there = Point({**arrays, **{n: row[n] for n in problem.parameters}}, problem.training(reader, step))
                with Blocks(what, 1, quiet) as bar:
                    rows = measure(what, there, bar.show).datasets
            rows[group] = dataset(of_point, scales, row)
            rows["/"]["checkpoint_crc32"].values[...] = reader.record(step)
            analysis.put(step, rows)
            analysis.write("complete")
    return views.open(out)


def as_arrays(params: Mapping[str, Tensor]) -> dict[str, Any]:
    """Parameters as they are stored."""
    return {name: p.cpu().numpy() for name, p in params.items()}


def _axes(problem: Problem) -> dict[str, range]:
    return {a: range(n) for spec in problem.parameters.values() for a, n in zip(spec.axes, spec.shape, strict=True)}
