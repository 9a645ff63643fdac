"""Two sweeps of one folder at once: neither does what the other does, and both end with the same files."""

from __future__ import annotations

import os
import platform
import random
import signal
import time
from pathlib import Path

import pytest
from filelock import SoftFileLease
from helpers.run_files import same_run
from helpers.sweeps import LONG, SHORT, arguments, files, in_training, start, wait_for

from landscape.cli import main as cli
from landscape.files.inspect import inspect
from landscape.jobs import work
from landscape.jobs.plan import SweepConfig, sweep_runs
from landscape.jobs.status import status

SHAPES = {"train": SHORT, "cases": {f"h{hidden}": {"hidden": hidden} for hidden in range(4, 16)}}
"""12 runs of a shape each."""


@pytest.mark.long
def test_two_at_once(whole: Path, tmp_path: Path) -> None:
    """Both succeed, every run has one writer, and nothing is left beside the files."""
    two = [start(tmp_path, LONG) for _ in range(2)]
    ended = [process.communicate() for process in two]
    assert [process.returncode for process in two] == [0, 0], ended
    assert ended[0][0] == ended[1][0]
    assert files(tmp_path).keys() == files(whole).keys()
    for mine, theirs in zip(*(sweep_runs(SweepConfig(**LONG), folder) for folder in (tmp_path, whole)), strict=True):
        same_run(mine.path, theirs.path, 1e-6)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_moments(seed: int, whole: Path, tmp_path: Path) -> None:
    """Two sweeps, each killed at any time; then the same command ends with the files of an undisturbed one."""
    draw = random.Random(seed)
    for _ in range(3):
        two = [start(tmp_path, LONG) for _ in range(2)]
        time.sleep(draw.uniform(2, 12))
        for process in draw.sample(two, draw.randint(1, 2)):
            process.send_signal(draw.choice([signal.SIGKILL, signal.SIGINT]))
        for process in two:
            if draw.random() < 0.5:
                process.kill()
            process.communicate()
    assert cli.run(arguments(tmp_path, LONG)) == 0
    assert {name for name in files(tmp_path) if not name.endswith(".lock")} == files(whole).keys()
    for mine, theirs in zip(*(sweep_runs(SweepConfig(**LONG), folder) for folder in (tmp_path, whole)), strict=True):
        same_run(mine.path, theirs.path, 1e-6)
        assert all(inspect(path).finished for path in mine.files)


def test_what_another_sweep_works_on_is_waited_for(tmp_path: Path) -> None:
    """All else is done first; --status says that it is running, and --overwrite refuses."""
    sweep = {**SHAPES, "seeds": [0]}
    runs = sweep_runs(SweepConfig(**sweep), tmp_path)
    (tmp_path / "sweep").mkdir()
    with work.claimed(runs[0].path):
        process = start(tmp_path, sweep)
        wait_for(lambda: all(run.path.exists() and inspect(run.path).finished for run in runs[1:]))
        states = [file.state for file in status(SweepConfig(**sweep), tmp_path).files]
        assert states == ["running"] + ["done"] * 11
        assert not runs[0].path.exists()
        assert process.poll() is None
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert inspect(runs[0].path).finished


def test_overwrite_spares_what_is_being_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No file of the sweep is removed while another process works on one of them."""
    argv = [*arguments(tmp_path, {"train": SHORT, "seeds": [0, 1]})[:-2], "--executor", "debug"]
    assert cli.run(argv) == 0
    before = files(tmp_path)
    with work.claimed(tmp_path / "sweep/base-s1.h5"):
        assert cli.run([*argv, "--overwrite"]) == 1
    assert f"base-s1.h5 is being written by another sweep ({os.getpid()})" in capsys.readouterr().err
    assert files(tmp_path) == before


def test_a_node_that_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claim ends once it has given no sign of life for as long as is agreed on; then the run is resumed."""
    monkeypatch.setattr(work, "EXPIRY", 1.0)
    (run,) = sweep_runs(SweepConfig(train=SHORT), tmp_path)
    (tmp_path / "sweep").mkdir()
    claim = run.path.with_name(f".{run.path.name}.claim")
    with SoftFileLease(claim, lease_duration=1.0):
        text = claim.read_text()
    claim.write_text(text.replace(platform.node(), "node7"))
    assert "node7" in claim.read_text()
    assert cli.run([*arguments(tmp_path, {"train": SHORT})[:-2], "--executor", "debug"]) == 0
    assert inspect(run.path).finished
    assert not claim.exists()


@pytest.mark.long
def test_ctrl_c_of_one_leaves_the_other(tmp_path: Path) -> None:
    """What it had begun is resumed by the one that goes on."""
    sweep = {"train": {**SHORT, "steps": 3000, "checkpoint_every": 20}, "cases": {"a": {}, "b": {"hidden": 9}}}
    runs = sweep_runs(SweepConfig(**sweep), tmp_path)
    one = start(tmp_path, sweep)
    wait_for(lambda: all(map(in_training, runs)))
    other = start(tmp_path, sweep)
    wait_for(lambda: bool(other.poll() is None and (tmp_path / "sweep/sweep.json").exists()))
    os.killpg(one.pid, signal.SIGINT)
    one.communicate()
    out, err = other.communicate()
    assert other.returncode == 0, err
    assert all(inspect(run.path).finished for run in runs)
