"""Analyses that grow and searches that are stopped: what was measured stays, and the end is that of a fresh one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import TINY
from helpers.faults import served_hessian
from helpers.recording import move, small
from helpers.sequences_analyses import TINY as TINIEST
from helpers.sequences_analyses import everything

from landscape.cli import main as cli
from landscape.config import HessianConfig
from landscape.errors import FileError
from landscape.files.hessians import HessianReader
from landscape.files.runs import RunReader
from landscape.files.writer import Writer
from landscape.measure.hessian import analyse, choose_steps
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
        found = [choose_steps(reader, "auto", count) for count in (1, 2, 3, 4, 50)]
        assert found == [[200], [200, 600], [0, 200, 600], [0, 200, 600, 900], reader.steps]
        assert [choose_steps(other, "auto", count) for count in (1, 2)] == [[60], [0, 60]]


def test_auto_says_what_a_file_keeps(small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps of an earlier choice, which it does not remove; steps that are named add to a file in silence."""
    out = tmp_path / "h.h5"
    for config in (settings("20", "E"), settings("40", "E"), settings("auto", "E", num_steps=1)):
        assert capsys.readouterr().err == ""
        analyse(small_run, config, out, quiet=True)
    assert capsys.readouterr().err == f"note: {out} keeps what was measured before, too: step 20, 40\n"
    assert HessianReader(out).steps == [20, 40, 60]


GROWTHS = [
    ([("0,60", "E,W"), ("0,20,60", "E,W")], ("0,20,60", "E,W")),
    ([("20", "E"), ("20", "W", "E,W"), ("0,20", "all")], ("0,20", "E", "W", "E,W", "all")),
    ([("0,20,40", "E,W", "E"), ("60", "W,V", "V"), ("0", "W")], ("0,20,40,60", "E,W", "E", "W,V", "V", "W")),
    ([("all", "all"), ("20", "E,V")], ("all", "all", "E,V")),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "whole", "vectors"),
    [(*GROWTHS[0], False), (*GROWTHS[1], True), (*GROWTHS[2], False), (*GROWTHS[2], True), (*GROWTHS[3], True)],
)
def test_a_grown_file_is_a_fresh_one(
    parts: list[tuple[str, ...]], whole: tuple[str, ...], vectors: bool, small_run: Path, tmp_path: Path
) -> None:
    """Steps and blocks that were added one after another leave the bits of an analysis that had them all."""
    grown, fresh = tmp_path / "grown.h5", tmp_path / "fresh.h5"
    for steps, *blocks in parts:
        analyse(small_run, settings(steps, *blocks, eigenvectors=vectors), grown, quiet=True)
    steps, *blocks = whole
    analyse(small_run, settings(steps, *blocks, eigenvectors=vectors), fresh, quiet=True)
    assert everything(grown) == everything(fresh)
    assert HessianReader(grown).attrs["status"] == "complete"


@pytest.mark.slow
def test_only_what_is_missing_is_measured(small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is measured once at a step, and again only where the next step is tracked from it."""
    from landscape.measure.checkpoint import Checkpoint

    measured: list[tuple[int, str]] = []
    original = Checkpoint._solved

    def counting(self: Checkpoint, block: str) -> Any:
        measured.append(block)
        return original(self, block)

    monkeypatch.setattr(Checkpoint, "_solved", counting)
    out = tmp_path / "h.h5"
    seconds = {}
    for steps, blocks, expected in (
        ("0,20", ("E",), ["E", "E"]),
        ("0,20", ("E",), []),
        ("20", ("E",), []),
        ("0,20", ("E", "W"), ["W", "W"]),
        ("60", ("E",), ["E", "W", "E", "W"]),
    ):
        measured.clear()
        found = analyse(small_run, settings(steps, *blocks), out, quiet=True)
        assert sorted(measured) == sorted(expected), (steps, blocks)
        for step in found.steps:
            assert seconds.setdefault(step, found.row(step)["seconds"][0]) == found.row(step)["seconds"][0]


@pytest.mark.long
def test_matrix_free_blocks_grow_too(small_run: Path, tmp_path: Path) -> None:
    """What was measured stays bit for bit; what is added agrees with a fresh analysis to its residuals."""
    out, fresh = tmp_path / "h.h5", tmp_path / "fresh.h5"
    first = analyse(small_run, settings("0,60", "E", method="lanczos"), out, quiet=True)
    before = {step: first.row(step) for step in first.steps}
    found = analyse(small_run, settings("0,20,60", "E", "all", method="lanczos"), out, quiet=True)
    whole = analyse(small_run, settings("0,20,60", "E", "all", method="lanczos"), fresh, quiet=True)
    for step, row in before.items():
        for name in ("eigenvalues", "residual_norm", "inertia_lower", "inertia_upper", "trace", "seconds"):
            assert found.row(step)[name][0].tobytes() == row[name][0].tobytes()
    for step in whole.steps:
        ours, theirs = found.row(step), whole.row(step)
        np.testing.assert_allclose(ours["eigenvalues"], theirs["eigenvalues"], atol=2e-6, rtol=1e-6)
        np.testing.assert_allclose(ours["jensen_shannon"], theirs["jensen_shannon"], atol=1e-3)
        assert ours["previous_step"] == theirs["previous_step"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 4}, "it was made with k 3, not 4"),
        ({"objective": "regularised"}, "it was made with objective data, not regularised"),
        ({"seed": 5}, "it was made with seed 0, not 5"),
    ],
)
def test_a_refusal_names_the_setting(change: dict[str, Any], message: str, small_run: Path, tmp_path: Path) -> None:
    """With both values; the file is not touched."""
    out = tmp_path / "h.h5"
    analyse(small_run, settings("0", "E"), out, quiet=True)
    before = out.read_bytes()
    with pytest.raises(FileError, match=message) as caught:
        analyse(small_run, dataclasses.replace(settings("0", "E"), **change), out, quiet=True)
    assert "use --overwrite to replace it" in caught.value.hint
    assert out.read_bytes() == before


@pytest.mark.slow
def test_another_run_and_another_kind_are_refused(small_run: Path, tmp_path: Path) -> None:
    """Named by run ids; the analysis of a checkpoint is no search for a critical point."""
    other, out = tmp_path / "other.h5", tmp_path / "h.h5"
    train(dataclasses.replace(TINY, steps=20), other, quiet=True)
    analyse(small_run, settings("0", "E"), out, quiet=True)
    with pytest.raises(FileError, match="it is of run [0-9a-f]{32}, but .*other.h5 is run [0-9a-f]{32}"):
        analyse(other, settings("0", "E"), out, quiet=True)
    argv = ["critical", str(small_run), "--step", "60", "--out", str(out), "--quiet", "--resume"]
    assert cli.run([*argv, "--objective", "data"]) == 1


@pytest.mark.slow
def test_an_analysis_of_a_run_that_went_on(tmp_path: Path) -> None:
    """The run's file has other bytes then; its id and its checkpoints are the same, and the analysis is resumed."""
    run, out = tmp_path / "run.h5", tmp_path / "h.h5"
    train(TINY, run, quiet=True)
    analyse(run, settings("0,20", "E"), out, quiet=True)
    before = HessianReader(out).attrs["parent_sha256"]
    train(dataclasses.replace(TINY, steps=80, metrics_every=5), run, resume=True, quiet=True)
    found = analyse(run, settings("0,20,80", "E"), out, quiet=True)
    assert found.steps == [0, 20, 80]
    assert found.attrs["parent_sha256"] != before
    analyse(run, settings("0,20,80", "E"), tmp_path / "fresh.h5", quiet=True)
    assert everything(out) == everything(tmp_path / "fresh.h5")


@pytest.mark.slow
def test_a_checkpoint_that_is_another(tmp_path: Path) -> None:
    """A run of the same id whose checkpoint has other numbers is not the run that was analysed."""
    run, out = tmp_path / "run.h5", tmp_path / "h.h5"
    train(TINY, run, quiet=True)
    analyse(run, settings("0,20", "E"), out, quiet=True)
    with RunReader(run) as reader:
        index, row = reader.steps.index(20), dict(reader.checkpoint(20))
    row["V"] = row["V"] + 1
    writer = Writer(run)
    writer._tables["checkpoints"].write(index, 20, row)
    writer.close()
    with pytest.raises(FileError, match="step 20 was measured at another checkpoint than"):
        analyse(run, settings("0,20", "E"), out, quiet=True)


def stopped_at(number: int, method: str, monkeypatch: pytest.MonkeyPatch, work: Callable[[], int]) -> int:
    """Exit code of some work that gets Ctrl-C within the call of a writer's method with this number."""
    calls: list[int] = []
    original = getattr(Writer, method)

    def pressing(self: Writer, *args: Any) -> None:
        calls.append(1)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGINT)
        original(self, *args)

    with monkeypatch.context() as context:
        context.setattr(Writer, method, pressing)
        return work()


@pytest.mark.slow
@pytest.mark.parametrize(("method", "number"), [("append", 1), ("append", 2), ("replace", 1), ("replace", 2)])
def test_ctrl_c_while_a_file_grows(
    method: str, number: int, small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """130; all that the file held is there, and the same command ends where a fresh one does."""
    out, fresh = tmp_path / "h.h5", tmp_path / "fresh.h5"
    analyse(small_run, settings("20,60", "E"), out, quiet=True)
    before = everything(out)
    argv = ["hessian", str(small_run), "--steps", "0,20,40", "--blocks", "E", "E,W", "--k", "3",
            "--device", "cpu", "--quiet"]  # fmt: skip
    assert stopped_at(number, method, monkeypatch, lambda: cli.run([*argv, "--out", str(out)])) == 130
    after = everything(out)
    tracked = ("subspace_overlap", "previous_rank", "previous_overlap", "crossings", "previous_step")
    beside = ("jensen_shannon", "curvature_ratio", "coupling", "eigenvalue", "width", "E_error", "excess", "gauss")
    for key, value in before.items():
        if key[2] not in tracked and not key[2].startswith(beside) and key[1] != "density":
            assert after[key] == value, key
    assert cli.run([*argv, "--out", str(out)]) == 0
    assert cli.run([*argv, "--out", str(fresh), "--steps", "0,20,40,60"]) == 0
    assert everything(out) == everything(fresh)


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


@pytest.mark.slow
@pytest.mark.parametrize(("method", "number"), [("save", 1), ("save", 4), ("append", 1)])
def test_a_search_that_is_stopped_is_resumed_bit_for_bit(
    method: str, number: int, critical: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Ctrl-C in the search or while measuring: 130, a file, and the same command ends where nothing had stopped it."""
    argv, rows, point = critical
    out = tmp_path / "c.h5"
    command = [*argv, "--out", str(out)]
    assert stopped_at(number, method, monkeypatch, lambda: cli.run(command)) == 130
    assert "interrupted: the same command resumes" in capsys.readouterr().err
    assert HessianReader(out).attrs["status"] == "running"
    assert cli.run(command) == 0
    assert served_hessian(out) == rows
    found = HessianReader(out).critical_point(400)
    assert all(np.asarray(found[n]).tobytes() == np.asarray(value).tobytes() for n, value in point.items())
    before = out.stat().st_mtime_ns
    assert cli.run([*command, "--resume"]) == 0
    assert out.stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_search_that_spent_its_products_ends_at_the_same_point(critical: Any, tmp_path: Path) -> None:
    """In several budgets: each resumed search takes the steps of one that had them all."""
    argv, rows, point = critical
    command = [*argv, "--out", str(tmp_path / "c.h5")]
    assert cli.run([*command, "--search-hvps", "100"]) == 3
    assert cli.run([*command, "--search-hvps", "250", "--resume"]) == 3
    assert cli.run([*command, "--resume"]) == 0
    assert served_hessian(tmp_path / "c.h5") == rows
    found = HessianReader(tmp_path / "c.h5").critical_point(400)
    assert all(np.asarray(found[n]).tobytes() == np.asarray(value).tobytes() for n, value in point.items())


@pytest.mark.slow
def test_blocks_are_added_to_a_critical_point(critical: Any, tmp_path: Path) -> None:
    """The point stays, and what is measured there is that of a search with all blocks."""
    argv, _, point = critical
    grown, fresh = tmp_path / "grown.h5", tmp_path / "fresh.h5"
    assert cli.run([*argv, "--out", str(grown)]) == 0
    more = [*argv, "all"]
    assert cli.run([*more, "--out", str(grown), "--resume"]) == 0
    assert cli.run([*more, "--out", str(fresh)]) == 0
    assert everything(grown) == everything(fresh)
    assert cli.run([*argv, "--out", str(grown), "--rtol", "1e-3"]) == 1


@pytest.mark.slow
def test_the_search_shows_its_progress_and_stops_at_once(tmp_path: Path) -> None:
    """A bar that counts products within the first step, and an end within seconds of Ctrl-C."""
    run = tmp_path / "run.h5"
    big = {"p": 23, "hidden": 64, "embed_dim": 16}
    train(dataclasses.replace(TINIEST, **big, steps=20, checkpoint_every=20), run, quiet=True)
    argv = [sys.executable, "-m", "landscape", "critical", str(run), "--step", "20"]
    said = bytearray()
    terminal, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 200))
    with subprocess.Popen(argv, stderr=slave, stdout=subprocess.DEVNULL) as process:
        os.close(slave)

        def read() -> None:
            # The end of the process ends its terminal with an error.
            with contextlib.suppress(OSError):
                while True:
                    said.extend(os.read(terminal, 64))

        reader = threading.Thread(target=read)
        reader.start()
        while said.count(b"product") < 3:
            assert process.poll() is None, "a search that shows nothing"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        reader.join()
    os.close(terminal)
    assert b"interrupted: the same command resumes" in said
    assert HessianReader(run.with_name("run.critical-20.h5")).search["step"] == 20


@pytest.mark.parametrize("command", ["train", "hessian", "critical", "sweep"])
@pytest.mark.parametrize("content", [b"", b"notes", "other HDF5"])
def test_nobody_elses_file_is_overwritten(
    command: str, content: bytes | str, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--overwrite replaces a file of the same kind, and nothing else."""
    out = tmp_path / "sweep" / "base-s0.h5"
    out.parent.mkdir()
    if isinstance(content, bytes):
        out.write_bytes(content)
    else:
        with h5py.File(out, "w") as file:
            file["mine"] = [1, 2, 3]
    (tmp_path / "sweep.json").write_text('{"train": {"p": 7, "steps": 1}}')
    before = out.read_bytes()
    argv = {
        "train": ["train", "--out", str(out)],
        "hessian": ["hessian", str(tiny_run), "--out", str(out)],
        "critical": ["critical", str(tiny_run), "--step", "60", "--out", str(out)],
        "sweep": ["sweep", "--config", str(tmp_path / "sweep.json"), "--out", str(tmp_path)],
    }[command]
    assert cli.run([*argv, "--overwrite", "--quiet"]) == 1
    error, hint = capsys.readouterr().err.strip().splitlines()[-2:]
    kind = "a run file" if command in ("train", "sweep") else "a Hessian file"
    assert error == f"error: {out} is not {kind}, and nothing else is overwritten"
    assert hint == "hint: remove it yourself, or choose another --out"
    assert out.read_bytes() == before


def test_a_foreign_definition_of_a_sweep_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sweep.json in the folder that describes no sweep is somebody's."""
    (tmp_path / "in.json").write_text('{"train": {"p": 7, "steps": 1}}')
    mine = tmp_path / "sweep" / "sweep.json"
    mine.parent.mkdir()
    mine.write_text('{"mine": 1}')
    assert cli.run(["sweep", "--config", str(tmp_path / "in.json"), "--out", str(tmp_path), "--quiet"]) == 1
    assert f"error: {mine} is no sweep" in capsys.readouterr().err
    assert mine.read_text() == '{"mine": 1}'
