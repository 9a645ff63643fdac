"""Counts that are not known, -1 in the files: masked, NaN or null wherever they are read. And what datasets say."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
import xarray
from helpers.hessians import analyse

import landscape
from landscape.cli import main as cli
from landscape.config import HessianConfig
from landscape.measure.fields import ROOT

MARKED = [f.name for f in ROOT.fields if "_FillValue" in f.attrs]


@pytest.fixture(scope="module")
def hessian(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An analysis with every count known somewhere and not known elsewhere, but for matrix-free inertias."""
    path = tmp_path_factory.mktemp("unknown") / "tiny.hessian.h5"
    blocks = ("E", "W", "V", "E,W")
    config = HessianConfig(blocks=blocks, certify=True, curve=True, k=2, steps="0,20,60", device="cpu")
    analyse(tiny_run, config, path, quiet=True)
    return path


def stored(path: Path, name: str) -> np.ndarray:
    with h5py.File(path) as file:
        return np.asarray(file[name][()])


def test_every_count_that_may_be_unknown_is_marked() -> None:
    """What the format says is -1 somewhere is what the attribute marks."""
    names = [f.name for f in ROOT.fields if "; missing (-1): " in f.long_name + f.formula]
    assert names == MARKED
    assert len(MARKED) == 14


@pytest.mark.parametrize("name", MARKED)
def test_no_sentinel_in_a_dataset(name: str, hessian: Path) -> None:
    """Datasets have NaN for it; means are those of the rest."""
    raw = stored(hessian, name)
    with landscape.open(hessian) as file:
        data = file.to_xarray()
        np.testing.assert_array_equal(data[name].values, np.where(raw == -1, np.nan, raw))
        if (raw != -1).any():
            assert float(data[name].mean()) == pytest.approx(raw[raw != -1].mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", MARKED)
def test_plain_readers_mask_it(name: str, hessian: Path) -> None:
    """xarray and the netCDF library see what is missing without this package."""
    raw = stored(hessian, name)
    for engine in ("h5netcdf", "netcdf4"):
        with xarray.open_dataset(hessian, engine=engine) as data:
            np.testing.assert_array_equal(data[name].values, np.where(raw == -1, np.nan, raw))
    with netCDF4.Dataset(hessian) as file:
        np.testing.assert_array_equal(np.ma.getmaskarray(file[name][:]), raw == -1)


@pytest.mark.slow
def test_json_has_null(tiny_run: Path, tmp_path: Path, hessian: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`hessian --json` and `info --json`: null for counts, and for the steps of events that never came."""
    out = tmp_path / "j.hessian.h5"
    assert cli.run(f"hessian {tiny_run} --out {out} --blocks E E,W --steps 0 --certify --quiet --json".split()) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = document["steps"]
    assert row["saddle_index_gauge_free"][0] is None
    assert row["saddle_index_gauge_free"][1] == stored(out, "saddle_index_gauge_free")[0, 1] >= 0
    assert row["crossings"] == [[None, None]] * 2
    assert row["coupling_index"][1:] == [None, None]
    assert cli.run(["info", "--json", str(out)]) == 0
    attributes = json.loads(capsys.readouterr().out)["attributes"]
    with h5py.File(out) as file:
        assert file.attrs["grok_step"] == -1
    assert document["attributes"]["grok_step"] is attributes["grok_step"] is None
    assert "grok_step" not in landscape.open(out).to_xarray().attrs


@pytest.mark.slow
def test_datasets_keep_their_descriptions(tiny_run: Path, hessian: Path, tmp_path: Path) -> None:
    """Units and meaning of every variable and axis, as in the file; written again, they are still there."""
    for path in (tiny_run, hessian):
        data = landscape.open(path).to_xarray()
        assert all({"units", "long_name"} <= variable.attrs.keys() for variable in data.variables.values())
        with h5py.File(path) as file:
            for name in ("E", "step", "token") if path == tiny_run else ("seconds", "coupling_ratios", "block"):
                group = file["checkpoints"] if path == tiny_run else file
                keys = {"units", "long_name", "formula"} & group[name].attrs.keys()
                assert {n: data[name].attrs[n] for n in keys} == {n: group[name].attrs[n] for n in keys}
        data.load().to_netcdf(tmp_path / "again.nc", engine="h5netcdf")
        with xarray.open_dataset(tmp_path / "again.nc", engine="h5netcdf", decode_timedelta=False) as again:
            assert again.identical(data)
    assert landscape.open(tiny_run).to_xarray()["split"].attrs["flag_meanings"] == "train test unused"
