"""Steps measured apart, as by jobs of Slurm: the merged file is that of one command."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import foreign
from helpers.sequences_analyses import everything

from landscape.config import HessianConfig, TrainConfig
from landscape.errors import LandscapeError
from landscape.files.hessians import HessianReader
from landscape.files.writing import draft_of
from landscape.jobs import steps
from landscape.jobs.jobs import Job
from landscape.jobs.slurm import Submission
from landscape.measure.hessian import analyse
from landscape.measure.parts import folder_of, has_parts
from landscape.training.loop import train


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


@pytest.mark.parametrize("left", [b"", bytes(64), b"PK\3\4 and more"])
def test_a_killed_job_of_the_same_number(
    left: bytes, run_file: Path, tmp_path: Path, submitted: list[list[Job]]
) -> None:
    """Its half of a part does not stop the job that measures the step again, in a process of the same number."""
    steps.submit_analysis(run_file, settings("20", "E"), tmp_path / "out.h5")
    (job,), _ = submitted
    (part,) = job.outputs
    part.parent.mkdir()
    draft_of(part).write_bytes(left)
    job.execute()
    assert list(part.parent.iterdir()) == [part]


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


def trained(path: Path, seed: int) -> Path:
    """A run in the place of any other."""
    config = TrainConfig(p=7, embed_dim=4, hidden=8, steps=20, checkpoint_log=0, seed=seed)
    train(config, path, overwrite=True, quiet=True)
    return path


@pytest.mark.slow
def test_another_run_at_the_same_path_is_refused(tmp_path: Path, submitted: list[list[Job]]) -> None:
    """A process that opens the run after another took its place measures nothing; so for another checkpoint."""
    run, out = trained(tmp_path / "run.h5", 0), tmp_path / "out.h5"
    former = shutil.copy(run, tmp_path / "former.h5")
    steps.submit_analysis(run, settings("0,20", "E"), out)
    first, last = submitted[0]
    trained(run, 1)
    with pytest.raises(
        LandscapeError, match="run.h5 was replaced during the analysis: it is of run .* is run"
    ) as wrong:
        first.execute()
    assert wrong.value.hint.startswith("put the former run back")
    shutil.copy(former, run)
    assert isinstance(last, steps.Step)
    origin = dataclasses.replace(last.task.origin, record=last.task.origin.record + 1)
    with pytest.raises(LandscapeError, match="step 20 was measured at another checkpoint than"):
        dataclasses.replace(last, task=dataclasses.replace(last.task, origin=origin)).execute()
    assert not has_parts(out)


@pytest.mark.slow
def test_each_run_at_a_path_has_its_own_numbers(tmp_path: Path, submitted: list[list[Job]]) -> None:
    """In one process, where a second run takes the place of the first: by the job of a step, and by the merge."""
    run, out, whole = (tmp_path / name for name in ("run.h5", "out.h5", "whole.h5"))
    for seed in (0, 1):
        trained(run, seed)
        steps.submit_analysis(run, settings("0,20", "E"), out, overwrite=True)
        submitted[0][0].execute()
        submitted[1][0].execute()
        whole.unlink(missing_ok=True)
        analyse(run, settings("0,20", "E"), whole, quiet=True)
        assert everything(out) == everything(whole)


@pytest.mark.slow
def test_a_problem_that_was_changed_is_refused(users_run: Path, submitted: list[list[Job]]) -> None:
    """By the job of a step; the merge leaves out what was measured with a former source."""
    out, source = users_run.with_name("out.h5"), Path("mine.py").resolve()
    config = dataclasses.replace(settings("0,9", "last"), problem=f"{source}:problem")
    steps.submit_analysis(users_run, config, out)
    source.write_text(foreign.TINY.replace("manual_seed(1)", "manual_seed(12)"))
    with pytest.raises(LandscapeError, match="the source of --problem .* was changed during the analysis"):
        submitted[0][0].execute()
    source.write_text(foreign.TINY)
    submitted[0][0].execute()
    source.write_text(foreign.TINY.replace("manual_seed(1)", "manual_seed(12)"))
    submitted[1][0].execute()
    whole = users_run.with_name("whole.h5")
    analyse(users_run, config, whole, quiet=True)
    assert everything(out) == everything(whole)
