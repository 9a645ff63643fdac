"""One grammar: lists with spaces or commas, files anywhere, pairs in either order, and the same command resumes."""

from __future__ import annotations

import dataclasses
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
from landscape.cli.declared import Command
from landscape.cli.grammar import parse, plain
from landscape.cli.main import COMMANDS
from landscape.config import HessianConfig, TrainConfig
from landscape.errors import ConfigError
from landscape.models.choice import in_order
from landscape.options import field
from landscape.training.loop import is_begun, train


@dataclasses.dataclass(frozen=True)
class Norms(Command):
    """A command that somebody adds."""

    order: int = field(2, "Order of the norms.", at_least=1)

    def execute(self) -> int:
        return self.order


def test_a_command_checks_its_bounds() -> None:
    """Those of its own options, without any code for it."""
    assert parse("norms", Norms, ["--order", "3"]).execute() == 3
    with pytest.raises(ConfigError, match="order is 0") as refused:
        parse("norms", Norms, ["--order", "0"])
    assert refused.value.hint == "--order takes an integer >= 1"


@pytest.mark.parametrize("typed", [["0", "100", "2000"], ["0,100,2000"], ["0,", "100,2000"]])
def test_lists_take_spaces_or_commas(typed: list[str]) -> None:
    """A text of several values, numbers, and words alike."""
    assert plain(COMMANDS["hessian"], ["--steps", *typed]) == ["--steps", "0,100,2000"]
    assert plain(COMMANDS["train"], ["--checkpoint-at", *typed, "--json"]) == [
        "--checkpoint-at", "0", "100", "2000", "--json",
    ]  # fmt: skip
    assert plain(COMMANDS["import"], ["a.pt", "--skip", *typed]) == ["a.pt", "--skip", "0", "100", "2000"]
    assert plain(COMMANDS["train"], [f"--checkpoint-at={','.join(typed).replace(',,', ',')}"])[1:] == [
        "0", "100", "2000",
    ]  # fmt: skip


def test_a_comma_joins_blocks() -> None:
    """And the values of one name that varies."""
    assert plain(COMMANDS["hessian"], ["--blocks", "E", "E,W"]) == ["--blocks", "E", "E,W"]
    assert plain(COMMANDS["train"], ["--vary", "lr=1,2"]) == ["--vary", "lr=1,2"]


def test_a_file_may_follow_a_list() -> None:
    """Its name ends in .h5, which no value does."""
    for argv in ("--blocks E W a.h5", "--blocks E W --ckpt a.h5", "a.h5 --blocks E W"):
        assert plain(COMMANDS["hessian"], argv.split()) == ["a.h5", "--blocks", "E", "W"]
    assert plain(COMMANDS["hessian"], ["--steps", "0", "1", "a.h5", "--quiet"]) == ["a.h5", "--steps", "0,1", "--quiet"]
    assert plain(COMMANDS["hessian"], ["--blocks", "E", "--", "b,h5"]) == ["--blocks", "E", "--", "b,h5"]


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

    def stopped(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(COMMANDS[name], "execute", stopped)
    needed = {"critical": ["x.h5", "--step", "1"], "slice": ["x.h5", "--step", "1"], "import": ["x", "--out", "y.h5"]}
    needed |= {"completion": ["bash"], "train": [], "demo": []}
    assert cli.run([name, *needed.get(name, ["x.h5"])]) == 130
    assert capsys.readouterr().err == f"interrupted: {COMMANDS[name].interrupted}\n"


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


def test_steps_of_a_config_file_stay_a_text() -> None:
    """What spaces and commas mean is a matter of the command line."""
    assert HessianConfig(steps="0,100").steps == "0,100"
