"""Analysis files written whole from datasets and read whole, in the present layout of rows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray

from landscape.files import schema
from landscape.files.disk import Disk, TableWriter
from landscape.files.files import open_file, refuse_foreign, require_writable
from landscape.files.making import new_file
from landscape.files.table import TableReader

_RESUME = "resume"


def write_datasets(path: Path, kind: str, attrs: Mapping[str, Any], groups: Mapping[str, xarray.Dataset]) -> None:
    """Write an analysis file, or replace one, at once."""
    refuse_foreign(path, kind)
    require_writable(path)
    tables = {name: _table(name, data) for name, data in groups.items()}
    scales: dict[str, Any] = {}
    for data in groups.values():
        for axis, n in data.sizes.items():
            labels = data[axis].values if axis in data.coords else np.arange(n)
            scales[str(axis)] = list(map(str, labels)) if labels.dtype.kind in "UO" else range(n)
    rooms = [(t, 0 if not t.row else 2 if t.newest else max(1, groups[n].sizes["step"])) for n, t in tables.items()]
    arrays = {n: {str(v): groups[n][v].values for v in groups[n].data_vars} for n, t in tables.items() if not t.row}
    attrs = {name: value for name, value in attrs.items() if name not in ("schema", "schema_version", "attrs_crc32")}
    with new_file(path, kind, attrs, rooms, scales, arrays) as (temporary, made), Disk(temporary) as disk:
        for name in sorted(groups, key="/".__eq__):
            if not tables[name].row:
                continue
            data, writer = groups[name], TableWriter(made.tables[name], disk)
            if tables[name].newest:
                writer.write(0, 0, {str(v): data[v].values for v in data.data_vars})
                continue
            for i, step in enumerate(data["step"].values):
                writer.append(int(step), {str(v): data[v].values[i] for v in data.data_vars})


def read_datasets(path: Path, kind: str = "") -> tuple[dict[str, Any], dict[str, xarray.Dataset]]:
    """Read an analysis file whole."""
    with contextlib.closing(open_file(path, kind)) as file:
        groups = {name: _read(file.scales, table) for name, table in file.tables.items()}
        return dict(file.attrs), groups


def _read(scales: schema.Scales, table: TableReader) -> xarray.Dataset:
    if table.table.newest:
        row = table.newest() or {}
        return xarray.Dataset({f.name: (f.dims, row[f.name], f.description) for f in table.table.fields if row})
    variables = {
        f.name: (table.table.axes(f), table.column(f.name, slice(None)), f.description) for f in table.table.fields
    }
    dims = {d for f in table.table.fields for d in f.dims}
    coords = {d: np.array(scales[d], str) for d in dims if isinstance(scales[d], list)}
    return xarray.Dataset(variables, {"step": np.array(list(table.rows), np.int64), **coords})


def _table(name: str, data: xarray.Dataset) -> schema.Table:
    row = "resume_slot" if name == _RESUME else "step" if "step" in data.dims else ""
    fields = []
    for variable, values in data.data_vars.items():
        attrs = {n: v for n, v in values.attrs.items() if n not in ("units", "long_name", "formula")}
        attrs = {n: v.tolist() if isinstance(v, np.ndarray | np.generic) else v for n, v in attrs.items()}
        dims = tuple(str(d) for d in values.dims if d != row)
        dtype = values.dtype.str[1:]
        fields.append(
            schema.Field(
                str(variable),
                dims,
                dtype,
                values.attrs["long_name"],
                values.attrs["units"],
                values.attrs.get("formula", ""),
                attrs,
            )
        )
    return schema.Table(name, row, tuple(fields), "iterations" if name == _RESUME else "")
