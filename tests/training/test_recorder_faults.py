"""A recording that is killed at any instant, or whose disk is full, loses nothing that was acknowledged."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.apart import MEMORY, Kill, Killed, stopping
from helpers.recording import move, small, states
from helpers.refusals import warned
from torch import nn

from landscape import Recorder
from landscape.files.runs import RunReader
from landscape.files.writing import is_written


def deaths(folder: Path) -> Iterator[tuple[set[int], set[int], Path]]:
    """A recording killed at every seventeenth of its changes of files: what was acknowledged, and what it left."""
    for at, share in zip(range(1, 350, 17), itertools.cycle((0.0, 0.5, 1.0)), strict=False):
        work, left = folder / f"work{at}", folder / f"left{at}"
        work.mkdir()
        stored: tuple[set[int], set[int]] = (set(), set())

        def stop(work: Path = work, left: Path = left) -> None:
            shutil.copytree(work, left)
            raise Killed

        with contextlib.suppress(Killed), stopping(Kill(at=at, share=share), stop):
            record(work / "run.h5", *stored)
        shutil.rmtree(work)
        # The removal of what was not there was no change.
        if left.exists():
            yield *stored, left / "run.h5"
            shutil.rmtree(left)


def record(path: Path, checkpoints: set[int], metrics: set[int]) -> None:
    """Six checkpoints and metrics in a file that grows, resumed in between."""
    model = small()
    for steps in (range(3), range(3, 6)):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("landscape.training.recorder._LEAST", 1)
            patched.setattr("landscape.training.recorder._BYTES", 1)
            patched.setattr("landscape.training.recorder._METRICS", 1)
            with Recorder(path, model, resume=True) as recorder:
                for step in steps:
                    move(model, step)
                    recorder.checkpoint(step)
                    checkpoints.add(step)
                    recorder.metrics(step, loss=step)
                    metrics.add(step)


@pytest.mark.long
def test_a_kill_at_any_change_of_a_file_loses_nothing() -> None:
    """Whatever was acknowledged is served bit for bit, nothing torn is; a resumed recorder ends the work."""
    count = 0
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        for checkpoints, metrics, path in deaths(Path(folder)):
            count += 1
            assert not checkpoints or path.exists()
            if path.exists():
                stored = states(path)
                assert checkpoints <= stored.keys()
                for step, row in stored.items():
                    assert [float(v.flat[0]) for v in row.values()] == [step + i / 8 for i in range(4)]
                with RunReader(path) as reader:
                    served = reader.metrics()
                assert metrics <= set(served["metric_step"])
                assert not len(served["metric_step"]) or np.array_equal(served["loss"], served["metric_step"])
            record(path, set(), set())
            assert sorted(states(path)) == list(range(6))
            assert [p.name for p in path.parent.iterdir()] == ["run.h5"]
    assert count > 10


@pytest.mark.parametrize("status", ["complete", "interrupted"])
def test_a_file_that_took_the_place_of_a_recording_stays_as_it_is(status: str, tmp_path: Path) -> None:
    """Whatever is called afterwards, and however often; the recording is whole where it was moved."""
    path, other, moved = tmp_path / "run.h5", tmp_path / "other.h5", tmp_path / "moved.h5"
    with Recorder(other, nn.Linear(3, 3)) as stranger:
        stranger.checkpoint(7)
    theirs = other.read_bytes()
    recorder = Recorder(path, small())
    recorder.checkpoint(0)
    path.rename(moved)
    other.rename(path)
    # The first row of metrics that were not declared makes the file anew, as does the end.
    measure, close = partial(recorder.metrics, 0, loss=1.0), partial(recorder.close, status)
    warned(measure, "run.h5 was moved, deleted or replaced while it was being written", "in the moved file")
    for call in (measure, close, close):
        assert not call()
        assert path.read_bytes() == theirs
    assert states(moved).keys() == {0}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["moved.h5", "run.h5"]


def test_a_change_of_the_working_folder_leads_to_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live recording of the same relative name keeps every bit and its lock, while this one grows and ends."""
    here, there = tmp_path / "here/run.h5", tmp_path / "there/run.h5"
    here.parent.mkdir()
    with Recorder(there, nn.Linear(3, 3)) as other:
        other.checkpoint(7)
        theirs = there.read_bytes()
        monkeypatch.chdir(here.parent)
        with Recorder("run.h5", small()) as recorder:
            recorder.checkpoint(0)
            os.chdir(there.parent)
            recorder.metrics(0, loss=1.0)
            recorder.checkpoint(1)
        assert there.read_bytes() == theirs
        assert is_written(there)
        assert [p.name for p in here.parent.iterdir()] == ["run.h5"]
        assert states(here).keys() == {0, 1}
        other.checkpoint(8)
    assert states(there).keys() == {7, 8}


def test_a_full_disk(tmp_path: Path) -> None:
    """Growth that the disk refuses is a warning, once; what was stored stays, and more comes once there is room."""
    model, path = nn.Linear(10, 10), tmp_path / "run.h5"
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Recorder(path, model) as recorder:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            with pytest.warns(UserWarning, match="run.h5 lacks checkpoint 256: .*said once") as said:
                stored = [recorder.checkpoint(step) for step in range(300)]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            signal.signal(signal.SIGXFSZ, handler)
        assert len(said) == 1
        assert stored == [True] * 256 + [False] * 44
        assert states(path).keys() == set(range(256))
        assert recorder.checkpoint(300)
    assert states(path).keys() == {*range(256), 300}
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
