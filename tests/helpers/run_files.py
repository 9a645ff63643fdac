"""Run files compared, and spoilt."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from landscape.files.runs import RunReader


def contents(path: Path) -> dict[str, Any]:
    """Every committed number of a run file by name, and what says how it ended."""
    with RunReader(path) as reader:
        columns = {f"checkpoints/{n}": v for n, v in reader.tables["checkpoints"].columns().items()}
        for name, table in (("data", reader.data()), ("metrics", reader.metrics()), ("tokens", reader.tokens())):
            columns |= {f"{name}/{n}": v for n, v in table.items()}
        columns |= {f"resume/{n}": v for n, v in reader.resume_state().items()}
        return columns | {"config": reader.config, "status": reader.attrs["status"], "seed": reader.attrs["seed"]}


def same_run(left: Path, right: Path, tolerance: float) -> None:
    """Files that agree: counts, orders and random states exactly, floating numbers within a tolerance."""
    a, b = contents(left), contents(right)
    assert a.keys() == b.keys()
    for name, value in a.items():
        if np.asarray(value).dtype.kind == "f":
            np.testing.assert_allclose(value, b[name], rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            assert np.array_equal(value, b[name]), name


def poison(path: Path, step: int) -> None:
    """Make a checkpoint NaN under a record that fits, as a Recorder stores that of a run that has diverged."""
    put(path, step, W=np.nan)


def put(path: Path, step: int, **arrays: Any) -> None:
    """Change parameters at a step, and commit the row anew."""
    with h5py.File(path, "r+") as file:
        group = file["checkpoints"]
        row = list(group["step"][()]).index(step)
        for name, array in arrays.items():
            group[name][row] = array
        crc = zlib.crc32(np.int64(step).tobytes())
        for name in str(group["crc32"].attrs["fields"]).split():
            crc = zlib.crc32(group[name][row].tobytes(), crc)
        group["crc32"][row] = (1 << 32) + crc
