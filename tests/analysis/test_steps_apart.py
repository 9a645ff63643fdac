"""Steps measured apart, as by jobs of Slurm: the merged file is that of one command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.sequences_analyses import everything

from landscape.analysis.hessian import analyse
from landscape.analysis.parts import folder_of, has_parts
from landscape.config import HessianConfig
from landscape.storage.hessians import HessianReader
from landscape.sweep import steps
from landscape.sweep.jobs import Job
from landscape.sweep.slurm import Submission


def settings(measured: str, *blocks: str) -> HessianConfig:
    return HessianConfig(steps=measured, blocks=blocks, device="cpu", k=3, eigenvectors=True)


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[list[Job]]:
    """What would be submitted, a list a batch."""
    found: list[list[Job]] = []

    def take(batches: list[list[Job]], *_: object) -> list[Submission]:
        found[:] = batches
        return []

    monkeypatch.setattr(steps, "submit", take)
    return found


@pytest.mark.slow
def test_the_merged_file_is_that_of_one_command(run_file: Path, tmp_path: Path, submitted: list[list[Job]]) -> None:
    """Bit for bit, tracking included; repeated, only what is missing is submitted; nothing but the file is left."""
    whole, out = tmp_path / "whole.h5", tmp_path / "out.h5"
    analyse(run_file, settings("0,20,40,60", "E,W", "all"), whole, quiet=True, jobs=1)
    wanted = settings("0,20,40,60", "E,W", "all")
    steps.submit_analysis(run_file, wanted, out)
    measuring, (merge,) = submitted
    assert len(measuring) == 4
    for job in (measuring[3], measuring[0]):
        job.execute()
    assert merge.waits_for() == measuring[1].outputs[0]
    steps.submit_analysis(run_file, wanted, out)
    assert [job.outputs for job in submitted[0]] == [job.outputs for job in measuring[1:3]]
    for job in submitted[0]:
        job.execute()
    assert merge.waits_for() is None
    merge.execute()
    assert everything(out) == everything(whole)
    assert np.isfinite(HessianReader(out).row(40)["subspace_overlap"]).all()
    assert not has_parts(out)
    submitted.clear()
    assert steps.submit_analysis(run_file, wanted, out) == []
    assert submitted == []
    assert not folder_of(out).exists()


@pytest.mark.slow
@pytest.mark.long
def test_a_file_grows_by_jobs(run_file: Path, tmp_path: Path, submitted: list[list[Job]]) -> None:
    """New steps are measured apart, new blocks of old steps by the job that merges; other settings have other parts."""
    whole, out = tmp_path / "whole.h5", tmp_path / "out.h5"
    analyse(run_file, settings("0,20,40", "E,W", "all"), whole, quiet=True, jobs=1)
    analyse(run_file, settings("0,40", "E,W"), out, quiet=True, jobs=1)
    steps.submit_analysis(run_file, settings("20", "E,W"), out)
    submitted[0][0].execute()
    steps.submit_analysis(run_file, settings("20", "all"), out)
    assert len(submitted[0]) == 1, "a part of other blocks is of no use"
    for job in (*submitted[0], *submitted[1]):
        job.execute()
    assert everything(out) == everything(whole)
