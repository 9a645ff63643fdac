"""A file's committed rows in a new file, trimmed or with room for more, put in its place at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py

from landscape.storage.schema import Field, Table
from landscape.storage.table import add_dataset, committed_rows, create_table, field_names, read_row, table_size
from landscape.storage.writing import Disk, TableWriter, create_hdf5, temporary_file

_OF_THE_LIBRARY = {"DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME", "_Netcdf4Dimid"}


def rewrite(path: Path, attrs: Mapping[str, Any], capacity: Mapping[str, int] | None = None) -> None:
    """Replace a file by one of its committed rows, with `attrs` set, and room for `capacity` rows by group.

    Structure and descriptions come from the file itself, so that a file of any version stays what it is. Rows that
    belong to a checkpoint (or to an analysed step) that was never committed are left out.
    """
    with h5py.File(path, "r", locking=False) as old:
        groups = table_groups(old)
        main = old["checkpoints" if "checkpoints" in old else "/"]
        kept = {int(main["step"][i]) for i in committed_rows(main, "step")}
        rows, room = {}, {}
        for name, row in groups.items():
            labels = old[name][row][()]
            rows[name] = [i for i in committed_rows(old[name], row) if row != "step" or int(labels[i]) in kept]
            room[name] = max(len(rows[name]), (capacity or {}).get(name, 0), 2 if row == "resume_slot" else 0)
        tables = {
            name: Table(name, row, tuple(_described(old[name][field]) for field in field_names(old[name])))
            for name, row in groups.items()
        }
        others = [g for name, g in old.items() if isinstance(g, h5py.Group) and name not in groups]
        size = sum(table_size(table, room[name], _scales(old[name])) for name, table in tables.items())
        with temporary_file(path, size) as temporary:
            with create_hdf5(temporary) as new:
                new.attrs.update({**old.attrs, **attrs})
                for name, table in tables.items():
                    create_table(new, table, room[name], _scales(old[name]))
                for group in others:
                    _copy(group, new.create_group(group.name))
            with Disk(temporary) as disk:
                with h5py.File(temporary, "r", locking=False) as new:
                    writers = {name: TableWriter(new[name], table.row, disk) for name, table in tables.items()}
                for name, writer in writers.items():
                    _copy_rows(old[name], tables[name].row, rows[name], writer)


def _copy_rows(source: h5py.Group, row: str, rows: list[int], writer: TableWriter) -> None:
    for to, index in enumerate(rows):
        values = read_row(source, row, index)
        assert values is not None
        # Resume slots keep their places: which one is older decides which is replaced.
        writer.write(index if row == "resume_slot" else to, int(source[row][index]), values)


def _copy(source: h5py.Group, target: h5py.Group) -> None:
    """The datasets of a group that is no table."""
    for data in source.values():
        if not data.is_scale:
            field = _described(data)
            dims = (data.dims[0][0].name.rsplit("/")[-1], *field.dims)
            add_dataset(target, field, dims, data.shape, _scales(source), "")[...] = data[()]


def table_groups(file: h5py.File) -> dict[str, str]:
    """The groups that are tables, with the name of their row axis."""
    names = ["/", *(name for name in file if isinstance(file.get(name), h5py.Group))]
    return {n: file[n]["crc32"].dims[0][0].name.rsplit("/")[-1] for n in names if "crc32" in file[n]}


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
