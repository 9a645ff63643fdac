"""Labels, units and scales, by which other programs read the numbers, are as good as the numbers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from helpers.recording import small

from landscape import Recorder, open_hessian, open_run
from landscape.cli import main as cli
from landscape.errors import FileError
from landscape.files.hessians import HessianReader


def swapped(file: Any, name: str) -> None:
    labels = file[name][()]
    file[name][...] = labels[::-1]


def elsewhere(file: Any) -> None:
    file["eigenvalues"].dims[1].detach_scale(file["block"])
    file["eigenvalues"].dims[1].attach_scale(file["other_block"])


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "blocks": (lambda f: swapped(f, "block"), "labels of block"),
    "ends": (lambda f: swapped(f, "end"), "labels of end"),
    "meanings": (
        lambda f: f["inertia_level"].attrs.__setitem__("flag_meanings", "certified bracketed estimated none"),
        "attribute flag_meanings of inertia_level",
    ),
    "values": (
        lambda f: f["inertia_level"].attrs.__setitem__("flag_values", [3, 2, 1, 0]),
        "attribute flag_values of inertia_level",
    ),
    "mark": (lambda f: f["previous_step"].attrs.__setitem__("_FillValue", 5), "attribute _FillValue of previous_step"),
    "units": (lambda f: f["eigenvalues"].attrs.__setitem__("units", "eV"), "attribute units of eigenvalues"),
    "meanings of another kind": (
        lambda f: f["inertia_level"].attrs.__setitem__("flag_values", "0123"),
        "attribute flag_values of inertia_level",
    ),
    "name": (lambda f: f["grad_norm"].attrs.__setitem__("long_name", "\x1b[2Jx"), "attribute long_name of grad_norm"),
    "attached to another": (elsewhere, "axis 1 of eigenvalues has other labels"),
    "two scales": (
        lambda f: f["eigenvalues"].dims[1].attach_scale(f["other_block"]),
        "axis 1 of eigenvalues has other labels",
    ),
}


@pytest.mark.parametrize(("change", "words"), CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_label(
    change: Callable[[Any], Any],
    words: str,
    tiny_hessian: HessianReader,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`check`, `info` and readers name it; xarray would show another block's number."""
    path = tmp_path / "run.hessian.h5"
    shutil.copy(tiny_hessian.path, path)
    with h5py.File(path, "r+") as file:
        change(file)
    for command in ("check", "info"):
        assert cli.run([command, str(path)]) == 1
        said = capsys.readouterr().err
        assert words in said
        assert "as its layout says" in said or "is not what its layout says" in said or "are not what" in said
    with pytest.raises(FileError, match=words):
        open_hessian(path)


def test_a_buffer_on_another_axis(tmp_path: Path) -> None:
    """Of a run file, too."""
    path, model = tmp_path / "run.h5", small()
    model[0].register_buffer("square", model[0].weight.detach().clone()[:2])
    with Recorder(path, model) as recorder:
        recorder.checkpoint(0)
    open_run(path).close()
    with h5py.File(path, "r+") as file:
        axis = file["buffers/0.square"].dims[1]
        axis.detach_scale(file["buffers/0.square.0"])
        axis.attach_scale(file["buffers/0.square.1"])
    with pytest.raises(FileError, match="axis 1 of buffers/0.square has other labels than 0.square.0"):
        open_run(path)
