"""Files as xarray datasets, read lazily."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from xarray.backends import BackendArray
from xarray.core import indexing

from landscape.errors import FileError
from landscape.storage import schema
from landscape.storage.contents import Contents, known_attributes
from landscape.storage.creating import describe_axis
from landscape.storage.files import as_path, open_file
from landscape.storage.table import TableReader


def open_run(path: Path | str) -> xarray.Dataset:
    """A run's checkpoints, metrics, token statistics and data as one lazy Dataset of committed rows.

    Every row is first checked against its checksum, which reads the file once; rows that fail are left out.
    """
    return _open(as_path(path), schema.RUN)


def open_hessian(path: Path | str) -> xarray.Dataset:
    """All measurements of a Hessian file as one lazy Dataset of committed rows; NaN for unknown counts.

    Groups `spectrum`, `density` and `eigenvectors` hold the rest.
    """
    return _open(as_path(path), schema.HESSIAN, ("/",))


def load_group(path: Path, kind: str, group: str) -> xarray.Dataset:
    """The committed rows of one group, in memory; NaN for unknown counts."""
    with _open(path, kind, (group,)) as lazy:
        return lazy.load()


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


def _open(path: Path, kind: str, groups: Collection[str] = ()) -> xarray.Dataset:
    """Some groups of a file as one dataset; by default all except slots."""
    file = open_file(path, kind)
    tables = [t for g, t in file.tables.items() if (g in groups if groups else not t.table.newest)]
    arrays = [a for g, a in file.arrays.items() if not groups or g in groups]
    _require_distinct(path, [*(t.table for t in tables), *(a.table for a in arrays)])
    parts = [_table(file, table) for table in tables]
    for group in arrays:
        values = group.read()
        parts.append(_dataset(file, {}, [(f, values[f.name]) for f in group.table.fields]))
    merged = xarray.merge(parts, join="inner", combine_attrs="override")
    # Mask unknown counts, also in files of versions without the mark.
    merged = xarray.decode_cf(merged, decode_times=False, decode_coords=False, decode_timedelta=False)
    # Attributes of a Dataset cannot be None.
    merged.attrs = {n: value for n, value in known_attributes(file.attrs).items() if value is not None}
    merged.set_close(file.close)
    return merged


def _require_distinct(path: Path, tables: Sequence[schema.Table]) -> None:
    """Raise FileError for groups that cannot be merged, because they use one name for different things."""
    names = Counter(field.name for table in tables for field in table.fields)
    axes = {axis for table in tables for field in table.fields for axis in table.axes(field)}
    for name, count in names.items():
        if count > 1 or name in axes:
            raise FileError(f"{path} has {name} in several groups", "read its groups one by one: see docs/format.md")


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
