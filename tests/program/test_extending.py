"""What CONTRIBUTING.md says of adding things: one file each, tried in a copy of the package, from the command line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
QUANTITY = '''"""The Frobenius norm of a dense block."""

from __future__ import annotations

from landscape.analysis.quantities.quantity import Column, Quantity
from landscape.storage.schema import Field


def compute(at, block):
    return {"frobenius_norm": float(at.matrix(block).matrix.norm())}


FIELDS = (Field("frobenius_norm", ("block",), "f8", "Frobenius norm of the block", since="2.0"),)
FROBENIUS = Quantity(FIELDS, compute, columns=(Column("|H|_F", lambda row: f"{row['frobenius_norm']:.6g}"),), place=15)
'''
FIGURE = '''"""The trace of each block over steps."""

from __future__ import annotations

import pandas as pd

from landscape.report.figures.families import family
from landscape.report.figures.sources import Drawn, having
from landscape.report.style import new_figure


@family(15)
def traces(sources):
    kept = having(sources, "measured", "trace")
    figure = new_figure(1)
    data = kept[0].measured["trace"].to_dataframe().reset_index()
    for block, part in data.groupby("block"):
        figure.axes[0].plot(part["step"], part["trace"], label=block)
    return Drawn("Traces", figure, pd.DataFrame(data), "The trace of each block.", {})
'''


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package that has two files more."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "landscape", folder / "landscape")
    (folder / "landscape/analysis/quantities/frobenius.py").write_text(QUANTITY)
    (folder / "landscape/report/figures/traces.py").write_text(FIGURE)
    options = ["--p", "5", "--tokens", "2", "--embed-dim", "2", "--hidden", "4", "--batch-size", "8"]
    landscape(folder, "train", "--steps", "20", "--train-fraction", "0.6", *options, "--out", "run.h5", "--quiet")
    return folder


def landscape(folder: Path, *argv: str) -> str:
    """The output of a command of the package in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "landscape", *argv], cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": "."}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_quantity_and_a_figure_are_one_file_each(copy: Path) -> None:
    """The file, its reader, both tables and the report have them; a file that was made before still opens."""
    said = landscape(copy, "hessian", "--ckpt", "run.h5", "--steps", "0,20", "--blocks", "E", "E,W", "--quiet")
    titles, first = (line.split("  ") for line in said.splitlines()[:2])
    assert "|H|_F" in map(str.strip, titles)
    with h5py.File(copy / "run.hessian.h5") as file:
        found, spectra = file["frobenius_norm"], [file["spectrum"][block][0] for block in ("E", "E,W")]
        assert (found.attrs["long_name"], found.dims[1][0].name) == ("Frobenius norm of the block", "/block")
        np.testing.assert_allclose(found[0], [np.linalg.norm(values) for values in spectra], rtol=1e-12)
        assert f"{found[0, 0]:.6g}" in map(str.strip, first)
    landscape(copy, "report", "run.h5", "--out", "report", "--quiet")
    page = (copy / "report/report.md").read_text()
    assert "## Traces" in page
    assert r"\|H\|\_F" in page or r"\|H\|_F" in page
    assert (copy / "report/figures/traces.png").stat().st_size > 1000


@pytest.mark.slow
def test_older_files_lack_the_quantity_and_open(copy: Path) -> None:
    """A file of the package without it is reported on and grown by the one with it, which says what is missing."""
    chosen = ["--ckpt", str(copy / "run.h5"), "--out", str(copy / "old.h5"), "--quiet", "--blocks", "E"]
    landscape(ROOT, "hessian", *chosen, "--steps", "0")
    assert "lacks     frobenius_norm: younger than" in landscape(copy, "info", "old.h5")
    landscape(copy, "report", "old.h5", "--out", "old", "--quiet")
    (row,) = (line for line in (copy / "old/report.md").read_text().splitlines() if line.startswith("| 0 | E |"))
    assert "| - |" in row
    landscape(copy, "hessian", *chosen, "E,W", "--steps", "0,20")
    with h5py.File(copy / "old.h5") as file:
        assert np.isnan(file["frobenius_norm"][()]).tolist() == [[True, False], [False, False]]
