"""Runs with their Hessian files as xarray datasets, for figures."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray
from numpy.typing import NDArray

from landscape.choices.tasks import TEXT
from landscape.config import TrainConfig, replace
from landscape.errors import FileError, LandscapeError, in_file, note, warn
from landscape.files import schema
from landscape.files.files import as_path, geometry_file, hessian_file, run_file
from landscape.files.hdf5 import COPY_AGAIN, file_schema
from landscape.files.hessians import HessianReader
from landscape.files.runs import RunReader
from landscape.files.views import File, load_group
from landscape.text import printable
from landscape.training.schedule import gaps, unrecorded

if TYPE_CHECKING:
    from matplotlib.figure import Figure


NOT_KNOWN = "seed not known"
"""The seed of a run that was recorded without one."""


class NotDrawnError(LandscapeError):
    """The files lack the data of a figure."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            reason, "name files that hold it; `landscape hessian` measures curvature, `landscape geometry` embeddings"
        )


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A figure with its data, caption and key numbers."""

    title: str
    figure: Figure
    data: pd.DataFrame
    caption: str
    numbers: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Source:
    """A run file, its Hessian file, or both, and the run's geometry file.

    Datasets hold committed rows; those of a missing file are empty.
    """

    run: Path | None
    hessian: Path | None
    shows_folder: bool = False
    """Whether the label includes the folder, because another source has the same name."""
    geometry: Path | None = None

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The run's config, with defaults for options added since."""
        attrs = self.run_attrs
        with in_file(self.path, "config"):
            stored: dict[str, Any] = json.loads(attrs["config"] if attrs else self.hessian_attrs["parent_config"])
            if stored.get("kind") == schema.RECORDED:
                return stored
            return dataclasses.asdict(replace(TrainConfig(), stored))

    @property
    def is_recorded(self) -> bool:
        """Whether the checkpoints did not come from `landscape train`."""
        return self.config.get("kind") == schema.RECORDED

    @property
    def run_id(self) -> str:
        """What tells its run from all others."""
        return str(self.run_attrs.get("run_id", self.hessian_attrs.get("parent_run_id")))

    @property
    def seed(self) -> str:
        """The seed of the training, or that it is not known."""
        seed = self.config["seed"]
        return NOT_KNOWN if seed == schema.UNKNOWN else f"seed {seed}"

    @property
    def path(self) -> Path:
        """The run file, or the Hessian file where there is no run file."""
        path = self.run or self.hessian
        assert path is not None
        return path

    @property
    def label(self) -> str:
        """Name and seed of the run. Bytes that are no UTF-8 are escaped: columns of text take no others."""
        # In one folder a run and a Hessian file of another run may have the same name, but for the suffix.
        name = str(self.path) if self.shows_folder else self.path.name.removesuffix(".h5").removesuffix(".hessian")
        return printable(f"{name.removesuffix('.h5')} ({self.seed})")

    @property
    def is_refined(self) -> bool:
        """Whether the Hessian file holds a point refined from a checkpoint."""
        return bool(self.hessian_attrs) and "steps" not in json.loads(self.hessian_attrs["config"])

    @functools.cached_property
    def run_attrs(self) -> dict[str, Any]:
        """Root attributes of the run file; empty without one."""
        return _attrs(self.run, schema.RUN)

    @functools.cached_property
    def hessian_attrs(self) -> dict[str, Any]:
        """Root attributes of the Hessian file; empty without one."""
        return _attrs(self.hessian, schema.HESSIAN)

    @functools.cached_property
    def metrics(self) -> xarray.Dataset:
        """Losses, accuracies and norms by metric_step."""
        return _group(self.run, schema.RUN, "metrics")

    @functools.cached_property
    def tokens(self) -> xarray.Dataset:
        """Counts and norms by step and token."""
        return _group(self.run, schema.RUN, "tokens")

    @functools.cached_property
    def measured(self) -> xarray.Dataset:
        """The Hessian file by step."""
        return _group(self.hessian, schema.HESSIAN, "/")

    @functools.cached_property
    def spectra(self) -> xarray.Dataset:
        """Full spectra of the dense blocks by step."""
        return self._committed("spectrum")

    @functools.cached_property
    def densities(self) -> xarray.Dataset:
        """Smoothed spectral densities of all blocks by step."""
        return self._committed("density")

    def _committed(self, group: str) -> xarray.Dataset:
        """A group of the Hessian file at the steps of `measured`, whose rows are written last."""
        data = _group(self.hessian, schema.HESSIAN, group)
        return data.isel(step=np.isin(data["step"].values, self.measured["step"].values)) if data.sizes else data

    @functools.cached_property
    def embedding(self) -> xarray.Dataset:
        """The geometry file by step."""
        return _group(self.geometry, schema.GEOMETRY, "/")

    @functools.cached_property
    def numbers(self) -> xarray.Dataset:
        """The number at each place of the geometry file."""
        return _group(self.geometry, schema.GEOMETRY, "numbers")

    @property
    def num_operands(self) -> int:
        """The tokens that samples differ in: numbers mod p, or the words of a text."""
        return int(self.config["vocabulary" if self.config["task"] == TEXT else "p"])

    @functools.cached_property
    def pairs_of_token(self) -> NDArray[np.int64]:
        """Number of training samples that contain each token."""
        assert self.run is not None
        with RunReader(self.run) as reader:
            data = reader.data()
            count = len(reader.scales["token"])
        tokens = data["tokens"][data["split"] == 0]
        if tokens.min(initial=0) < 0 or tokens.max(initial=0) >= count:
            raise FileError(f"{self.run}: data holds tokens other than 0 to {count - 1}", COPY_AGAIN)
        holds = [np.unique(row) for row in tokens]
        return np.bincount(np.concatenate(holds), minlength=count)

    def blocks(self) -> list[str]:
        """The blocks that were analysed."""
        return [str(block) for block in self.measured["block"].values]

    def table(self, **columns: Any) -> pd.DataFrame:
        """Rows of a figure's data, labelled with the run."""
        return pd.DataFrame({"run": self.label, **columns})

    def event(self, metric: str, threshold: float) -> int | None:
        """First step at which a metric of `landscape train` reaches a threshold; of other runs nobody asks for it."""
        if self.is_recorded or metric not in self.metrics:
            return None
        steps = self.metrics["metric_step"].values[self.metrics[metric].values >= threshold]
        return int(steps[0]) if len(steps) else None

    def last(self, names: Iterable[str]) -> dict[str, tuple[int, float]]:
        """The last step at which each of these metrics is known, and its value there."""
        known = {name: self.metrics[name].dropna("metric_step") for name in names}
        return {name: (int(x["metric_step"][-1]), float(x[-1])) for name, x in known.items() if x.size}

    @functools.cached_property
    def accuracies(self) -> list[str]:
        """The metrics that are accuracies by a word of their names, as in train_accuracy, val_acc and evalAccuracy."""
        names = list(map(str, self.metrics.data_vars))
        words = [re.split("[^a-z]+", re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()) for name in names]
        return [name for name, of in zip(names, words, strict=True) if {"acc", "accuracy"} & {*of}]

    @functools.cached_property
    def unrecorded(self) -> list[int]:
        """Steps of the schedule without metrics, as damage and its repair leave them, or a sparser schedule before."""
        steps = self.metrics["metric_step"].values.tolist() if "metric_step" in self.metrics else []
        return unrecorded(steps, self.config["metrics_every"]) if steps and not self.is_recorded else []

    @property
    def gaps(self) -> str:
        """What to say of these steps; empty if none."""
        return gaps(self.unrecorded)

    def may_be_earlier(self, event: int | None) -> bool:
        """Whether an event may have come at such a step before this one; None: at any of them."""
        return any(event is None or step < event for step in self.unrecorded)

    @functools.cached_property
    def diverged(self) -> int | None:
        """The step at which training ended because a loss or parameter was not finite."""
        steps = self.metrics.get("metric_step", np.empty(0))
        if self.run_attrs.get("status") != "diverged" or not steps.size:
            return None
        is_bad = ~np.isfinite(self.metrics["train_loss"].values)
        # Where a parameter alone is not finite, the last record is that of its step.
        return int(steps[is_bad.argmax() if is_bad.any() else -1])

    @functools.cached_property
    def damage(self) -> list[str]:
        """Rows left out because their checksums fail, one line a file."""
        found = {}
        if self.run:
            with RunReader(self.run) as reader:
                found[self.run] = reader.damage
        if self.hessian:
            found[self.hessian] = HessianReader(self.hessian).damage
        return [f"{path}: left out, for their checksums fail: {rows}" for path, rows in found.items() if rows]

    @property
    def mismatch(self) -> str | None:
        """What is wrong if the Hessian file was made from other checkpoints."""
        if self.run is None or self.hessian is None:
            return None
        with RunReader(self.run) as run:
            wrong = HessianReader(self.hessian).mismatch(run)
        return f"{self.hessian.name}: {wrong}" if wrong else None


def open_sources(files: Sequence[Path | str], broken: list[LandscapeError] | None = None) -> list[Source]:
    """Pair run files with Hessian files, in the order given; the other files of each run are looked for beside it.

    Further Hessian files of a run, and points refined from its checkpoints, are separate sources. Raises FileError for
    files that are missing, broken or of another schema; with `broken` these are left out, and their errors put there.
    """
    runs: dict[str, list[Path]] = {}
    measured: dict[str, list[Path]] = {}
    geometries: dict[str, list[Path]] = {}
    for path in _distinct(files):
        with leaving_out(broken):
            kind = file_schema(path)
            if kind not in (schema.RUN, schema.HESSIAN, schema.GEOMETRY):
                raise FileError(f"{path} is no file of landscape", "name run files or Hessian files")
            key = _attrs(path, kind)["run_id" if kind == schema.RUN else "parent_run_id"]
            for found in (runs, measured, geometries):
                found.setdefault(key, [])
            {schema.RUN: runs, schema.HESSIAN: measured, schema.GEOMETRY: geometries}[kind][key].append(path)
    sources = []
    for key in runs:
        for source in _paired(key, runs[key], measured[key], geometries[key], broken):
            with leaving_out(broken):
                sources.append((source.label, source))
    count = Counter(label for label, _ in sources)
    return [dataclasses.replace(source, shows_folder=count[label] > 1) for label, source in sources]


@contextlib.contextmanager
def leaving_out(broken: list[LandscapeError] | None) -> Iterator[None]:
    """Context whose error is put into `broken`; without that list it is raised."""
    try:
        yield
    except LandscapeError as error:
        if broken is None:
            raise
        broken.append(error)


def _distinct(files: Sequence[Path | str]) -> list[Path]:
    """The files, each once; says which were named again."""
    found: dict[Path, Path] = {}
    for path in map(as_path, files):
        first = found.setdefault(path.resolve(), path)
        if first is not path:
            note(f"{path} is named twice" if path == first else f"{path} is {first}, and counts once")
    return list(found.values())


def _paired(
    key: str,
    runs: Sequence[Path],
    measured: Sequence[Path],
    geometries: Sequence[Path],
    broken: list[LandscapeError] | None,
) -> list[Source]:
    """The sources of one run_id."""
    refined, left = _apart(measured)
    known = {path.resolve() for path in measured}
    sources = []
    runs = runs or [p for p in map(run_file, [*left, *geometries][:1]) if _is_of(p, schema.RUN, "run_id", key)]
    with leaving_out(broken):
        if geometries and not runs:
            raise FileError(f"{geometries[0]}: its run file is not beside it", "name the run file, too")
    further: list[Path] = []
    for run in runs:
        own, left = left[:1], left[1:]
        if not own:
            points, own = _apart(_beside(run, key, broken))
            refined += [path for path in points if path.resolve() not in known]
        further += own[1:]
        beside_it = [p for p in (*geometries, geometry_file(run)) if _is_of(p, schema.GEOMETRY, "parent_run_id", key)]
        sources.append(Source(run, own[0] if own else None, geometry=beside_it[0] if beside_it else None))
    return sources + [Source(None, path) for path in (*left, *further, *refined)]


def _beside(run: Path, key: str, broken: list[LandscapeError] | None) -> list[Path]:
    """The analyses of a run that lie beside it: the one without a name, then those that a sweep named, then points.

    Searches for a point that have not measured it yet stay where they are.
    """
    plain, stem = hessian_file(run), glob.escape(run.stem)
    named, points = (sorted(run.parent.glob(f"{stem}.{kind}-*.h5")) for kind in ("hessian", "critical"))
    found = []
    for path in (plain, *named, *points):
        with leaving_out(broken):
            if _is_of(path, schema.HESSIAN, "parent_run_id", key):
                if path not in points or HessianReader(path).steps:
                    found.append(path)
            elif path == plain and plain.exists():
                warn(f"{plain} is left out: it was not made from {run}")
    return found


def _apart(measured: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Refined points, which lie on no training path, and analyses of checkpoints."""
    refined = [path for path in measured if Source(None, path).is_refined]
    return refined, [path for path in measured if path not in refined]


def _is_of(path: Path, kind: str, attribute: str, key: str) -> bool:
    """Whether a file of this kind and run_id exists."""
    return path.exists() and file_schema(path) == kind and bool(_attrs(path, kind)[attribute] == key)


def having(sources: Sequence[Source], part: str, *names: str) -> list[Source]:
    """The sources whose `part` has rows and all variables. Raises NotDrawnError if there is none."""
    kept = []
    for source in sources:
        data: xarray.Dataset = getattr(source, part)
        if data.sizes and all(data.sizes.values()) and set(names) <= set(data.variables):
            kept.append(source)
    if not kept:
        place = {"metrics": "run", "tokens": "run", "embedding": "geometry"}.get(part, "Hessian")
        raise NotDrawnError(f"no {place} file given holds {', '.join(names) or part}")
    return kept


def lacking(sources: Sequence[Source]) -> str:
    """How many of these lack rows of metrics, as the end of a title; empty if none do."""
    count = sum(bool(source.unrecorded) for source in sources)
    return f"; {count} lack{'s' * (count == 1)} rows of metrics" * bool(count)


def _attrs(path: Path | None, kind: str) -> dict[str, Any]:
    if path is None:
        return {}
    with File(path) as file:
        return file.attrs


def _group(path: Path | None, kind: str, group: str) -> xarray.Dataset:
    return load_group(path, kind, group) if path else xarray.Dataset()
