"""Checkpoints measured in several processes: the same file, whatever their number, also when it grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.apart import SERVER
from helpers.hessians import HessianReader, analyse
from helpers.sequences_analyses import everything

from landscape import models
from landscape.config import HessianConfig
from landscape.errors import LandscapeError
from landscape.files.runs import RunReader
from landscape.measure.measurement import Measurement
from landscape.measure.parallel import processes


def settings(steps: str, *blocks: str) -> HessianConfig:
    return HessianConfig(steps=steps, blocks=blocks, device="cpu", k=3, vectors=True)


@pytest.mark.slow
def test_the_file_is_the_same_for_any_number_of_processes(tiny_run: Path, tmp_path: Path) -> None:
    """Bit for bit, tracking and rows measured later between others included."""
    together, grown = tmp_path / "together.h5", tmp_path / "grown.h5"
    analyse(tiny_run, settings("0,20,40,60", "E,W"), together, quiet=True, jobs=0)
    analyse(tiny_run, settings("0,40", "E,W"), grown, quiet=True, jobs=1)
    analyse(tiny_run, settings("0,20,60", "E,W"), grown, quiet=True, jobs=2)
    assert everything(grown) == everything(together)
    assert np.isfinite(HessianReader(grown).row(40)["subspace_overlap"]).all()


@pytest.mark.slow
def test_an_error_in_a_process_is_the_users(run_file: Path, tmp_path: Path) -> None:
    """With its message and hint, and without the traceback of another process."""
    out = tmp_path / "out.h5"
    config = HessianConfig(steps="0,20", blocks=("E",), device="cpu", rel_tau=1e-17)
    with pytest.raises(LandscapeError, match="below the error of the computed Hessian") as refused:
        analyse(run_file, config, out, quiet=True, jobs=2)
    assert "use tau >=" in refused.value.hint
    assert not out.exists()


def refusal(run: Path, out: Path) -> tuple[str, str]:
    """What an analysis by two processes ends in."""
    try:
        analyse(run, settings("0,20", "E"), out, quiet=True, jobs=2)
    except LandscapeError as error:
        return str(error), error.hint
    return "", ""


def steps_of(run: Path, out: Path) -> list[int]:
    return analyse(run, settings("0,20", "E"), out, quiet=True).steps


@pytest.mark.slow
def test_a_daemonic_process_is_told_so(run_file: Path, tmp_path: Path) -> None:
    """A worker of a pool, which Python lets start no process; without any the analysis goes on there."""
    with SERVER.Pool(1) as pool:
        error, hint = pool.apply(refusal, (run_file, tmp_path / "out.h5"))
        assert "may not start others" in error
        assert hint.startswith("give jobs=0")
        assert pool.apply(steps_of, (run_file, tmp_path / "out.h5")) == [0, 20]


def test_only_large_dense_blocks_are_worth_a_process(tiny_run: Path) -> None:
    """One per core and task; none for matrix-free blocks, which start from the checkpoint before."""

    def count(jobs: int | None, **options: object) -> int:
        with RunReader(tiny_run) as reader:
            config = HessianConfig(blocks=("E", "all"), device="cpu", **options)  # type: ignore[arg-type]
            return processes(Measurement.of(models.opened(reader, config)[0], config), 4, jobs)

    assert (count(None), count(0), count(3), count(9)) == (0, 0, 3, 4)
    assert count(3, method="lanczos") == 0
