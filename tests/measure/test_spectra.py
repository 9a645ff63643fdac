"""Dense blocks of which only the ends and the index are computed, against all of their eigenvalues."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY
from helpers.hessians import HessianReader, analyse

from landscape import config
from landscape.cli import main as cli
from landscape.config import HessianConfig
from landscape.errors import FileError
from landscape.measure.checkpoint import Checkpoint
from landscape.training.loop import train

BLOCKS = ("E", "W", "V", "E,W", "W,V", "E,V", "all")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ends(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> HessianReader:
    """The analysis of the first and the last checkpoint of `tiny_run` without full spectra."""
    out = tmp_path_factory.mktemp("ends") / "ends.h5"
    config = HessianConfig(blocks=BLOCKS, steps="0,60", k=10, spectra="ends", certify=True, device="cpu")
    return analyse(tiny_run, config, out, quiet=True)


@pytest.mark.long
def test_ends_and_indices_are_those_of_full_spectra(ends: HessianReader, tiny_hessian: HessianReader) -> None:
    """Eigenvalues within their residuals and `hidden`, every index certified, with and without gauge, pairs, traces."""
    assert ends.steps == [0, 60]
    for step in ends.steps:
        row, full = ends.row(step), tiny_hessian.row(step)
        assert not ends.spectra(step)
        norm = full["operator_norm"]
        np.testing.assert_allclose(row["operator_norm"], norm, rtol=1e-6)
        assert (row["converged"] == full["converged"]).all()
        reach = row["residual_norm"].max((1, 2)) + row["hidden"].max(1) + 1e-12 * norm
        assert (np.abs(row["eigenvalues"] - full["eigenvalues"]).max((1, 2)) <= reach).all()
        assert row["inertia"][:, 0].tolist() == full["inertia"][:, 0].tolist()
        for name in ("inertia_lower", "inertia_upper", "inertia_level", "saddle_index_gauge_free", "coupling_index"):
            assert row[name].tolist() == full[name].tolist(), name
        np.testing.assert_allclose(row["coupling_ratios"], full["coupling_ratios"], rtol=1e-6, equal_nan=True)
        np.testing.assert_allclose(row["trace"], full["trace"], rtol=1e-12)
        assert not row["trace_error"].any()


def test_indices_without_coupling_ratios_come_from_a_factorisation(
    tiny_run: Path, tmp_path: Path, ends: HessianReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level stays, and so does the count."""
    monkeypatch.setattr(Checkpoint, "coupling", lambda *_: None)
    config = HessianConfig(blocks=BLOCKS, spectra="ends", certify=True, steps="60", device="cpu")
    row, before = analyse(tiny_run, config, tmp_path / "ends.h5", quiet=True).row(60), ends.row(60)
    assert (before["coupling_index"] > 0).any()
    assert (row["coupling_index"] == -1).all()
    for name in ("inertia", "inertia_level", "saddle_index_gauge_free"):
        assert row[name].tolist() == before[name].tolist(), name


def test_auto_follows_an_existing_file(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New steps hold what the others do; another choice is refused."""
    monkeypatch.setattr(config, "FULL_LIMIT", 1)
    out, ends = tmp_path / "out.h5", HessianConfig(blocks=("E",), steps="60", spectra="ends", device="cpu")
    analyse(tiny_run, ends, out, quiet=True)
    auto = dataclasses.replace(ends, spectra="auto", steps="0,60")
    assert not analyse(tiny_run, auto, out, quiet=True).spectra(0)
    words = r"out\.h5: it was made with spectra ends, not full"
    with pytest.raises(FileError, match=words):
        analyse(tiny_run, dataclasses.replace(auto, spectra="full"), out, quiet=True)


def test_eigenvectors_of_a_block_with_fewer_parameters_than_k(tmp_path: Path) -> None:
    """As of their eigenvalues, ranks that the block has not are NaN."""
    run = tmp_path / "small.h5"
    train(dataclasses.replace(TINY, embed_dim=1, hidden=1, steps=2), run, quiet=True)
    config = HessianConfig(blocks=("E", "W", "E,W"), k=10, vectors=True, steps="0,2", device="cpu")
    reader = analyse(run, config, quiet=True)
    for step in reader.steps:
        rows = reader.rows(step)
        for block, values in zip(reader.blocks, rows["/"]["eigenvalues"], strict=True):
            vectors = rows["eigenvectors"][block]
            n = vectors.shape[-1]
            assert vectors.shape == (2, 10, n)
            np.testing.assert_array_equal(np.isnan(vectors).any(2), np.isnan(values))
            np.testing.assert_allclose(np.linalg.norm(vectors[:, : min(n, 10)], axis=2), 1)


def test_full_spectra_take_a_matrix(tiny_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A method that forms none is refused beside them."""
    assert cli.run(["hessian", str(tiny_run), "--spectra", "full", "--method", "lanczos"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: spectra is full, but method lanczos forms no matrix",
        "hint: use --method dense, or leave out --spectra",
    ]
