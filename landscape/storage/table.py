"""Tables in HDF5: preallocated contiguous datasets, committed row by row.

All space is allocated when the file is made, so that no metadata changes afterwards; a row counts once its
commit record, written last, matches its bytes. A process killed at any instant leaves a file that opens, with
every committed row whole.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from landscape.storage import schema

WRITTEN = 1 << 32
Scales = Mapping[str, "np.ndarray[Any, Any] | list[str]"]


def create_table(
    parent: h5py.Group, table: schema.Table, capacity: int, scales: Scales, param_dtype: str = "f8"
) -> None:
    """Allocate a table of `capacity` rows; `scales` gives the labels of every axis but the rows."""
    group = parent.require_group(table.group)
    is_label = table.row != "resume_slot"
    labels = np.full(capacity, -1, "i8") if is_label else np.arange(capacity)
    add_scale(group, table.row, labels)
    for field in table.fields:
        shape = (capacity, *(len(scales[d]) for d in field.dims))
        add_dataset(group, field, (table.row, *field.dims), shape, scales, param_dtype)
    add_dataset(group, schema.COMMIT, (table.row,), (capacity,), scales, param_dtype)
    group["crc32"].attrs["fields"] = " ".join(f.name for f in table.fields)


def table_size(table: schema.Table, capacity: int, scales: Scales, param_dtype: str = "f8") -> int:
    """Bytes of the rows of a table."""
    row = 16
    for field in table.fields:
        dtype = np.dtype(param_dtype if field.dtype == schema.PARAM else field.dtype)
        row += dtype.itemsize * math.prod(len(scales[d]) for d in field.dims)
    return row * capacity


def add_dataset(
    group: h5py.Group,
    field: schema.Field,
    dims: tuple[str, ...],
    shape: tuple[int, ...],
    scales: Scales,
    param_dtype: str,
) -> h5py.Dataset:
    """One contiguous dataset, allocated at once, with units, description and a scale on each axis."""
    dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    dcpl.set_layout(h5py.h5d.CONTIGUOUS)
    dcpl.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    dtype = param_dtype if field.dtype == schema.PARAM else field.dtype
    data = group.create_dataset(field.name, shape, dtype, dcpl=dcpl, track_times=False)
    data.attrs.update({"units": field.units, "long_name": field.long_name, **field.attrs})
    if field.formula:
        data.attrs["formula"] = field.formula
    for axis, dim in enumerate(dims):
        if dim not in group:
            add_scale(group, dim, scales[dim])
        data.dims[axis].attach_scale(group[dim])
    return data


def add_scale(group: h5py.Group, name: str, labels: np.ndarray[Any, Any] | list[str]) -> None:
    """The labels of one axis, as a dimension scale."""
    is_text = isinstance(labels, list)
    scale = group.create_dataset(name, data=labels, dtype=h5py.string_dtype() if is_text else None, track_times=False)
    scale.attrs.update({"units": "1", "long_name": f"{name.replace('_', ' ')} {'name' if is_text else 'index'}"})
    scale.make_scale(name)


def read_row(group: h5py.Group, row: str, index: int) -> dict[str, Any] | None:
    """Row `index` if its commit record matches its bytes, else None."""
    values = {name: group[name][index] for name in field_names(group)}
    record = np.int64(group[row][index]).tobytes() + b"".join(np.asarray(v).tobytes() for v in values.values())
    return values if int(group["crc32"][index]) == WRITTEN + zlib.crc32(record) else None


def written_rows(group: h5py.Group) -> list[int]:
    """Indices of the rows that have a whole commit record, whether or not it matches."""
    return [int(i) for i in np.flatnonzero(group["crc32"][()] >> 32 == WRITTEN >> 32)]


def committed_rows(group: h5py.Group, row: str) -> list[int]:
    """Indices of the rows whose commit record matches."""
    return [i for i in written_rows(group) if read_row(group, row, i) is not None]


def field_names(group: h5py.Group) -> list[str]:
    """The committed datasets of a table in the order of the checksum."""
    return str(group["crc32"].attrs["fields"]).split()
