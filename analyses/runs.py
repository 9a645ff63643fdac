"""The runs of a study of the trial, from the folder that `landscape sweep` left."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from landscape import open_geometry, open_hessian, open_run
from landscape.errors import LandscapeError
from landscape.files.files import geometry_file
from landscape.files.runs import GROK, MEMORISE
from landscape.jobs.plan import DEFINITION, SweepRun, load_sweep, sweep_runs


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a study: its labels (case, grid values, seed) and its files."""

    planned: SweepRun

    @property
    def labels(self) -> dict[str, Any]:
        return self.planned.labels

    @property
    def name(self) -> str:
        """STUDY/RUN, as its file is called."""
        return f"{self.planned.path.parent.name}/{self.planned.path.stem}"

    @property
    def identity(self) -> dict[str, Any]:
        """What names a run in every table: study, case and seed."""
        return {"study": self.planned.path.parent.name, "case": self.labels["case"], "seed": self.labels["seed"]}

    @functools.cached_property
    def data(self) -> xarray.Dataset:
        """The run file, lazily: E, W, ... by step, metrics by metric_step, tokens."""
        return open_run(self.planned.path)

    def hessian(self, name: str = "") -> xarray.Dataset:
        """A Hessian file, lazily."""
        return open_hessian(self.planned.hessian[name])

    def geometry(self) -> xarray.Dataset:
        """The geometry file, in memory. Raises LandscapeError for one that is not complete.

        What a file in the making lacks at its end would count as never there.
        """
        with open_geometry(path := geometry_file(self.planned.path)) as data:
            if data.attrs["status"] != "complete":
                found = f"{path} is {data.attrs['status']}, not complete"
                raise LandscapeError(found, f"landscape geometry {self.planned.path}")
            return data.load()

    def first(self, metric: str, threshold: float) -> float:
        """First step at which a metric reached a threshold; NaN if it never did."""
        steps = self.data["metric_step"].values[self.data[metric].values >= threshold]
        return float(steps[0]) if len(steps) else np.nan

    @functools.cached_property
    def times(self) -> dict[str, float]:
        """memorised and grokked (NaN: never), and their delay."""
        memorised, grokked = self.first(*MEMORISE), self.first(*GROK)
        return {"memorised": memorised, "grokked": grokked, "delay": grokked - memorised}


def used_for(data: xarray.Dataset, part: str) -> NDArray[np.bool_]:
    """Which pairs of a run are `train`, `test` or `unused`, by the codes in the file."""
    split = data["split"]
    meanings = dict(zip(split.attrs["flag_meanings"].split(), split.attrs["flag_values"], strict=True))
    found: NDArray[np.bool_] = split.values == meanings[part]
    return found


@functools.cache
def finished(name: str, folder: Path) -> tuple[Run, ...]:
    """The runs of the study in FOLDER/NAME, which must be complete, and so must their analyses.

    A run that never memorised has no plateau, and no analysis there.
    """
    definition = folder / name / DEFINITION
    if not definition.exists():
        raise LandscapeError(f"{definition} is missing: no study {name} in {folder}", "make studies")
    sweep = load_sweep(definition)
    runs = tuple(Run(run) for run in sweep_runs(sweep, folder))
    on_plateau = {one.name for one in sweep.analyses if getattr(one.settings, "steps", None) == "plateau"}
    # A run still in training would count as censored too early.
    missing = [r.planned.path for r in runs if not r.planned.path.exists() or r.data.attrs["status"] != "complete"]
    if missing:
        raise LandscapeError(
            f"{len(missing)} of {len(runs)} runs of study {name} are missing or unfinished, {missing[0]} the first",
            "make studies",
        )
    for run in runs:
        for analysis, path in run.planned.hessian.items():
            if analysis in on_plateau and np.isnan(run.times["memorised"]):
                continue
            if not path.exists() or run.hessian(analysis).attrs["status"] != "complete":
                raise LandscapeError(f"analysis {path} is missing or unfinished", "make studies")
    return runs
