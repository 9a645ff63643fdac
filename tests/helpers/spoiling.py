"""Changes to files whose records and checksums still fit."""

from __future__ import annotations

import json
import zlib
from typing import Any

import h5py
import numpy as np
from helpers.fuzz_reader import seal


def commit(group: h5py.Group, row: str, index: int, label: int, values: dict[str, Any]) -> None:
    """Write a row into a file that is open for changes, with a record that fits."""
    crc = zlib.crc32(np.int64(label).tobytes())
    for name in str(group["crc32"].attrs["fields"]).split():
        group[name][index] = values[name]
        crc = zlib.crc32(np.asarray(group[name][index]).tobytes(), crc)
    group[row][index], group["crc32"][index] = label, (1 << 32) + crc


def put(file: h5py.File, name: str, shape: tuple[int, ...] = (), dtype: Any = None, **more: Any) -> h5py.Dataset:
    """Replace a dataset by another, by default of the same shape and type."""
    old = file[name]
    shape, dtype = shape or old.shape, dtype or old.dtype
    del file[name]
    return file.create_dataset(name, shape, dtype, **more)


def link(file: h5py.File, name: str, target: Any) -> None:
    """Replace an object by a link."""
    del file[name]
    file[name] = target


def configure(file: h5py.File, text: str = "", of: str = "config", **changes: Any) -> None:
    """Change the config; the checksum of the attributes fits."""
    file.attrs[of] = text or json.dumps({**json.loads(file.attrs[of]), **changes})
    seal(file)
