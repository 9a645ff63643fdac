"""A file's committed rows in a new file, trimmed or with room for more, put in its place at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from landscape.storage.schema import Field, Table
from landscape.storage.table import TableWriter, add_dataset, committed_rows, create_table, field_names, read_row
from landscape.storage.writing import temporary_file

_OF_THE_LIBRARY = {"DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME", "_Netcdf4Dimid"}


def rewrite(path: Path, attrs: Mapping[str, Any], capacity: Mapping[str, int] | None = None) -> None:
    """Replace a file by one of its committed rows, with `attrs` set, and room for `capacity` rows by group.

    Structure and descriptions come from the file itself, so that a file of any version stays what it is. Rows that
    belong to a checkpoint (or to an analysed step) that was never committed are left out.
    """
    with h5py.File(path, "r", locking=False) as old, temporary_file(path) as new:
        new.attrs.update({**old.attrs, **attrs})
        main = "checkpoints" if "checkpoints" in old else "/"
        kept = _labels(old[main], committed_rows(old[main], "step"))
        for name, row in table_groups(old).items():
            group = old[name]
            rows = committed_rows(group, row)
            if row == "step":
                rows = [i for i in rows if int(group[row][i]) in kept]
            room = max(len(rows), (capacity or {}).get(name, 0), 2 if row == "resume_slot" else 0)
            _copy_table(
                group, new, Table(name, row, tuple(map(_described, map(group.get, field_names(group))))), rows, room
            )
        for name, group in old.items():
            if isinstance(group, h5py.Group) and name not in table_groups(old):
                target = new.create_group(name)
                for data in group.values():
                    if not data.is_scale:
                        field = _described(data)
                        dims = (data.dims[0][0].name.rsplit("/")[-1], *field.dims)
                        add_dataset(target, field, dims, data.shape, _scales(group), "")[...] = data[()]


def table_groups(file: h5py.File) -> dict[str, str]:
    """The groups that are tables, with the name of their row axis."""
    names = ["/", *(name for name in file if isinstance(file.get(name), h5py.Group))]
    return {n: file[n]["crc32"].dims[0][0].name.rsplit("/")[-1] for n in names if "crc32" in file[n]}


def _copy_table(source: h5py.Group, new: h5py.File, table: Table, rows: list[int], room: int) -> None:
    create_table(new, table, room, _scales(source))
    writer = TableWriter(new[table.group], table.row, lambda: None)
    for index in rows:
        values = read_row(source, table.row, index)
        assert values is not None
        # Resume slots keep their places: which one is older decides which is replaced.
        at = index if table.row == "resume_slot" else writer.size
        writer.write(at, int(source[table.row][index]), values)
        writer.size += 1


def _labels(group: h5py.Group, rows: list[int]) -> set[int]:
    return set(np.asarray(group["step"][()])[rows].tolist())


def _scales(group: h5py.Group) -> dict[str, Any]:
    """The labels of every axis of a group."""
    found: dict[str, Any] = {}
    for name, data in group.items():
        if isinstance(data, h5py.Dataset) and data.is_scale:
            is_text = h5py.check_string_dtype(data.dtype)
            found[name] = [x.decode() for x in data[()]] if is_text else data[()]
    return found


def _described(data: h5py.Dataset) -> Field:
    """What the schema said of a dataset when it was made, its first axis left out."""
    attrs = {k: v for k, v in data.attrs.items() if k not in _OF_THE_LIBRARY}
    return Field(
        data.name.rsplit("/")[-1],
        tuple(data.dims[axis][0].name.rsplit("/")[-1] for axis in range(1, data.ndim)),
        data.dtype.str,
        str(attrs.pop("long_name")),
        str(attrs.pop("units")),
        str(attrs.pop("formula", "")),
        attrs,
    )
