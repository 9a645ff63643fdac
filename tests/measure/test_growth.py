"""Analyses that grow and that are killed: what was measured stays, and the end is that of a fresh one."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import TINY
from helpers.faults import served_hessian
from helpers.hessians import HessianReader, analyse, refine
from helpers.recording import move, small
from helpers.sequences_analyses import TINY as TINIEST
from helpers.sequences_analyses import everything

from landscape.cli import main as cli
from landscape.config import AnalysisConfig, HessianConfig
from landscape.errors import FileError
from landscape.files.runs import RunReader
from landscape.measure.steps import choose_steps
from landscape.training.loop import train
from landscape.training.recorder import Recorder


def settings(steps: str, *blocks: str, **more: Any) -> HessianConfig:
    return HessianConfig(steps=steps, blocks=blocks, device="cpu", k=3, **more)


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 55 parameters with checkpoints at 0, 20, 40 and 60. Read only."""
    path = tmp_path_factory.mktemp("small") / "run.h5"
    train(dataclasses.replace(TINIEST, steps=60, checkpoint_every=20, checkpoint_log=0), path, quiet=True)
    return path


def test_auto_chooses_at_most_as_many_steps_as_asked(tmp_path: Path, small_run: Path) -> None:
    """First those of memorising and grokking, then both ends; of a run without these events first the last."""
    with Recorder(tmp_path / "r.h5", model := small(), seed=0) as recorder:
        for step in range(0, 901, 100):
            recorder.metrics(step, train_accuracy=float(step >= 200), test_accuracy=float(step >= 600))
            recorder.checkpoint(step)
            move(model, step)
    with RunReader(tmp_path / "r.h5") as reader, RunReader(small_run) as other:
        chosen = [choose_steps(reader, "auto", count) for count in (1, 2, 3, 4, 50)]
        assert chosen == [[200], [200, 600], [0, 200, 600], [0, 200, 600, 900], reader.steps]
        assert [choose_steps(other, "auto", count) for count in (1, 2)] == [[60], [0, 60]]


def test_auto_says_what_a_file_keeps(small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of an earlier choice, which it does not remove; steps that are named add to a file in silence."""
    out = tmp_path / "h.h5"
    for config in (settings("20", "E"), settings("40", "E"), settings("auto", "E", num_steps=1)):
        assert capsys.readouterr().err == ""
        analyse(small_run, config, out, quiet=True)
    assert capsys.readouterr().err == f"note: {out} keeps what was measured before, too: step 20, 40\n"
    assert HessianReader(out).steps == [20, 40, 60]


@pytest.mark.slow
@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("parts", [("0,60", "0,20,60", "all"), ("20", "40,60", "0")])
def test_a_grown_file_is_a_fresh_one(parts: tuple[str, ...], vectors: bool, small_run: Path, tmp_path: Path) -> None:
    """Steps that were added one after another leave the bits of an analysis that had them all, and their wall times."""
    grown, fresh, seconds = tmp_path / "grown.h5", tmp_path / "fresh.h5", {}
    for steps in parts:
        # Some of the file's blocks, or none, stand for all of them.
        blocks = ("E,W", "E") if not seconds else ("E",) if len(seconds) < 3 else ()
        reader = analyse(small_run, settings(steps, *blocks, vectors=vectors), grown, quiet=True)
        for step in reader.steps:
            wall = reader.row(step)["seconds"].tolist()
            assert seconds.setdefault(step, wall) == wall
    analyse(small_run, settings("all", "E,W", "E", vectors=vectors), fresh, quiet=True)
    assert everything(grown) == everything(fresh)
    assert HessianReader(grown).attrs["status"] == "complete"


@pytest.mark.slow
def test_matrix_free_blocks_grow_too(small_run: Path, tmp_path: Path) -> None:
    """What was measured stays bit for bit; what is added agrees with a fresh analysis to its residuals."""
    out, fresh = tmp_path / "h.h5", tmp_path / "fresh.h5"
    first = analyse(small_run, settings("0,60", "E", method="lanczos"), out, quiet=True)
    before = {step: first.row(step) for step in first.steps}
    reader = analyse(small_run, settings("20", method="lanczos"), out, quiet=True)
    whole = analyse(small_run, settings("0,20,60", "E", method="lanczos"), fresh, quiet=True)
    for step, row in before.items():
        for name in ("eigenvalues", "residual_norm", "inertia_lower", "inertia_upper", "trace", "seconds"):
            assert reader.row(step)[name][0].tobytes() == row[name][0].tobytes()
    for step in whole.steps:
        ours, theirs = reader.row(step), whole.row(step)
        np.testing.assert_allclose(ours["eigenvalues"], theirs["eigenvalues"], atol=2e-6, rtol=1e-6)
        assert ours["previous_step"] == theirs["previous_step"]


@pytest.mark.slow
def test_an_analysis_of_a_run_that_went_on(tmp_path: Path) -> None:
    """The run's file has other bytes then; its id and its checkpoints are the same, and the analysis is resumed."""
    run, out = tmp_path / "run.h5", tmp_path / "h.h5"
    train(TINY, run, quiet=True)
    analyse(run, settings("0,20", "E"), out, quiet=True)
    before = HessianReader(out).attrs["parent_sha256"]
    train(dataclasses.replace(TINY, steps=80, metrics_every=5), run, resume=True, quiet=True)
    reader = analyse(run, settings("0,20,80", "E"), out, quiet=True)
    assert reader.steps == [0, 20, 80]
    assert reader.attrs["parent_sha256"] != before
    analyse(run, settings("0,20,80", "E"), tmp_path / "fresh.h5", quiet=True)
    assert everything(out) == everything(tmp_path / "fresh.h5")


# --- killed and continued ---------------------------------------------------------------------------------------


def stopped(argv: list[str], out: Path, how: signal.Signals) -> int:
    """The exit code of a command that gets a signal once its file is there."""
    with subprocess.Popen([sys.executable, "-m", "landscape", *argv], stderr=subprocess.DEVNULL) as process:
        while not out.exists():
            assert process.poll() is None, "it ended without a file"
            time.sleep(0.005)
        process.send_signal(how)
        return process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_an_analysis_that_is_killed_continues(how: signal.Signals, code: int, tmp_path: Path) -> None:
    """Steps that the file has keep their wall times; the end is that of an analysis that nothing stopped."""
    run, out, fresh = tmp_path / "run.h5", tmp_path / "h.h5", tmp_path / "fresh.h5"
    train(dataclasses.replace(TINIEST, steps=60, checkpoint_every=5, checkpoint_log=0), run, quiet=True)
    argv = ["hessian", str(run), "--steps", "all", "--blocks", "E", "E,W", "--k", "3", "--device", "cpu", "--quiet"]
    assert stopped([*argv, "--out", str(out)], out, how) == code
    before = HessianReader(out)
    assert before.attrs["status"] == "running"
    assert 0 < len(before.steps) < 13
    assert cli.run([*argv, "--out", str(out)]) == 0
    assert cli.run([*argv, "--out", str(fresh)]) == 0
    after = HessianReader(out)
    assert everything(out) == everything(fresh)
    for step in before.steps:
        assert before.row(step)["seconds"].tobytes() == after.row(step)["seconds"].tobytes()


@pytest.fixture(scope="module")
def critical(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[int, bytes], dict[str, Any]]:
    """The command of a search of nine steps, the rows that it leaves undisturbed, and its point."""
    run = tmp_path_factory.mktemp("critical") / "smooth.h5"
    smooth = dataclasses.replace(TINIEST, weight_decay=0.03, seed=0, steps=400, checkpoint_every=400)
    train(smooth, run, quiet=True)
    out = run.with_name("whole.h5")
    argv = ["critical", str(run), "--step", "400", "--quiet", "--device", "cpu", "--blocks", "E", "E,W"]
    assert cli.run([*argv, "--out", str(out)]) == 0
    return argv, served_hessian(out), HessianReader(out).critical_point(400)


def same_point(path: Path, point: dict[str, Any]) -> bool:
    there = HessianReader(path).critical_point(400)
    return all(np.asarray(there[name]).tobytes() == np.asarray(value).tobytes() for name, value in point.items())


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_search_that_is_killed_is_resumed_bit_for_bit(
    how: signal.Signals, code: int, critical: Any, tmp_path: Path
) -> None:
    """The same command ends where nothing had stopped it, and then changes nothing."""
    argv, rows, point = critical
    out = tmp_path / "c.h5"
    command = [*argv, "--out", str(out)]
    assert stopped(command, out, how) == code
    assert HessianReader(out).attrs["status"] == "running"
    assert cli.run(command) == 0
    assert served_hessian(out) == rows
    assert same_point(out, point)
    before = out.stat().st_mtime_ns
    assert cli.run(command) == 0
    assert out.stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_search_that_spent_its_products_ends_at_the_same_point(critical: Any, tmp_path: Path) -> None:
    """In several budgets: each resumed search takes the steps of one that had them all."""
    argv, rows, point = critical
    command = [*argv, "--out", str(tmp_path / "c.h5")]
    assert cli.run([*command, "--search-hvps", "100"]) == 3
    assert cli.run([*command, "--search-hvps", "250"]) == 3
    assert cli.run(command) == 0
    assert served_hessian(tmp_path / "c.h5") == rows
    assert same_point(tmp_path / "c.h5", point)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_descent_that_is_killed_is_resumed_bit_for_bit(how: signal.Signals, code: int, tmp_path: Path) -> None:
    """Also in several budgets of steps; once finished, the same command changes nothing."""
    run, out, fresh = tmp_path / "run.h5", tmp_path / "s.h5", tmp_path / "fresh.h5"
    train(dataclasses.replace(TINIEST, steps=60, weight_decay=1e-3, activation="tanh"), run, quiet=True)
    argv = ["settle", str(run), "--step", "60", "--quiet", "--device", "cpu", "--blocks", "E", "--share", "1e-9"]
    whole, command = [*argv, "--descent-steps", "600"], [*argv, "--descent-steps", "600", "--out", str(out)]
    assert cli.run([*whole, "--out", str(fresh)]) == 0
    assert stopped(command, out, how) == code
    assert HessianReader(out).attrs["status"] == "running"
    assert cli.run([*argv, "--descent-steps", "300", "--out", str(out)]) == 0
    assert cli.run(command) == 0
    assert everything(out) == everything(fresh)
    before = out.stat().st_mtime_ns
    assert cli.run(command) == 0
    assert out.stat().st_mtime_ns == before


# --- refused ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 4}, "it was made with k 3, not 4"),
        ({"objective": "regularised"}, "it was made with objective data, not regularised"),
        ({"seed": 5}, "it was made with seed 0, not 5"),
        ({"blocks": ("E", "E,W")}, "it was made without block E,W"),
        ({"run": "other.h5"}, "it is of run [0-9a-f]{32}, but .*other.h5 is run [0-9a-f]{32}"),
        ({"run": "changed.h5"}, "step 0 was measured at another checkpoint than"),
        ({"search": True}, "it is no analysis of a critical point"),
    ],
)
def test_a_file_of_something_else_is_refused(
    change: dict[str, Any], message: str, small_run: Path, tmp_path: Path
) -> None:
    """Naming what differs; the file is not touched."""
    out, run = tmp_path / "h.h5", tmp_path / change.pop("run", "run.h5")
    run.write_bytes(small_run.read_bytes())
    analyse(small_run, settings("0", "E"), out, quiet=True)
    if run.name == "other.h5":
        train(dataclasses.replace(TINY, steps=20), run, overwrite=True, quiet=True)
    elif run.name == "changed.h5":
        # Of the same id, with other numbers.
        change_checkpoint(run, 0)
    before = out.read_bytes()
    with pytest.raises(FileError, match=message) as caught:
        again(run, out, **change)
    assert "use --overwrite to replace it" in caught.value.hint
    assert out.read_bytes() == before


def again(run: Path, out: Path, search: bool = False, **change: Any) -> None:
    """Continue an analysis with other settings, or as a search for a critical point."""
    if search:
        refine(run, 0, AnalysisConfig(blocks=("E",), device="cpu", k=3), out, resume=True, quiet=True)
    else:
        analyse(run, dataclasses.replace(settings("0", "E"), **change), out, quiet=True)


def change_checkpoint(path: Path, row: int) -> None:
    """Write other numbers as docs/format.md says."""
    with h5py.File(path, "r+") as file:
        group = file["checkpoints"]
        group["V"][row] += 1
        crc = zlib.crc32(group["step"][row].tobytes())
        for name in group["crc32"].attrs["fields"].split():
            crc = zlib.crc32(group[name][row].tobytes(), crc)
        group["crc32"][row] = 2**32 + crc


@pytest.mark.parametrize("command", ["hessian", "critical", "settle"])
@pytest.mark.parametrize("content", [b"", b"notes", "other HDF5"])
def test_nobody_elses_file_is_overwritten(
    command: str, content: bytes | str, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--overwrite replaces a file of the same kind, and nothing else."""
    out = tmp_path / "mine.h5"
    if isinstance(content, bytes):
        out.write_bytes(content)
    else:
        with h5py.File(out, "w") as file:
            file["mine"] = [1, 2, 3]
    before = out.read_bytes()
    step = [] if command == "hessian" else ["--step", "60"]
    assert cli.run([command, str(tiny_run), *step, "--out", str(out), "--overwrite", "--quiet"]) == 1
    error, hint = capsys.readouterr().err.strip().splitlines()[-2:]
    assert error == f"error: {out} is not a Hessian file, and nothing else is overwritten"
    assert hint == "hint: remove it yourself, or choose another --out"
    assert out.read_bytes() == before
