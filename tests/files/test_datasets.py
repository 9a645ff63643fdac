"""Analysis files: datasets are read back as they were written, replaced whole, and never served damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray

from landscape.errors import FileError
from landscape.files import schema
from landscape.files.datasets import read_datasets, write_datasets

ATTRS = {"status": "complete", "config": '{"k": 3}', "seed": 3}


def groups(number: float = 1.0) -> dict[str, xarray.Dataset]:
    """Every type that analyses store, with labels and without."""
    codes = {"flag_values": [0, 1], "flag_meanings": "none certified"}
    root = xarray.Dataset(
        {
            "inertia": (("step", "block"), np.array([[3, -1], [4, 5]]), {"_FillValue": -1, "units": "1"}),
            "level": (("step", "block"), np.ones((2, 2), "i1"), codes),
            "loss": ("step", np.array([number, np.nan]), {"units": "nat"}),
            "empty": (("step", "none"), np.empty((2, 0)), {}),
        },
        {"step": [0, 20], "block": ["E", "E,W"], "none": np.arange(0)},
    )
    own = xarray.Dataset({"E,W": (("step", "row"), np.full((2, 4), number, "f4"))}, {"step": [0, 20], "row": range(4)})
    return {"/": root, "spectrum": own}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Values, types, labels, axes and attributes, in every group; again after they were replaced."""
    path = tmp_path / "a.hessian.h5"
    for number in (1.0, 2.0):
        write_datasets(path, schema.HESSIAN, ATTRS, groups(number))
        attrs, datasets = read_datasets(path, schema.HESSIAN)
        assert attrs == {**ATTRS, "schema": schema.HESSIAN, "schema_version": schema.VERSION}
        assert list(datasets) == ["/", "spectrum"]
        for name, expected in groups(number).items():
            xarray.testing.assert_identical(datasets[name].drop_attrs(), expected.drop_attrs())
            assert {n: v.dtype for n, v in datasets[name].items()} == {n: v.dtype for n, v in expected.items()}
        assert datasets["/"]["inertia"].attrs == {"_FillValue": -1, "units": "1"}
    assert [p.name for p in tmp_path.iterdir()] == ["a.hessian.h5"]


def test_xarray_opens_it(tmp_path: Path) -> None:
    """Without our code: named axes, masked counts."""
    path = tmp_path / "a.hessian.h5"
    write_datasets(path, schema.HESSIAN, ATTRS, groups())
    with xarray.open_dataset(path, engine="h5netcdf") as data:
        assert dict(data.sizes) == {"step": 2, "block": 2, "none": 0}
        assert float(data["inertia"].sel(step=20, block="E")) == 4
        assert bool(data["inertia"].isnull().sel(step=0, block="E,W"))


def test_a_changed_byte_is_refused(tmp_path: Path) -> None:
    """In values, labels and attributes; the other groups do not help a damaged one."""
    for change in (
        lambda file: file["spectrum/E,W"].__setitem__((0, 0), 7),
        lambda file: file["block"].__setitem__(0, "V"),
        lambda file: file.attrs.__setitem__("config", '{"k": 4}'),
        lambda file: file.attrs.__delitem__("seed"),
        lambda file: file["loss"].dims[0].detach_scale(file["step"]),
    ):
        path = tmp_path / "a.hessian.h5"
        path.unlink(missing_ok=True)
        write_datasets(path, schema.HESSIAN, ATTRS, groups())
        with h5py.File(path, "r+") as file:
            change(file)
        with pytest.raises(FileError, match="checksum|no labels"):
            read_datasets(path)


@pytest.mark.parametrize("content", [b"notes", b""])
def test_nothing_of_others_is_replaced(content: bytes, tmp_path: Path) -> None:
    """A text, an empty file, a run and a link stay as they are."""
    path = tmp_path / "a.hessian.h5"
    path.write_bytes(content)
    with pytest.raises(FileError, match="nothing else is overwritten"):
        write_datasets(path, schema.HESSIAN, ATTRS, groups())
    assert path.read_bytes() == content
    other = tmp_path / "b.geometry.h5"
    write_datasets(other, schema.GEOMETRY, ATTRS, groups())
    with pytest.raises(FileError, match="not a Hessian file"):
        write_datasets(other, schema.HESSIAN, ATTRS, groups())
    assert {p.name for p in tmp_path.iterdir()} == {"a.hessian.h5", "b.geometry.h5"}


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from files.test_datasets import ATTRS, groups
from landscape.files.datasets import write_datasets
for number in range(1, 10**6):
    write_datasets(Path(sys.argv[1]), "landscape.hessian", ATTRS, groups(float(number)))
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_kill_leaves_one_of_two_files(tmp_path: Path) -> None:
    """After SIGKILL at random instants the file is the last acknowledged one, or the one after it."""
    path = tmp_path / "a.hessian.h5"
    rng = np.random.default_rng(0)
    for _ in range(5):
        command = [sys.executable, "-c", WRITER, str(path), str(Path(__file__).parents[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            process.stdout.readline()
            time.sleep(rng.uniform(0, 0.2))
            os.kill(process.pid, signal.SIGKILL)
            lines = process.stdout.read().split()
        last = int(lines[-1]) if lines else 1
        number = float(read_datasets(path)[1]["/"]["loss"][0])
        assert number in (last, last + 1)
