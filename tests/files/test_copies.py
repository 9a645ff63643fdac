"""Copies that another program packed, and files without the newer checksums, serve the same numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import h5py
import pytest
from helpers.fuzz_reader import judge, serve
from helpers.hessians import analyse

import landscape
from landscape.config import HessianConfig
from landscape.files.contents import ATTRIBUTES
from landscape.files.hessians import HessianReader


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "hessian"])
@pytest.mark.parametrize(
    "flags", [["-f", "GZIP=9"], ["-f", "SHUF", "-f", "GZIP=1"], ["-l", "CHUNK=2"], ["-l", "COMPA"]]
)
def test_a_repacked_copy_is_served(kind: str, flags: list[str], files: dict[str, Path], tmp_path: Path) -> None:
    """gzip, shuffle, chunks and compact storage give the same numbers; the copies are made without our code."""
    copy = tmp_path / f"{kind}.h5"
    _repack(files[kind], copy, flags)
    original = serve(files[kind], {})
    assert judge(serve(copy, original), original) == "harmless"
    view = landscape.open_run if kind == "run" else landscape.open_hessian
    assert view(copy).load().identical(view(files[kind]).load())


@pytest.mark.slow
def test_a_repacked_unfinished_analysis_goes_on(files: dict[str, Path], tmp_path: Path) -> None:
    """The rest is not written over a packed file's bytes."""
    run = Path(shutil.copy(files["run"], tmp_path / "run.h5"))
    out, config = tmp_path / "run.hessian.h5", HessianConfig(blocks=("E", "W", "E,W"), k=3, device="cpu")
    unfinished = tmp_path / "unfinished.h5"
    shutil.copy(files["hessian"], unfinished)
    with h5py.File(unfinished, "r+") as file:
        file["crc32"][2] = 0
        file.attrs["status"] = "running"
    _repack(unfinished, out, ["-f", "GZIP=9"])
    assert HessianReader(out).steps == [0, 20]
    assert analyse(run, config, quiet=True).steps == [0, 20, 40]
    whole, found = HessianReader(files["hessian"]), HessianReader(out)
    assert found.row(0)["eigenvalues"].tobytes() == whole.row(0)["eigenvalues"].tobytes()
    assert found.row(40)["eigenvalues"].tobytes() == whole.row(40)["eigenvalues"].tobytes()


def _repack(source: Path, copy: Path, flags: list[str]) -> None:
    """As `h5repack`, whose flags these are."""
    layout: dict[str, Any] = {"compression": 9} if "GZIP=9" in flags else {}
    layout |= {"compression": 1, "shuffle": True} if "SHUF" in flags else {}
    with h5py.File(source) as old, h5py.File(copy, "w") as new:
        new.attrs.update(old.attrs)

        def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
            if isinstance(item, h5py.Group):
                new.create_group(name).attrs.update(item.attrs)
                return
            chunks = tuple(min(n, 2) for n in item.shape) if "CHUNK=2" in flags else bool(layout)
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            if "COMPA" in flags and item.nbytes < 60_000:
                plist.set_layout(h5py.h5d.COMPACT)
            more = {"chunks": chunks, **layout} if chunks and item.size else {"dcpl": plist}
            data = new.create_dataset(name, item.shape, item.dtype, **more)
            data[...] = item[...]
            if "fields" in item.attrs:
                data.attrs["fields"] = item.attrs["fields"]

        old.visititems(visit)


@pytest.mark.parametrize("kind", ["run", "hessian"])
def test_every_attribute_is_covered(kind: str, files: dict[str, Path]) -> None:
    """Readers serve all that writers write, and a checksum or a list of values stands over it."""
    with h5py.File(files[kind]) as file:
        assert set(file.attrs) == {*ATTRIBUTES[f"landscape.{kind}"], "status", "attrs_crc32"}
