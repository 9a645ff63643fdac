"""A group of datasets with named axes in HDF5, as netCDF and xarray know it: each axis has a dimension scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from landscape.errors import FileError
from landscape.files.hdf5 import COPY_AGAIN, complaints

_OF_HDF5 = ("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates")
_LONGEST = 1 << 16
"""Most entries of an attribute that is read."""

_ROOM = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
_ROOM.set_layout(h5py.h5d.CONTIGUOUS)
_ROOM.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)


def add_scale(group: h5py.Group, name: str, labels: Any, attrs: Mapping[str, Any] | None = None) -> None:
    """The labels of an axis, numbers or words, as a dataset of its name."""
    is_text = not isinstance(labels, range) and np.asarray(labels).dtype.kind in "OTU"
    values = np.array(labels, h5py.string_dtype()) if is_text else np.asarray(labels)
    scale = group.create_dataset(name, data=values, dcpl=_ROOM)
    scale.make_scale(name)
    scale.attrs.update(attrs or describe_axis(name, scale.dtype.kind))


def add_dataset(
    group: h5py.Group, name: str, dims: tuple[str, ...], values: np.ndarray[Any, Any] | tuple[Any, str], attrs: Any
) -> h5py.Dataset:
    """A dataset along axes of this group; values: what it holds, or the shape and type of one to be filled."""
    if isinstance(values, tuple):
        shape, dtype = values
        data = group.create_dataset(name, shape, dtype, dcpl=_ROOM)
    else:
        is_text = values.dtype.kind in "OTU"
        data = group.create_dataset(name, data=np.array(values, h5py.string_dtype()) if is_text else values, dcpl=_ROOM)
    data.attrs.update(attrs)
    for axis, dim in enumerate(dims):
        data.dims[axis].attach_scale(group[dim])
    return data


def describe_axis(name: str, kind: str) -> dict[str, str]:
    """The attributes of the labels of an axis; kind: of their type, as NumPy has it."""
    what = {"i": "index", "f": "value"}.get(kind, "name")
    return {"units": "1", "long_name": f"{name.replace('_', ' ')} {what}"}


def axes_of(path: Path, data: h5py.Dataset) -> tuple[str, ...]:
    """The names of a dataset's axes. Raises FileError where one has none, or a scale of another length or place."""
    with complaints(path):
        if data.is_scale:
            return (data.name.rpartition("/")[2],)
        names = []
        for axis, length in enumerate(data.shape):
            scales = data.dims[axis]
            # A scale that has been removed has no name.
            name = (scales[0].name or "").rpartition("/")[2] if len(scales) == 1 else ""
            if name not in data.parent or data.parent[name].shape != (length,):
                raise FileError(f"{path}: axis {axis} of {data.name} has no labels", COPY_AGAIN)
            names.append(name)
        return tuple(names)


def described(path: Path, data: h5py.Dataset) -> dict[str, Any]:
    """The texts and numbers among a dataset's attributes."""
    attrs: dict[str, Any] = {}
    with complaints(path):
        for name in data.attrs:
            kind = data.attrs.get_id(name)
            if name in _OF_HDF5 or kind.shape is None or math.prod(kind.shape) > _LONGEST:
                continue
            if h5py.check_string_dtype(kind.dtype) is not None or kind.dtype.kind in "iuf":
                value = data.attrs[name]
                attrs[name] = value.decode() if isinstance(value, bytes) else value
    return attrs


def values_of(path: Path, data: h5py.Dataset) -> np.ndarray[Any, Any]:
    """All of a dataset; words as text."""
    with complaints(path):
        is_text = h5py.check_string_dtype(data.dtype) is not None
        return np.asarray(data.asstr()[()]).astype(str) if is_text else np.asarray(data[()])
