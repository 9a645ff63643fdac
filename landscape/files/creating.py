"""Create the groups, datasets and attributes of a new file.

They are made by HDF5's own calls: h5py's objects, which look up and check what is known here, take twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5ds, h5g, h5p, h5s, h5t

from landscape.files import schema
from landscape.files.table import Arrays, crc32_of_arrays

_TEXT = h5py.string_dtype()
_TEXTS = h5t.py_create(_TEXT, logical=True)
_LABELS, _ROWS = h5p.create(h5p.DATASET_CREATE), h5p.create(h5p.DATASET_CREATE)
for _how in (_LABELS, _ROWS):
    _how.set_obj_track_times(False)
    _how.set_layout(h5d.CONTIGUOUS)
_ROWS.set_alloc_time(h5d.ALLOC_TIME_EARLY)


def create_table(file: h5py.File, table: schema.Table, capacity: int, scales: schema.Scales) -> None:
    """Allocate a table of `capacity` rows; `scales` has the labels of every axis except rows."""
    group = _Group(file, table)
    group.add_scale(table.row, range(capacity) if table.newest else np.full(capacity, -1, "i8"))
    for field in table.fields:
        group.add_dataset(field, scales, (capacity,))
    record = group.add_dataset(schema.COMMIT, scales, (capacity,))
    add_attributes(record, {"fields": " ".join(f.name for f in table.fields)})


def create_arrays(file: h5py.File, table: schema.Table, arrays: Arrays, scales: schema.Scales) -> None:
    """Write a group of whole arrays and their checksum."""
    group = _Group(file, table)
    for field in table.fields:
        group.add_dataset(field, scales).write(h5s.ALL, h5s.ALL, np.ascontiguousarray(arrays[field.name]))
    add_attributes(group.id, {"crc32": crc32_of_arrays(arrays)})


def add_attributes(owner: Any, attrs: Mapping[str, Any]) -> None:
    """Give a new object its attributes: texts, numbers and lists of numbers."""
    for name, value in attrs.items():
        data = np.array(value, _TEXT if isinstance(value, str) else None)
        h5a.create(owner, name.encode(), _type(data), h5s.create_simple(data.shape)).write(data)


def describe_axis(name: str, is_text: bool) -> dict[str, object]:
    """The attributes of the labels of an axis."""
    return {"units": "1", "long_name": f"{name.replace('_', ' ')} {'name' if is_text else 'index'}"}


class _Group:
    """The group of a table, which is the root for some, and the scales in it by axis."""

    def __init__(self, file: h5py.File, table: schema.Table) -> None:
        self._table, self._scales = table, dict[str, Any]()
        self.id = file.id if table.group == "/" else h5g.create(file.id, table.group.encode())

    def add_dataset(self, field: schema.Field, scales: schema.Scales, rows: tuple[int, ...] = ()) -> Any:
        """One contiguous dataset, allocated at once, with units, description and a scale on each axis."""
        shape = (*rows, *(len(scales[dim]) for dim in field.dims))
        data = self._create(field.name, h5t.py_create(np.dtype(field.dtype)), shape, _ROWS)
        add_attributes(data, field.description)
        for axis, dim in enumerate(self._table.axes(field)):
            if dim not in self._scales:
                self.add_scale(dim, scales[dim])
            h5ds.attach_scale(data, self._scales[dim], axis)
        return data

    def add_scale(self, name: str, labels: np.ndarray[Any, Any] | range | list[str]) -> None:
        """The labels of one axis, as a dimension scale."""
        is_text = isinstance(labels, list)
        values = np.array(labels, _TEXT if is_text else "i8")
        scale = self._scales[name] = self._create(name, _type(values), values.shape, _LABELS)
        scale.write(h5s.ALL, h5s.ALL, values)
        add_attributes(scale, describe_axis(name, is_text))
        h5ds.set_scale(scale, name.encode())

    def _create(self, name: str, kind: Any, shape: tuple[int, ...], how: Any) -> Any:
        return h5d.create(self.id, name.encode(), kind, h5s.create_simple(shape), how)


def _type(values: np.ndarray[Any, Any]) -> Any:
    return _TEXTS if values.dtype.kind == "O" else h5t.py_create(values.dtype)
