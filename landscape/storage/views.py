"""Files as xarray datasets, read lazily."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray
from xarray.backends import BackendArray
from xarray.core import indexing

from landscape.storage import schema
from landscape.storage.contents import Contents, known_attributes
from landscape.storage.files import as_path, open_file
from landscape.storage.table import TableReader, describe_axis


def open_run(path: Path | str) -> xarray.Dataset:
    """A run's checkpoints, metrics, token statistics and data as one lazy Dataset of committed rows.

    Every row is compared with its checksum first, which reads the file once; one that fails is left out.
    """
    return _open(as_path(path), schema.RUN, ("checkpoints", "metrics", "tokens", "moments", "data"))


def open_hessian(path: Path | str) -> xarray.Dataset:
    """All measurements of a Hessian file as one lazy Dataset of committed rows; NaN where a count is not known.

    Groups `spectrum`, `density` and `eigenvectors` hold the rest.
    """
    return _open(as_path(path), schema.HESSIAN, ("/",))


def load_group(path: Path, kind: str, group: str) -> xarray.Dataset:
    """The committed rows of one group, in memory; NaN where a count is not known."""
    with _open(path, kind, (group,)) as lazy:
        return lazy.load()


class _Column(BackendArray):
    """The committed rows of one dataset of a table, read when they are asked for."""

    def __init__(self, table: TableReader, name: str) -> None:
        self.table, self.name = table, name
        self.shape = (len(table.rows), *table.stored[name].shape[1:])
        self.dtype = table.stored[name].dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple[int | slice, ...]) -> np.ndarray[Any, Any]:
        rows, *rest = key
        return self.table.column(self.name, rows)[(..., *rest)]


def _open(path: Path, kind: str, groups: tuple[str, ...]) -> xarray.Dataset:
    file = open_file(path, kind)
    parts = [_table(file, file.tables[group]) for group in groups if group in file.tables]
    if "data" in groups:
        samples = file.samples()
        parts.append(_dataset(file, {}, [(f, samples[f.name]) for f in schema.DATA]))
    merged = xarray.merge(parts, join="inner", combine_attrs="override")
    # Files of older versions do not mark what is missing; the schema does.
    merged = xarray.decode_cf(merged, decode_times=False, decode_coords=False, decode_timedelta=False)
    # An attribute of a Dataset cannot be None.
    merged.attrs = {n: value for n, value in known_attributes(file.attrs).items() if value is not None}
    merged.set_close(file.close)
    return merged


def _table(file: Contents, table: TableReader) -> xarray.Dataset:
    columns = [(f, indexing.LazilyIndexedArray(_Column(table, f.name))) for f in table.table.fields]
    return _dataset(file, {table.table.row: list(table.rows)}, columns)


def _dataset(file: Contents, rows: dict[str, Any], columns: list[tuple[schema.Field, Any]]) -> xarray.Dataset:
    """The columns with their descriptions and the labels of their axes."""
    variables = {f.name: ((*rows, *f.dims), values, f.description) for f, values in columns}
    lengths = {d: n for f, values in columns for d, n in zip(f.dims, values.shape[len(rows) :], strict=True)}
    labels = rows | {d: file.scales.get(d, np.arange(n)) for d, n in lengths.items()}
    coords = {d: (d, x, describe_axis(d, len(x) > 0 and isinstance(x[0], str))) for d, x in labels.items()}
    return xarray.Dataset(variables, coords)
