"""Files as xarray datasets, read lazily."""

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
from landscape.files.contents import EVENTS, Contents, known_attributes
from landscape.files.creating import describe_axis
from landscape.files.files import as_path, open_file
from landscape.files.frames import ARRAYS, tables
from landscape.files.runs import GROK, MEMORISE, RunReader
from landscape.files.table import TableReader, listed
from landscape.results import Described, curves
from landscape.text import first_few

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_SHOWN = 6
"""Datasets of a group that are named in its short form."""


class File(Described):
    """A run, Hessian or geometry file whose groups are lazy xarray datasets of committed rows.

    kind: "run", "hessian" or "geometry"; attrs: its root attributes, None where unknown; config: the options that made
    it; groups: the names of its groups; datasets: the groups but the resume slots, by name, read on first use.
    """

    schema = ""
    """The schema of the file; empty: any."""

    def __init__(self, path: Path | str) -> None:
        """Raises FileError for files that are missing, broken, foreign or too new."""
        self.path = as_path(path)
        # The working folder may be another one when it is pickled.
        self._place = self.path.absolute()
        self._file = open_file(self.path, self.schema)
        self._file.require_described()
        self.kind = self._file.kind.removeprefix("landscape.")
        self.attrs, self.config = known_attributes(self._file.attrs), self._file.config
        self.groups = (*self._file.tables, *self._file.arrays)

    def __reduce__(self) -> tuple[type[Self], tuple[Path]]:
        """Pickled as its path: another process opens the file anew."""
        return type(self), (self._place,)

    def to_xarray(self, *names: str) -> xarray.Dataset:
        """Some groups as one lazy dataset with named axes; NaN for unknown counts.

        names: by default all groups but resume slots, and of a Hessian file the root.

        It has the rows that all of them have. Every row is first checked against its checksum, which reads the groups
        once; rows that fail are left out. Raises FileError for a group that the file lacks, and for groups that use one
        name for different things.
        """
        file = self._file
        names = names or (("/",) if self.kind == "hessian" else tuple(self.datasets))
        for name in names:
            if name not in self.groups:
                raise FileError(f"{self.path} holds no {name}", f"its groups: {', '.join(self.groups)}")
        _require_distinct(self.path, [file.layout[name] for name in names])
        parts = [_table(file, file.tables[name]) for name in names if name in file.tables]
        for group in (file.arrays[name] for name in names if name in file.arrays):
            values = group.read()
            parts.append(_dataset(file, {}, [(f, values[f.name]) for f in group.table.fields]))
        merged = xarray.merge(parts, join="inner", combine_attrs="override")
        # Mask unknown counts, also in files of versions without the mark.
        merged = xarray.decode_cf(merged, decode_times=False, decode_coords=False, decode_timedelta=False)
        # Attributes of a Dataset cannot be None.
        merged.attrs = {n: value for n, value in self.attrs.items() if value is not None}
        return merged

    @functools.cached_property
    def datasets(self) -> Mapping[str, xarray.Dataset]:
        """The groups as lazy datasets by name, "/" for the root; without resume slots."""
        tables = self._file.tables
        return _Datasets(self, [n for n in self.groups if n not in tables or not tables[n].table.newest])

    @property
    def steps(self) -> list[int]:
        """The stored or analysed steps, ascending."""
        return sorted(set.intersection(*(set(table.rows) for table in self._file.by_step.values())))

    @property
    def damage(self) -> str:
        """Rows that fail their checksums, by group; empty if none."""
        damaged = {name: table.damaged for name, table in self._file.tables.items() if not table.table.newest}
        return "; ".join(f"{name}: {listed(steps)}" for name, steps in damaged.items() if steps)

    @property
    def blocks(self) -> list[str]:
        """The blocks of a Hessian file."""
        return [str(block) for block in self._file.scales.get("block", ())]

    @property
    def pairs(self) -> list[str]:
        """The pairs of blocks of a Hessian file."""
        return [str(pair) for pair in self._file.scales.get("pair", ())]

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
        if self.kind != "run":
            return {}
        with RunReader(self._place) as run:
            return {name: run.first_step(*of) for name, of in zip(EVENTS, (MEMORISE, GROK), strict=True)}

    def to_dataframe(self) -> pd.DataFrame:
        """The main table: a run's metrics, or what belongs to a step, and a block; `to_dataframes` has the others."""
        group, name = _MAIN_TABLE[self.kind]
        return _table_of(self, group, name)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw accuracies of a run, saddle indices of blocks, or Fourier shares over steps.

        Args:
            ax: axes to draw on; by default new ones.

        Returns:
            The axes.
        """
        return {"run": _plot_run, "hessian": _plot_hessian, "geometry": _plot_geometry}[self.kind](self, ax)

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
            table = self._file.layout[name]
            yield name, first_few([f"{f.name} ({', '.join(table.axes(f))})" for f in table.fields], _SHOWN)

    def close(self) -> None:
        """Close the file, and with it its datasets."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RunFile(File):
    """A run file."""

    schema = schema.RUN


class HessianFile(File):
    """A Hessian file."""

    schema = schema.HESSIAN


class GeometryFile(File):
    """A geometry file."""

    schema = schema.GEOMETRY


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


def open_run(path: Path | str) -> xarray.Dataset:
    """A run's checkpoints, metrics, token statistics and data as one lazy Dataset of committed rows.

    Every row is first checked against its checksum, which reads the file once; rows that fail are left out.
    """
    return _view(RunFile(path))


def open_hessian(path: Path | str) -> xarray.Dataset:
    """All measurements of a Hessian file as one lazy Dataset of committed rows; NaN for unknown counts.

    Groups `spectrum`, `density` and `eigenvectors` hold the rest.
    """
    return _view(HessianFile(path))


def open_geometry(path: Path | str) -> xarray.Dataset:
    """All of a geometry file as one lazy Dataset of committed rows; NaN for unknown counts."""
    return _view(GeometryFile(path))


def load_group(path: Path, kind: str, group: str) -> xarray.Dataset:
    """The committed rows of one group, in memory; NaN for unknown counts. Empty where the file lacks the group."""
    with {file.schema: file for file in (RunFile, HessianFile, GeometryFile)}[kind](path) as file:
        return file.to_xarray(group).load() if group in file.groups else xarray.Dataset()


def _view(file: File) -> xarray.Dataset:
    """A dataset that closes its file."""
    data = file.to_xarray()
    data.set_close(file.close)
    return data


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


def _plot_run(file: File, ax: Axes | None) -> Axes:
    """Accuracies, or every metric of a run without them."""
    data = file.to_dataframe()
    names = [str(name) for name in data if name != "metric_step"]
    accuracies = [name for name in names if name.endswith("accuracy")]
    value = "accuracy" if accuracies else "value"
    long = data.rename(columns={"metric_step": "step"}).melt("step", accuracies or names, "metric", value)
    return curves(long.dropna(), ax, "step", value, by="metric")


def _plot_hessian(file: File, ax: Axes | None) -> Axes:
    """The saddle index of each block, with a band where only bounds are known."""
    data = file.to_dataframe()
    lower, upper = (data[f"inertia_{end}"].astype(float) for end in ("lower", "upper"))
    data = data.assign(saddle_index=(lower + upper) / 2, around=(upper - lower) / 2)
    return curves(data, ax, "step", "saddle_index", by="block", spread="around")


def _plot_geometry(file: File, ax: Axes | None) -> Axes:
    """The largest Fourier share, and how much of its plane is a circle."""
    long = file.to_dataframe().melt("step", ["top_frequency_share", "top_circle_r2"], "quantity", "share")
    return curves(long.dropna(), ax, "step", "share", by="quantity")


class _Column(BackendArray):
    """The committed rows of one dataset of a table, read on demand."""

    def __init__(self, table: TableReader, name: str) -> None:
        self.table, self.name = table, name
        self.shape = (len(table.rows), *table.stored[name].shape[1:])
        self.dtype = table.stored[name].dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple[int | slice, ...]) -> np.ndarray[Any, Any]:
        rows, *rest = key
        return self.table.column(self.name, rows)[(..., *rest)]


def _require_distinct(path: Path, tables: Sequence[schema.Table]) -> None:
    """Raise FileError for groups that cannot be merged, because they use one name for different things."""
    names = Counter(field.name for table in tables for field in table.fields)
    axes = {axis for table in tables for field in table.fields for axis in table.axes(field)}
    for name, count in names.items():
        if count > 1 or name in axes:
            raise FileError(
                f"{path} has {name} in several groups",
                f"name some of its groups: {', '.join(f'to_xarray({t.group!r})' for t in tables)}",
            )


def _table_of(file: File, group: str, name: str) -> pd.DataFrame:
    """One of the tables of `to_dataframes`. Raises FileError where the file lacks it."""
    if (found := tables([(group, file.to_xarray(group).load())]).get(name)) is None:
        raise FileError(f"{file.path} holds no {name}", "to_dataframes() has all of its tables")
    return found


def _table(file: Contents, table: TableReader) -> xarray.Dataset:
    columns = [(f, indexing.LazilyIndexedArray(_Column(table, f.name))) for f in table.table.fields]
    return _dataset(file, {table.table.row: list(table.rows)}, columns)


def _dataset(file: Contents, rows: dict[str, Any], columns: list[tuple[schema.Field, Any]]) -> xarray.Dataset:
    """A dataset of columns with their descriptions and coordinates."""
    variables = {f.name: ((*rows, *f.dims), values, f.description) for f, values in columns}
    scales = {dim: file.scales[dim] for f, _ in columns for dim in f.dims}
    labels = rows | {dim: np.arange(len(x)) if isinstance(x, range) else x for dim, x in scales.items()}
    coords = {dim: (dim, x, describe_axis(dim, isinstance(scales.get(dim), list))) for dim, x in labels.items()}
    return xarray.Dataset(variables, coords)
