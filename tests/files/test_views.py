"""`landscape.open`: each group of a file under its name."""

from __future__ import annotations

import pickle
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.hessians import HessianReader

import landscape
from landscape.errors import FileError, StepError
from landscape.files.runs import RunReader


def test_every_group_is_public(tiny_run: Path, tiny_hessian: HessianReader) -> None:
    """Groups are datasets by name; one that the file lacks is refused with the names of those that it has."""
    for path, kind in ((tiny_run, "run"), (tiny_hessian.path, "hessian")):
        with landscape.open(path) as file:
            assert file.kind == kind
            assert {*file.datasets} == {*file.groups} - {"resume"}
            assert all(data.data_vars for data in file.datasets.values())
            with pytest.raises(FileError, match="holds no nothing") as caught:
                file.to_xarray("nothing")
            assert file.groups[0] in caught.value.hint


def test_groups_are_those_of_the_readers(tiny_run: Path, tiny_hessian: HessianReader) -> None:
    """Each with its axes and labels."""
    with landscape.open(tiny_run) as file, RunReader(tiny_run) as run:
        np.testing.assert_array_equal(file.checkpoints["E"].sel(step=60), run.checkpoint(60)["E"])
        np.testing.assert_array_equal(file.metrics["test_loss"], run.metrics()["test_loss"])
        np.testing.assert_array_equal(file.datasets["data"]["split"], run.data()["split"])
        assert file.config == run.config
    with landscape.open(tiny_hessian.path) as file:
        lowest = file.datasets["/"]["eigenvalues"].sel(step=20, block="E,W", end="lowest")
        np.testing.assert_array_equal(lowest, tiny_hessian.row(20)["eigenvalues"][file.blocks.index("E,W"), 0])
        np.testing.assert_array_equal(file.datasets["spectrum"]["all"].sel(step=60), tiny_hessian.spectra(60)["all"])
        assert (file.blocks, file.pairs) == (tiny_hessian.blocks, tiny_hessian.pairs)


@pytest.mark.parametrize("kind", [landscape.open, RunReader])
def test_a_closed_file_is_not_called_damaged(kind: Callable[[Path], Any], tiny_run: Path) -> None:
    """Datasets that were not read before and the file's own groups name the mend."""
    file = kind(tiny_run)
    lazy = file if kind is RunReader else file.checkpoints
    file.close()
    with pytest.raises(FileError, match=r"tiny\.h5 was closed by close\(\)") as caught:
        lazy.checkpoint(60) if kind is RunReader else lazy["E"].load()
    assert "open it again" in caught.value.hint


def test_short_forms(tiny_run: Path, tmp_path: Path) -> None:
    """Files and their readers say what they hold; a name is text in HTML."""
    path = Path(shutil.copy(tiny_run, tmp_path / "<b>&.h5"))
    with landscape.open(path) as file, RunReader(path) as run:
        for shown in (file, run):
            assert f"path {path}" in " ".join(repr(shown).split())
            assert str(path) in [cell.text for cell in ET.fromstring(shown._repr_html_()).iter("td")]
        assert "E (step, token, embed)" in repr(file)


@pytest.mark.parametrize("step", [55, -1, "0"])
def test_a_step_that_is_not_there_is_named(step: Any, tiny_run: Path) -> None:
    """Whatever is asked for of it, with the nearest steps of the file."""
    with RunReader(tiny_run) as run:
        for read in (run.checkpoint, run.record, run.tokens_at, run.second_moments):
            with pytest.raises(StepError, match=rf"tiny\.h5 holds no .*step {step!r}\n") as refused:
                read(step)
            assert refused.value.hint == f"the nearest stored steps: {'56, 60' if step == 55 else '0, 1'}"


def test_a_relative_path_stays_with_its_file(tiny_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When the working folder has changed, a pickled file opens the same one."""
    monkeypatch.chdir(tiny_run.parent)
    with landscape.open(tiny_run.name) as file:
        monkeypatch.chdir(tmp_path)
        with pickle.loads(pickle.dumps(file)) as again:
            assert again.attrs == file.attrs
