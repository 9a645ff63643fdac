"""One reader for all files: groups as xarray datasets, tables and a plot."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import xarray
from xarray.backends import BackendArray
from xarray.core import indexing

from landscape.errors import FileError
from landscape.files import schema
from landscape.files.datasets import group_names, read_group
from landscape.files.files import as_path
from landscape.files.frames import ARRAYS, beside, tables
from landscape.files.groups import axes_of, describe_axis, values_of
from landscape.files.hdf5 import complaints, config_of, file_schema, open_hdf5, root_attributes
from landscape.files.rows import Rows
from landscape.files.runs import GROK, MEMORISE, RunReader
from landscape.results import Described, curves
from landscape.text import first_few

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

EVENTS = ("memorise_step", "grok_step")
_SHOWN = 6
"""Datasets of a group that are named in its short form."""


class File(Described):
    """A run, Hessian or geometry file, whose groups are xarray datasets of committed rows; those of a run are lazy.

    Attributes:
        kind: "run", "hessian" or "geometry".
        attrs: root attributes; None where unknown.
        config: the options that made the file.
        groups: names of its groups.
        datasets: groups by name, except the resume slots, read on first use.
    """

    def __init__(self, path: Path | str) -> None:
        """Raises FileError for files that are missing, broken, foreign or of another version."""
        self.path = as_path(path)
        # The working folder may be another one when it is pickled.
        self._place = self.path.absolute()
        self._run: RunReader | None = None
        if file_schema(self.path) == schema.RUN:
            self._run = RunReader(self.path)
            self._file, attrs, self.groups = self._run.file, self._run.attrs, self._run.groups
        else:
            self._file = open_hdf5(self.path)
            attrs, self.groups = root_attributes(self.path, self._file), tuple(group_names(self._file))
        self.kind = attrs["schema"].removeprefix("landscape.")
        self.attrs, self.config = known_attributes(attrs), config_of(self.path, attrs)

    def __reduce__(self) -> tuple[type[Self], tuple[Path]]:
        """Pickled as its path: another process opens the file anew."""
        return type(self), (self._place,)

    def to_xarray(self, *names: str) -> xarray.Dataset:
        """Some groups as one dataset with named axes; NaN for unknown counts.

        The dataset has the rows that all of these groups have. Every row is first compared with its checksum, which
        reads the groups once; rows of a run that fail are left out.

        Args:
            names: groups; by default all of a run but the resume slots, and the root of other files.

        Returns:
            A dataset; that of a run is lazy.

        Raises:
            FileError: for a group that the file lacks or that fails its checksum, and for groups that use one name for
                different things.
        """
        names = names or (("/",) if self.kind == "hessian" else tuple(self.datasets))
        for name in names:
            if name not in self.groups:
                raise FileError(f"{self.path} holds no {name}", f"its groups: {', '.join(self.groups)}")
        parts = {name: self._group(name) for name in names}
        _require_distinct(self.path, parts)
        with complaints(self.path):
            merged = xarray.merge(parts.values(), join="inner", combine_attrs="override")
            merged = xarray.decode_cf(merged, decode_times=False, decode_coords=False, decode_timedelta=False)
        # Attributes of a Dataset cannot be None.
        merged.attrs = {n: value for n, value in self.attrs.items() if value is not None}
        return merged

    @functools.cached_property
    def datasets(self) -> Mapping[str, xarray.Dataset]:
        """The groups as lazy datasets by name, "/" for the root; without resume slots."""
        return _Datasets(self, [name for name in self.groups if name != "resume"])

    @property
    def steps(self) -> list[int]:
        """The stored or analysed steps, ascending."""
        return self._run.steps if self._run else [int(step) for step in self._labels(schema.STEP)]

    @property
    def damage(self) -> str:
        """Rows of a run that fail their checksums, by group; empty if none."""
        return self._run.damage if self._run else ""

    @property
    def blocks(self) -> list[str]:
        """The blocks of a Hessian file."""
        return self._labels("block")

    @property
    def pairs(self) -> list[str]:
        """The pairs of blocks of a Hessian file."""
        return self._labels("pair")

    @property
    def metrics(self) -> xarray.Dataset:
        """Losses, accuracies and norms of a run by metric_step."""
        return self.to_xarray("metrics")

    @property
    def checkpoints(self) -> xarray.Dataset:
        """The parameters of a run by step."""
        return self.to_xarray("checkpoints")

    @property
    def events(self) -> dict[str, int | None]:
        """memorise_step and grok_step, the first recorded steps at these accuracies; None where there is none."""
        if self.kind == "hessian":
            return {name: self.attrs[name] for name in EVENTS}
        if self._run is None:
            return {}
        return {name: self._run.first_step(*of) for name, of in zip(EVENTS, (MEMORISE, GROK), strict=True)}

    def to_dataframe(self) -> pd.DataFrame:
        """The main table: a run's metrics, or what belongs to a step, and a block; `to_dataframes` has the others.

        An index curve has a column for each bound and tolerance, such as index_curve_lower_1e-08.
        """
        group, name = _MAIN_TABLE[self.kind]
        known = tables([(group, self.to_xarray(group).load())])
        if name not in known:
            raise FileError(f"{self.path} holds no {name}", "to_dataframes() has all of its tables")
        return beside(known[name], known[_CURVES]) if _CURVES in known else known[name]

    def plot(self, ax: Axes | None = None, **style: Any) -> Axes:
        """Draw accuracies of a run, saddle indices of blocks, or Fourier shares over steps.

        Args:
            ax: axes to draw on; by default new ones.
            style: of `Axes.plot`, such as marker="s".

        Returns:
            The axes.
        """
        return {"run": _plot_run, "hessian": _plot_hessian, "geometry": _plot_geometry}[self.kind](self, ax, **style)

    def to_dataframes(self) -> dict[str, pd.DataFrame]:
        """The measurements as tidy tables by name, such as `by_step_block` and `metrics_by_metric_step`.

        A table has one row for each set of labels, such as a `block` at a `step`, and one column for each quantity
        of these axes. Codes are words, as in `inertia_level`. Rows without any number are left out, and so are
        parameters, data and eigenvectors.
        """
        return tables((name, self.to_xarray(name).load()) for name in self.groups if name not in ARRAYS)

    def facts(self) -> Iterator[tuple[str, object]]:
        """Path, status, and the quantities of each group with their axes."""
        yield "path", self.path
        yield "status", self.attrs["status"]
        for name in self.groups:
            datasets = {n: item for n, item in self._file[name].items() if hasattr(item, "shape") and not item.is_scale}
            axes = {n: axes_of(self.path, item) for n, item in datasets.items() if n != schema.COMMIT.name}
            yield name, first_few([f"{n} ({', '.join(of)})" for n, of in axes.items()], _SHOWN)

    def close(self) -> None:
        """Close the file, and with it its datasets."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _group(self, name: str) -> xarray.Dataset:
        """A group as it is stored."""
        if self._run is None:
            return read_group(self.path, self._file, name)
        table, rows = self._run.layout[name], self._run.tables.get(name)
        values: dict[str, Any]
        labels: dict[str, Any] = {axis: self._run.scales[axis] for f in table.fields for axis in f.dims}
        if rows:
            values = {f.name: indexing.LazilyIndexedArray(_Column(rows, f.name)) for f in table.fields}
            labels[rows.label] = list(rows.rows)
        else:
            values = self._run.arrays(name)
        variables = {f.name: (table.axes(f), values[f.name], f.description) for f in table.fields}
        coords = {
            axis: (axis, np.array(of), describe_axis(axis, "U" if isinstance(of, list) and axis != table.row else "i"))
            for axis, of in labels.items()
        }
        return xarray.Dataset(variables, coords)

    def _labels(self, axis: str) -> list[Any]:
        root = {} if self._run else self._file
        return values_of(self.path, root[axis]).tolist() if axis in root else []


def open(path: Path | str) -> File:  # noqa: A001
    """Open a run, Hessian or geometry file for reading, also while it is written.

    Args:
        path: the file.

    Returns:
        A `File`, to be closed or used in `with`.

    Raises:
        FileError: for files that are missing, broken, foreign or too new.
    """
    return File(path)


class _Datasets(Mapping[str, xarray.Dataset]):
    """Groups of a file, each made a dataset when it is looked up."""

    def __init__(self, file: File, names: Sequence[str]) -> None:
        self._file, self._names = file, names

    def __getitem__(self, name: str) -> xarray.Dataset:
        if name not in self._names:
            raise KeyError(name)
        return self._file.to_xarray(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


_MAIN_TABLE = {
    "run": ("metrics", "metrics_by_metric_step"),
    "hessian": ("/", "by_step_block"),
    "geometry": ("/", "by_step"),
}
"""Group and table that `to_dataframe` gives."""
_CURVES = "by_step_block_tau"
"""The table of index curves, which are short enough to stand in one row."""


def _plot_run(file: File, ax: Axes | None, **style: Any) -> Axes:
    """Accuracies, or every metric of a run without them."""
    data = file.to_dataframe()
    names = [str(name) for name in data if name != "metric_step"]
    accuracies = [name for name in names if name.endswith("accuracy")]
    value = "accuracy" if accuracies else "value"
    long = data.rename(columns={"metric_step": "step"}).melt("step", accuracies or names, "metric", value)
    return curves(long.dropna(), ax, "step", value, by="metric", **style)


def _plot_hessian(file: File, ax: Axes | None, **style: Any) -> Axes:
    """The saddle index of each block, with a band where only bounds are known."""
    data = file.to_dataframe()
    lower, upper = (data[f"inertia_{end}"].astype(float) for end in ("lower", "upper"))
    data = data.assign(saddle_index=(lower + upper) / 2, around=(upper - lower) / 2)
    return curves(data, ax, "step", "saddle_index", by="block", spread="around", **style)


def _plot_geometry(file: File, ax: Axes | None, **style: Any) -> Axes:
    """The largest Fourier share, and how much of its plane is a circle."""
    long = file.to_dataframe().melt("step", ["top_frequency_share", "top_circle_r2"], "quantity", "share")
    return curves(long.dropna(), ax, "step", "share", by="quantity", **style)


class _Column(BackendArray):
    """The committed rows of one dataset of a table, read on demand."""

    def __init__(self, rows: Rows, name: str) -> None:
        self.rows, self.name = rows, name
        self.shape = (len(rows.rows), *rows.data[name].shape[1:])
        self.dtype = rows.data[name].dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple[int | slice, ...]) -> np.ndarray[Any, Any]:
        at, *rest = key
        return self.rows.column(self.name, at)[(..., *rest)]


def known_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Root attributes with None for the steps of events that never came, and for a seed that is not known."""
    marked = (*EVENTS, "seed")
    return {n: None if n in marked and value == schema.UNKNOWN else value for n, value in attrs.items()}


def _require_distinct(path: Path, parts: Mapping[str, xarray.Dataset]) -> None:
    """Raise FileError for groups that cannot be merged, because they use one name for different things."""
    names = Counter(str(name) for data in parts.values() for name in data.data_vars)
    axes = {str(axis) for data in parts.values() for axis in data.dims}
    for name, count in names.items():
        if count > 1 or name in axes:
            raise FileError(
                f"{path} has {name} in several groups",
                f"name some of its groups: {', '.join(f'to_xarray({group!r})' for group in parts)}",
            )
