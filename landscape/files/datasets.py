"""An analysis file: xarray datasets by group, which are written whole and replaced at once."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray

from landscape.errors import FileError
from landscape.files.files import refuse_foreign, require_writable
from landscape.files.groups import add_dataset, add_scale, axes_of, described, values_of
from landscape.files.hdf5 import REMEASURE, attribute, new_hdf5, open_hdf5, root_attributes
from landscape.files.writing import temporary_file

_HEADER = 4096
"""More bytes than the name, axes and attributes of a dataset take in a file."""


def write_datasets(path: Path, kind: str, attrs: Mapping[str, Any], groups: Mapping[str, xarray.Dataset]) -> None:
    """Write an analysis file, or replace one: readers see the former file or this one, whatever is killed when.

    Values and types are stored as they are, so that counts with the attribute _FillValue = -1 are integers here.

    Args:
        path: the file; the caller holds its lock (`sole_writer`).
        kind: its schema, `schema.HESSIAN` or `schema.GEOMETRY`.
        attrs: root attributes, texts and integers; "status" and "config" among them.
        groups: datasets by group, "/" for the root; an axis without labels gets 0, 1, ….

    Raises:
        FileError: for a file there that is not of this kind or is protected, and where the disk is full or fails.
    """
    refuse_foreign(path, kind)
    require_writable(path)
    size = sum(data.nbytes + _HEADER * (1 + len(data.variables) + len(data.sizes)) for data in groups.values())
    others = [name for name in groups if name != "/"]
    with temporary_file(path, size) as temporary, new_hdf5(temporary, kind, attrs) as file:
        for name, data in groups.items():
            group = file if name == "/" else file.create_group(name)
            for axis, length in data.sizes.items():
                labels = data[axis].values if axis in data.variables else range(length)
                add_scale(group, str(axis), labels, data[axis].attrs)
            for variable, values in data.variables.items():
                if variable not in data.sizes:
                    dims = tuple(map(str, values.dims))
                    # Not ascontiguousarray, which gives a single number an axis.
                    add_dataset(group, str(variable), dims, np.asarray(values.values, order="C"), values.attrs)
            group.attrs["crc32"] = _checksum(data, others if name == "/" else ())


def read_datasets(path: Path, kind: str = "") -> tuple[dict[str, Any], dict[str, xarray.Dataset]]:
    """Read an analysis file whole, as it was written.

    Args:
        path: the file.
        kind: its schema; by default any.

    Returns:
        Its root attributes, and the datasets by group, in memory.

    Raises:
        FileError: for a file that is missing, damaged, foreign or of another version.
    """
    with open_hdf5(path, kind) as file:
        return root_attributes(path, file), {name: read_group(path, file, name) for name in group_names(file)}


def group_names(file: h5py.File) -> list[str]:
    """The groups of an analysis file, the root first."""
    return ["/", *(name for name, item in file.items() if isinstance(item, h5py.Group))]


def read_group(path: Path, file: h5py.File, name: str) -> xarray.Dataset:
    """One group of an open file, in memory. Raises FileError if it fails its checksum."""
    stored = {n: item for n, item in file[name].items() if isinstance(item, h5py.Dataset)}
    variables = {n: (axes_of(path, item), values_of(path, item), described(path, item)) for n, item in stored.items()}
    data = xarray.Dataset(variables)
    others = group_names(file)[1:] if name == "/" else ()
    if attribute(path, file[name], "crc32", int) != _checksum(data, others):
        raise FileError(f"{path}: {name} fails its checksum", REMEASURE)
    return data


def _checksum(data: xarray.Dataset, groups: Iterable[str]) -> int:
    """CRC-32 of the names and bytes of all variables and axes in alphabetical order; words are lines of UTF-8.

    It begins with the names of the other groups, for the root.
    """
    crc = zlib.crc32("\n".join(sorted(groups)).encode())
    for name in sorted({*map(str, data.variables), *map(str, data.sizes)}):
        values = data[name].values
        if values.dtype.kind in "OTU":
            raw: Any = "\n".join(map(str, values.ravel())).encode()
        else:
            raw = np.ascontiguousarray(values).data
        crc = zlib.crc32(raw, zlib.crc32(name.encode(), crc))
    return crc
