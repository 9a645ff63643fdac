"""Files as xarray datasets, read lazily."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from landscape.storage import schema
from landscape.storage.files import open_file
from landscape.storage.table import WRITTEN

if TYPE_CHECKING:
    import xarray


def open_run(path: Path | str) -> xarray.Dataset:
    """A run's checkpoints, metrics, token statistics and data as one lazy Dataset of committed rows."""
    return _open(Path(path), schema.RUN, ("checkpoints", "metrics", "tokens", "moments", "data"))


def open_hessian(path: Path | str) -> xarray.Dataset:
    """All measurements of a Hessian file as one lazy Dataset of committed rows.

    Groups `spectrum`, `density` and `eigenvectors` hold the rest.
    """
    return _open(Path(path), schema.HESSIAN, ("/",))


def _open(path: Path, kind: str, groups: tuple[str, ...]) -> xarray.Dataset:
    import xarray

    with open_file(path, kind) as file:
        present = [group for group in groups if group in file]
    parts = []
    for group in present:
        part = xarray.open_dataset(path, group=group, engine="h5netcdf")
        if "crc32" in part:
            (row,) = part["crc32"].dims
            part = part.isel({row: part["crc32"].values >> 32 == WRITTEN >> 32}).drop_vars("crc32")
        parts.append(part)
    merged = xarray.merge(parts, join="inner", combine_attrs="drop")
    merged.attrs = xarray.open_dataset(path, engine="h5netcdf").attrs
    return merged
