"""What a sweep refuses, and failures that stop nothing else."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import pytest
from helpers.commands import Refusal
from helpers.hessians import HessianReader, analyse
from helpers.sweeps import LONG, SHORT, arguments, files

from landscape.cli import main as cli
from landscape.config import HessianConfig
from landscape.errors import UNFINISHED
from landscape.files.writing import sole_writer
from landscape.jobs.plan import DEFINITION, SweepConfig, sweep_runs
from landscape.training.loop import train


@pytest.mark.parametrize(
    ("sweep", "error", "hint"),
    [
        ({"case": {}}, "unknown config key 'case'", "did you mean cases"),
        ({"seeds": 3}, "seeds cannot be 3", "it takes tuple[int, ...]"),
        ({"seeds": []}, "seeds []: none, or one named twice", "name each once"),
        ({"seeds": [1, 1]}, "seeds [1, 1]: none, or one named twice", "name each once"),
        ({"seeds": [-1]}, "base-s-1: seed is -1", "an integer from 0 to 2^64 - 1"),
        ({"grid": {"lr": [1, 1.0]}}, "grid lr [1, 1.0]: none, or one named twice", "name each once"),
        ({"grid": {"lr": 0.1}}, "grid cannot be {'lr': 0.1}", "it takes dict[str, tuple[Any, ...]]"),
        ({"grid": {"lrr": [1]}}, "base-lrr=1-s0: unknown config key 'lrr'", "did you mean lr"),
        ({"grid": {"lr": [0.1, -1]}}, "base-lr=-1-s0: lr is -1", "--lr takes a number >= 0"),
        ({"cases": {}}, "cases []: none, or one named twice", "name each once"),
        ({"cases": {"a/b": {}}}, "name 'a/b' cannot be part of a file name", "letters, digits, _ and -"),
        ({"cases": {"big": {"hidden": 0}}}, "big-s0: hidden is 0", "an integer >= 1"),
        ({"cases": {"big": {"seed": 1}}}, "big sets seed to 1", "list all seeds in seeds"),
        ({"cases": {"big": {"lr": 1}}, "grid": {"lr": [2]}}, "case big sets lr, which grid crosses", "one of the two"),
        ({"name": "../x"}, "name '../x' cannot be part of a file name", "start with a letter or digit"),
        ({"name": "x" * 201}, "has 201 bytes", "at most 200: a case with a short name"),
        ({"cases": {"x" * 195: {}}}, "has 201 bytes", "at most 200"),
        ({"hessian": [{"name": "x" * 190}]}, "has 209 bytes", "at most 200"),
        (
            {"train": {"task": "text"}, "grid": {"text": ["é" * 60]}},
            "has 376 bytes",
            "a case with a short name can set long values",
        ),
        ({"preset": "quikc"}, "unknown preset 'quikc'", "did you mean quick?"),
        ({"train": {"lr": "fast"}}, "base-s0: lr cannot be 'fast'", "it takes float"),
        ({"train": {"train_fraction": 0.001, "p": 5}}, "train_fraction 0.001 of 25 pairs leaves none", "raise"),
        ({"train": {"train_fraction": 0.999, "p": 5}}, "all 25 pairs are trained on: none is left to test on", "lower"),
        ({"hessian": [{"k": 0}]}, "hessian '': k is 0", "--k takes an integer from 1 to 2^20"),
        ({"hessian": [{"name": "a", "blok": []}]}, "hessian 'a': unknown config key 'blok'", "did you mean blocks?"),
        ({"hessian": [{}, {}]}, "hessian names ['', '']: one twice", "a name of its own"),
        ({"hessian": [{"name": "a b"}]}, "name 'a b' cannot be part of", "letters, digits, _ and -"),
        ({"hessian": [{"cases": ["bsae"]}]}, "hessian '' is for case bsae, which no run has", "did you mean base?"),
        ({"hessian": [{"seeds": [2]}]}, "hessian '' is for seed 2, which no run has", "known: 0"),
        ({"hessian": [{"steps": "0,55"}]}, "hessian '' is of step 55, but base-s0 will not store it", "checkpoint_at"),
        (
            {"hessian": [{"refine_from": 55}]},
            "hessian '' is of step 55, but base-s0 will not store it",
            "checkpoint_at",
        ),
        ({"hessian": [{"steps": "0", "refine_from": 10}]}, "hessian '': steps is 0, refine_from 10", "one of them"),
        ({"hessian": [{"settle": True, "refine_from": 10}]}, "settle is true, refine_from 10", "one of them"),
        (
            {"train": {"model": "onehot"}, "hessian": [{"blocks": ["E"]}]},
            "the onehot model has no block 'E'",
            "known: W V",
        ),
    ],
    ids=str,
)
def test_what_a_sweep_refuses(
    sweep: dict[str, Any], error: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value that no run or analysis can have ends in two lines before anything is written, with exit code 2."""
    sweep = {**sweep, "train": {**SHORT, **sweep.get("train", {})}}
    assert cli.run(arguments(tmp_path, sweep)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2, lines
    assert lines[0].startswith("error: ")
    assert error in lines[0]
    assert lines[1].startswith("hint: ")
    assert hint in lines[1]
    assert list(files(tmp_path)) == ["sweep.json"]


@pytest.mark.parametrize(
    ("more", "text", "error"),
    [
        (["--jobs", "0"], "{}", "error: jobs is 0\nhint: --jobs takes an integer from 1 to 1024"),
        ([], "[", "is not JSON"),
    ],
)
def test_what_the_command_refuses(
    more: list[str], text: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No process, and no JSON; the hint shows what a sweep looks like."""
    (tmp_path / "s.json").write_text(text)
    assert cli.run(["sweep", "--config", str(tmp_path / "s.json"), "--out", str(tmp_path), *more]) == 2
    stderr = capsys.readouterr().err
    assert error in stderr
    assert more or 'hint: write {"name": "ratios", "grid"' in stderr


def test_a_file_in_the_way(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run or half a sweep of another config, or an analysis without its run, is an error before anything starts."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    runs = sweep_runs(SweepConfig(**LONG), tmp_path)
    runs[0].path.unlink()
    # The folder has the files of one sweep; each of these is another.
    lr = {**LONG, "train": {**LONG["train"], "lr": 0.02}}
    k = {**LONG, "hessian": [LONG["hessian"][0], {**LONG["hessian"][1], "k": 3}]}
    for sweep, error, hint in (
        (lr, f"{runs[1].path}: lr is 0.02, but the run was started with 0.01", "use --overwrite to start the sweep"),
        (LONG, f"{runs[0].hessian['']} exists", "move it away, and the sweep makes it again, or use another --out"),
        (k, f"{runs[0].hessian['']} exists", "move it away, and the sweep makes it again, or use another --out"),
    ):
        argv = arguments(tmp_path, sweep)
        before = files(tmp_path)
        assert cli.run(argv) == 1
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == f"error: {error}"
        assert lines[1].startswith(f"hint: {hint}")
        assert files(tmp_path) == before
    runs[0].hessian[""].unlink()
    assert cli.run(arguments(tmp_path, k)) == 1
    said = capsys.readouterr().err
    assert f"{runs[3].hessian['end']}: it was made with k 4, not 3" in said
    assert "hint: move it away, and the sweep makes it again" in said


@pytest.mark.long
@pytest.mark.usefixtures("without_workers")
def test_overwrite_removes_only_what_the_sweep_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of one's own, or an analysis of another run, under a name of the sweep: refused, nothing is removed."""
    sweep = {"train": SHORT, "seeds": [0, 1], "hessian": [{"steps": "20", "blocks": ["E"], "device": "cpu"}]}
    runs = sweep_runs(SweepConfig(**sweep), tmp_path)
    mine = [dataclasses.replace(runs[0].config, lr=0.5), runs[0].config]
    # Without a sweep in the folder, with one, and with one that is of the same configs.
    for config, before in ((mine[0], None), (mine[1], None), (mine[0], sweep), (mine[0], {**sweep, "seeds": [1]})):
        shutil.rmtree(tmp_path / "sweep", ignore_errors=True)
        if before:
            assert cli.run(arguments(tmp_path, before)) == 0
        train(config, runs[0].path, overwrite=True, quiet=True)
        argv = arguments(tmp_path, sweep, "--overwrite")
        stand = files(tmp_path)
        assert cli.run(argv) == 1
        said = capsys.readouterr().err
        assert f"error: {runs[0].path} is not of the sweep that {tmp_path / 'sweep' / DEFINITION} describes" in said
        assert "hint: move it away, or choose another --out" in said
        assert files(tmp_path) == stand
    shutil.rmtree(tmp_path / "sweep")
    assert cli.run(arguments(tmp_path, sweep)) == 0
    train(mine[0], tmp_path / "other.h5", quiet=True)
    analyse(tmp_path / "other.h5", HessianConfig(steps="20", blocks=("E",)), runs[0].hessian[""], True, quiet=True)
    stand = files(tmp_path)
    assert cli.run(arguments(tmp_path, sweep, "--overwrite")) == 1
    assert f"error: {runs[0].hessian['']} is not of the sweep" in capsys.readouterr().err
    assert files(tmp_path) == stand


@pytest.mark.usefixtures("without_workers")
def test_one_failure_stops_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that cannot be written, and runs that diverge: named at the end, with exit code 1."""
    diverging = {"optimizer": "sgd", "lr": 1e30}
    sweep = {
        "train": SHORT,
        "cases": {"good": {}, "bad": diverging},
        "seeds": [0, 1, 2],
        "hessian": [{"steps": "20", "blocks": ["E"], "seeds": [1, 2]}],
    }
    runs = sweep_runs(SweepConfig(**sweep), tmp_path)
    runs[0].path.parent.mkdir()
    with sole_writer(runs[1].path):
        assert cli.run(arguments(tmp_path, sweep)) == 1
    captured = capsys.readouterr()
    finished = [0, 2]
    assert [line.split(": ")[0] for line in captured.out.splitlines()] == [str(runs[i].path) for i in finished]
    lines = captured.err.splitlines()
    errors = sorted(line for line in lines if line.startswith("error: "))
    bad, busy = errors[:3], errors[3]
    assert [line.split(": ")[1] for line in bad] == [str(run.path) for run in runs[3:]]
    assert all("diverged" in line for line in bad)
    assert busy.startswith(f"error: {runs[1].path}: {runs[1].path} is being written by another process")
    assert "hint: wait for it" in lines
    assert HessianReader(runs[2].hessian[""]).steps == [20]
    assert not runs[1].hessian[""].exists()
    assert cli.run(arguments(tmp_path, {**sweep, "cases": {"good": {}}})) == 0


@pytest.mark.usefixtures("without_workers")
@pytest.mark.parametrize("lost", [13, 20, 40], ids=["between", "analysed", "last"])
def test_a_repaired_run_is_resumed_and_keeps_its_analyses(
    lost: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever checkpoint it has lost; an analysis that the run does not own is the only file to be moved away."""
    sweep = {
        "train": {**SHORT, "steps": 40, "checkpoint_at": [13, 20]},
        "seeds": [0, 1],
        "hessian": [{"steps": "0,20,40", "blocks": ["E"], "device": "cpu"}],
    }
    argv = arguments(tmp_path, sweep)
    assert cli.run(argv) == 0
    run, other = sweep_runs(SweepConfig(**sweep), tmp_path)
    measured = files(tmp_path)
    with h5py.File(run.path, "r+") as file:
        file["checkpoints/V"][list(file["checkpoints/step"]).index(lost)] += 1
    assert cli.run(argv) == 1
    assert "or keep its whole rows with `landscape check --repair`" in capsys.readouterr().err
    assert cli.run(["check", str(run.path), "--repair"]) == UNFINISHED
    run.path.with_name(f"{run.path.name}.damaged").unlink()
    for _ in range(2):
        assert cli.run(argv) == 0, capsys.readouterr().err
        now = files(tmp_path)
        assert now.pop(f"sweep/{run.path.name}")
        assert now == {name: content for name, content in measured.items() if name in now}

    mine = run.hessian[""]
    shutil.copy(other.hessian[""], mine)
    capsys.readouterr()
    assert cli.run(argv) == 1
    said = capsys.readouterr().err
    assert f"error: {mine}: it is of run " in said
    assert "hint: move it away, and the sweep makes it again, or use another --out" in said
    mine.unlink()
    if lost != 20:
        assert cli.run(argv) == 0
        assert HessianReader(mine).steps == [0, 20, 40]
    assert {**files(tmp_path), f"sweep/{mine.name}": b"", f"sweep/{run.path.name}": b""}.keys() == measured.keys()


@pytest.mark.usefixtures("without_workers")
def test_a_run_that_cannot_be_resumed_is_the_only_one_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both of its resume slots are damaged: what to do is said of this file, not of the whole sweep."""
    sweep = {"train": SHORT, "seeds": [0, 1]}
    argv = arguments(tmp_path, sweep)
    assert cli.run(argv) == 0
    run, other = sweep_runs(SweepConfig(**sweep), tmp_path)
    stand = other.path.read_bytes()
    with h5py.File(run.path, "r+") as file:
        file["resume/step"][:] += 1
        file.attrs["status"] = "interrupted"
    capsys.readouterr()
    assert cli.run(argv) == 1
    said = capsys.readouterr().err
    assert f"error: {run.path}: {run.path} holds no valid resume slot" in said
    assert "hint: move it away, and the sweep makes it again, or use another --out" in said
    run.path.unlink()
    assert cli.run(argv) == 0
    assert other.path.read_bytes() == stand


@pytest.mark.usefixtures("without_workers")
def test_a_definition_of_ones_own_is_never_replaced(tmp_path: Path, assert_refused: Refusal) -> None:
    """A sweep of the name of the folder that its JSON file is in runs; another sweep of that name is refused."""
    own = tmp_path / "exp" / DEFINITION
    own.parent.mkdir()
    own.write_text(json.dumps({"name": "exp", "train": SHORT}, indent=2))
    before = own.read_bytes()
    assert cli.run(["sweep", str(own), "--out", str(tmp_path), "--quiet"]) == 0
    assert own.read_bytes() == before
    for more in ([], ["--overwrite"]):
        argv = arguments(tmp_path, {"name": "exp", "train": SHORT, "seeds": [1]}, *more)
        assert_refused(argv, 1, f"{own} is another sweep, and was not written by", "move it away, or choose", [own])
    assert {path.name for path in own.parent.iterdir()} == {DEFINITION, "base-s0.h5"}
