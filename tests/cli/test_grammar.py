"""Pairs in either order, and the same command resumes what it began."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import pytest
from helpers.commands import SMALL, Refusal
from helpers.hessians import HessianReader

from landscape.cli import main as cli
from landscape.cli.main import COMMANDS
from landscape.config import TrainConfig
from landscape.models.blocks import in_order
from landscape.training.loop import is_begun, train


def test_a_pair_in_either_order() -> None:
    """It is the block that is known, or that was named first."""
    assert in_order(["W,E", "E", "E,W"], {"E", "W", "E,W"}) == ["E,W", "E"]
    assert in_order(["b,a", "a,b"], ()) == ["b,a"]
    assert in_order(["W,E"], {"W,E"}) == ["W,E"]


@pytest.mark.slow
def test_a_pair_in_the_other_order_is_measured_once(run_file: Path) -> None:
    """In one command, and in one that extends the file."""
    argv = ["hessian", str(run_file), "--steps", "0", "--quiet", "--blocks"]
    assert cli.run([*argv, "W,E"]) == 0
    path = run_file.with_name("run.hessian.h5")
    assert HessianReader(path).blocks == ["E,W"]
    before = path.read_bytes()
    assert cli.run([*argv, "W,E", "E,W"]) == 0
    assert path.read_bytes() == before


def test_the_same_command_is_told_from_another(tmp_path: Path, assert_refused: Refusal) -> None:
    """Another config, even one that --resume could continue to, is refused; files of others are, too."""
    config = TrainConfig(p=7, embed_dim=4, hidden=8, steps=2, batch_size=16)
    run, other = tmp_path / "run.h5", tmp_path / "other.h5"
    assert not is_begun({run: config})
    train(config, run, quiet=True)
    shutil.copy(run, other)
    assert is_begun({run: config})
    assert is_begun({run: config, tmp_path / "missing.h5": config})
    assert not is_begun({run: config, other: TrainConfig(p=7, embed_dim=4, hidden=8, steps=3, batch_size=16)})
    (tmp_path / "text.h5").write_text("notes")
    assert not is_begun({tmp_path / "text.h5": config})
    argv = ["train", "--out", run, *SMALL]
    assert_refused([*argv, "--steps", "3"], 1, f"{run} exists", "use --resume to resume it", [run])


def test_a_finished_run_is_not_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command says what it found, and changes nothing."""
    run = tmp_path / "run.h5"
    said = []
    for _ in range(2):
        assert cli.run(["train", "--out", str(run), *SMALL]) == 0
        said.append((capsys.readouterr().out, run.stat().st_mtime_ns))
    assert said[0] == said[1]


@pytest.mark.slow
@pytest.mark.long
def test_an_interrupted_run_is_resumed_by_the_same_command(tmp_path: Path) -> None:
    """After Ctrl-C, which says so: its file ends as that of a run that nobody stopped."""
    run, whole = tmp_path / "run.h5", tmp_path / "whole.h5"
    options = [*SMALL, "--steps", "4000", "--checkpoint-every", "500", "--stop-test-accuracy", "None"]
    command = [sys.executable, "-m", "landscape", "train", *options, "--out", str(run)]
    # A machine that is busy elsewhere may let the run end before it is told to.
    for _ in range(5):
        run.unlink(missing_ok=True)
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            while not run.exists():
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate()
        if process.returncode != 0:
            break
    assert process.returncode == 130
    assert err == b"interrupted: the same command resumes\n"
    assert cli.run(command[3:]) == 0
    assert cli.run(["train", *options, "--out", str(whole)]) == 0
    with h5py.File(run) as one, h5py.File(whole) as other:
        assert one.attrs["status"] == "complete"
        for name, column in other["checkpoints"].items():
            assert (one["checkpoints"][name][()] == column[()]).all()


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_says_what_is_left(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command, with exit code 130."""

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", stopped)
    assert cli.run([name]) == 130
    again = "starts again" if name in ("import", "slice", "geometry", "report") else "resumes"
    assert capsys.readouterr().err == f"interrupted: the same command {again}\n"


def test_ctrl_c_inside_hdf5_is_told_like_any_other(tmp_path: Path) -> None:
    """h5py logs each conversion of types that it prepares; what is raised there comes out as its TypeError."""
    source = """
import logging, sys
from landscape.cli import main

class Stop(logging.Handler):
    def emit(self, record):
        raise KeyboardInterrupt

logger = logging.getLogger("h5py._conv")
logger.addHandler(Stop())
logger.setLevel(logging.DEBUG)
logging.raiseExceptions = False
sys.exit(main.run(sys.argv[1:]))
"""
    command = [sys.executable, "-c", source, "train", *SMALL, "--out", str(tmp_path / "run.h5")]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted: the same command resumes\n")
    assert not list(tmp_path.glob("*.h5"))
