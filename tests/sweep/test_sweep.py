"""Sweeps of real small runs in worker processes: names, skipping, kills, failures, messages and exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.faults import served_hessian
from helpers.run_files import same_run

import landscape.analysis.critical
from landscape.analysis.hessian import analyse
from landscape.cli import main as cli
from landscape.config import HessianConfig, TrainConfig, to_json
from landscape.curvature.critical import CriticalPoint, find_critical_point
from landscape.errors import FileError
from landscape.storage.hessians import HessianReader
from landscape.storage.inspect import inspect
from landscape.storage.runs import RunReader
from landscape.storage.writing import owner, sole_writer
from landscape.sweep.plan import DEFINITION, SweepConfig, SweepRun, load_sweep, sweep_runs
from landscape.sweep.run import _train
from landscape.training.ensemble import balanced
from landscape.training.loop import train

SIZES = {"p": 7, "tokens": 2, "embed_dim": 4, "hidden": 8, "batch_size": 16, "train_fraction": 0.6, "device": "cpu"}
SHORT = {**SIZES, "steps": 20, "stop_test_accuracy": None, "metrics_every": 10, "checkpoint_every": 10}
LONG: dict[str, Any] = {
    "name": "long",
    "train": {**SHORT, "steps": 1500, "checkpoint_every": 20, "dtype": "float64"},
    "cases": {"base": {}, "wide": {"hidden": 12}},
    "grid": {"lr_ratio": [1, 0.5], "bias": [True]},
    "seeds": [0, 3],
    "hessian": [
        {"steps": "0,20,1500", "blocks": ["E", "E,W"], "device": "cpu"},
        {"name": "end", "steps": "1500", "blocks": ["all"], "device": "cpu", "cases": ["wide"], "seeds": [3]},
    ],
}


def written(folder: Path, sweep: dict[str, Any]) -> Path:
    """A sweep's JSON file."""
    path = folder / "sweep.json"
    path.write_text(json.dumps(sweep))
    return path


def arguments(folder: Path, sweep: dict[str, Any], *more: str) -> list[str]:
    return ["sweep", "--config", str(written(folder, sweep)), "--out", str(folder), "--quiet", "--jobs", "2", *more]


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def wait_for(condition: Callable[[], bool]) -> None:
    """A test that waits in vain ends by pytest's own limit, with a traceback."""
    while not condition():
        time.sleep(0.01)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the undisturbed sweep LONG. Read only."""
    folder = tmp_path_factory.mktemp("whole")
    assert cli.run(arguments(folder, LONG)) == 0
    return folder


def same_sweep(folder: Path, whole: Path) -> None:
    """Finished files that agree: runs to rounding, which depends on who trained beside whom; nothing else is left."""
    config = SweepConfig(**LONG)
    assert files(folder).keys() == files(whole).keys()
    for mine, theirs in zip(sweep_runs(config, folder), sweep_runs(config, whole), strict=True):
        same_run(mine.path, theirs.path, 1e-6)
        for name, path in mine.hessian.items():
            assert inspect(path).finished
            assert served_hessian(path).keys() == served_hessian(theirs.hessian[name]).keys()


def test_the_product_and_its_names(whole: Path) -> None:
    """Cases x grid x seeds in order, a file each, analyses where they are asked for, and nothing beside."""
    runs = sweep_runs(SweepConfig(**LONG), whole)
    stems = [f"{case}-lr_ratio={c}-bias=true-s{s}" for case in ("base", "wide") for c in ("1", "0.5") for s in (0, 3)]
    assert [run.path for run in runs] == [whole / "long" / f"{stem}.h5" for stem in stems]
    assert runs[3].labels == {"case": "base", "lr_ratio": 0.5, "bias": True, "seed": 3}
    assert [list(run.hessian) for run in runs] == [[""], [""], [""], [""], [""], ["", "end"], [""], ["", "end"]]
    assert runs[7].hessian["end"] == whole / "long" / f"{stems[7]}.hessian-end.h5"
    names = {path.name for run in runs for path in (run.path, *run.hessian.values())}
    assert {path.name for path in (whole / "long").iterdir()} == names | {DEFINITION}
    assert sweep_runs(load_sweep(whole / "long" / DEFINITION), whole) == runs
    for run in runs:
        with RunReader(run.path) as reader:
            assert reader.config == json.loads(to_json(run.config))
            assert reader.attrs["status"] == "complete"
        assert (run.config.hidden, run.config.lr_ratio) == (
            12 if run.labels["case"] == "wide" else 8,
            run.labels["lr_ratio"],
        )
        assert HessianReader(run.hessian[""]).steps == [0, 20, 1500]
        assert not inspect(run.hessian[""]).notes[1:], "its run file is found beside it"
    assert HessianReader(runs[5].hessian["end"]).blocks == ["all"]


def test_each_run_is_the_run_alone(whole: Path, tmp_path: Path) -> None:
    """Trained in a worker beside others, a run is what `train` makes of its config."""
    run = sweep_runs(SweepConfig(**LONG), whole)[6]
    train(run.config, tmp_path / "alone.h5", quiet=True)
    same_run(run.path, tmp_path / "alone.h5", 1e-6)


def test_values_as_names() -> None:
    """Every value of the grid has its own text, without a space or a quote."""
    grid = {"checkpoint_at": [[], [3, 5]], "lr": [1e-5, 0.1], "test_fraction": [None], "batch_size": ["full"]}
    runs = sweep_runs(SweepConfig(name="n", grid=grid, seeds=(7,)), Path("o"))
    assert runs[0].path == Path("o/n/base-checkpoint_at=-lr=1e-05-test_fraction=null-batch_size=full-s7.h5")
    assert runs[3].path == Path("o/n/base-checkpoint_at=3+5-lr=0.1-test_fraction=null-batch_size=full-s7.h5")
    assert runs[3].config.checkpoint_at == (3, 5)


def test_config_round_trip() -> None:
    """A sweep written to JSON is read back the same."""
    config = SweepConfig(**{**LONG, "seeds": (0, 3), "hessian": tuple(LONG["hessian"])})
    path_like = json.loads(to_json(config))
    from landscape.config import replace

    assert replace(SweepConfig(), path_like) == config


@pytest.mark.parametrize(
    ("count", "others", "jobs", "sizes"),
    [
        (8, 0, 2, [4, 4]),
        (40, 0, 2, [10, 10, 10, 10]),
        (5, 5, 2, [5, 5]),
        (3, 1, 8, [1, 1, 1, 1]),
        (40, 0, 1, [14, 13, 13]),
        (0, 0, 2, []),
    ],
)
def test_groups(count: int, others: int, jobs: int, sizes: list[int]) -> None:
    """At most 16 of one shape a group, as many groups as keep all jobs busy, the longest first."""
    seeds = {Path(f"a{i}"): TrainConfig(seed=i, lr=0.1 * i) for i in range(count)}
    seeds |= {Path(f"b{i}"): TrainConfig(seed=i, hidden=9) for i in range(others)}
    groups = balanced(seeds, jobs)
    assert [len(group) for group in groups] == sizes
    assert {path for group in groups for path in group} == set(seeds)
    assert all(len({config.hidden for config in group.values()}) == 1 for group in groups)
    assert not others or next(iter(groups[0].values())).hidden == 512


def test_what_is_finished_is_left_alone(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A repeated sweep changes no byte; where a run and an analysis are missing, it makes these alone."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    before = files(tmp_path)
    assert cli.run(arguments(tmp_path, LONG)) == 0
    assert files(tmp_path) == before
    lines = capsys.readouterr().out.splitlines()
    runs = sweep_runs(SweepConfig(**LONG), tmp_path)
    assert [line.split(": ")[0] for line in lines] == [str(run.path) for run in runs]
    assert re.fullmatch(r".*h5: 1500 steps; train 99 % at step \d+; test 95 %: not reached", lines[0])
    gone = [runs[0].path, runs[0].hessian[""], runs[5].hessian["end"]]
    for path in gone:
        path.unlink()
    assert cli.run(arguments(tmp_path, LONG)) == 0
    after = files(tmp_path)
    assert after.keys() == before.keys()
    assert {n for n in before if before[n] != after[n]} == {str(path.relative_to(tmp_path)) for path in gone}


def test_json_is_one_document(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels, file, thresholds and Hessian files of every run, from a sweep that is finished already."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    assert cli.run(arguments(tmp_path, LONG, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"runs", "unconverged", "failures"}
    runs = sweep_runs(SweepConfig(**LONG), tmp_path)
    assert [entry["labels"] for entry in document["runs"]] == [run.labels for run in runs]
    assert [entry["path"] for entry in document["runs"]] == [str(run.path) for run in runs]
    assert document["runs"][5]["hessian"]["end"] == str(runs[5].hessian["end"])
    assert (document["runs"][0]["steps"], document["runs"][0]["grok_step"]) == (1500, None)
    assert (document["unconverged"], document["failures"]) == ([], [])


# --- kills ----------------------------------------------------------------------------------------------------


def start(folder: Path) -> subprocess.Popen[str]:
    """The sweep LONG in a process group of its own, as a terminal starts it."""
    command = [sys.executable, "-m", "landscape", *arguments(folder, LONG)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def in_training(run: SweepRun) -> bool:
    """Whether a run has begun in earnest."""
    if not run.path.exists():
        return False
    with RunReader(run.path) as reader:
        return len(reader.steps) > 15


def descendants(pid: int) -> list[int]:
    """The processes that a process started and that still are."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return found


def never_sees_ctrl_c(pid: int) -> bool:
    """Whether SIGINT is blocked or ignored in a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [int(mask, 16) for mask in re.findall(r"^Sig(?:Blk|Ign):\s+(\w+)$", status, re.MULTILINE)]
    return any(mask & 1 << signal.SIGINT - 1 for mask in masks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, "running"), (signal.SIGINT, "interrupted"), (signal.SIGINT, "complete")],
    ids=["kill", "Ctrl-C in training", "Ctrl-C in analysis"],
)
def test_the_same_command_finishes_it(number: signal.Signals, status: str, whole: Path, tmp_path: Path) -> None:
    """Nothing of a killed sweep keeps running; repeated, it ends as an undisturbed one. Ctrl-C: 130, no traceback."""
    runs = sweep_runs(SweepConfig(**LONG), tmp_path)
    hessian = [path for run in runs for path in run.hessian.values()]
    process = start(tmp_path)
    wait_for(lambda: any(p.exists() for p in hessian) if status == "complete" else in_training(runs[0]))
    workers = descendants(process.pid)
    assert len(workers) >= 2
    assert all(map(never_sees_ctrl_c, workers))
    # A terminal sends Ctrl-C to all processes of the group.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    out, err = process.communicate()
    assert process.returncode == (130 if number == signal.SIGINT else -9)
    assert out == ""
    assert err == (
        "interrupted: the same command resumes (`landscape train` with --resume)\n" if number == signal.SIGINT else ""
    )
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    begun = {run.path: inspect(run.path) for run in runs if run.path.exists()}
    assert begun[runs[0].path].status == status
    assert number == signal.SIGKILL or not list(tmp_path.rglob("*.lock"))
    assert not all(path.exists() for path in hessian)
    assert cli.run(arguments(tmp_path, LONG)) == 0
    same_sweep(tmp_path, whole)
    for path, state in begun.items():
        # A file without a checkpoint has nothing to go on from.
        assert not state.steps or inspect(path).attributes["run_id"] == state.attributes["run_id"], (
            "resumed, not started again"
        )


def test_ctrl_c_while_the_workers_start(tmp_path: Path) -> None:
    """Also then no traceback, no process and no lock is left."""
    process = start(tmp_path)
    wait_for(lambda: len(descendants(process.pid)) > 1)
    workers = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate() == (
        "",
        "interrupted: the same command resumes (`landscape train` with --resume)\n",
    )
    assert process.returncode == 130
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert not list(tmp_path.rglob("*.h5*"))


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_else(tmp_path: Path) -> None:
    """The runs of a worker that dies are resumed one by one; one that dies alone is reported, no other."""
    runs = sweep_runs(SweepConfig(**LONG), tmp_path)
    process = start(tmp_path)
    wait_for(lambda: in_training(runs[0]))
    first = json.loads(owner(runs[0].path))["pid"]
    os.kill(first, signal.SIGKILL)

    def alone() -> bool:
        holder = owner(runs[0].path)
        return holder.startswith("{") and json.loads(holder)["pid"] != first

    wait_for(alone)
    os.kill(json.loads(owner(runs[0].path))["pid"], signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 1
    assert out.count("1500 steps") == len(runs) - 1
    error, hint = err.splitlines()
    assert error == f"error: {runs[0].path}: its process ended with exit code -9"
    assert hint.startswith("hint: if memory ran out, use fewer --jobs")


def test_a_worker_that_is_told_to_stop_has_not_finished(tmp_path: Path) -> None:
    """A run that SIGTERM ended early is a failure that says where."""
    run = sweep_runs(SweepConfig(**LONG), tmp_path)[0]
    run.path.parent.mkdir()

    def stop() -> None:
        wait_for(lambda: in_training(run))
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    with pytest.raises(FileError, match=r"interrupted at step \d+"):
        _train({run.path: dataclasses.replace(run.config, steps=100_000)})


# --- errors ---------------------------------------------------------------------------------------------------


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
        ({"preset": "quikc"}, "base-s0: unknown preset 'quikc'", "did you mean quick?"),
        ({"train": {"lr": "fast"}}, "base-s0: lr cannot be 'fast'", "it takes float"),
        ({"train": {"train_fraction": 0.001, "p": 5}}, "train_fraction 0.001 of 25 pairs leaves none", "raise"),
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
        (
            {"train": {"model": "onehot"}, "hessian": [{"blocks": ["E"]}]},
            "the onehot model has no block 'E'",
            "known: W, V",
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
    found = capsys.readouterr().err
    assert error in found
    assert more or 'hint: write {"name": "ratios", "grid"' in found


def test_a_file_in_the_way(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run, an analysis or half a sweep of another config is an error before anything starts."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    runs = sweep_runs(SweepConfig(**LONG), tmp_path)
    runs[0].path.unlink()
    # The folder has the files of one sweep; each of these is another.
    lr = {**LONG, "train": {**LONG["train"], "lr": 0.02}}
    k = {**LONG, "hessian": [LONG["hessian"][0], {**LONG["hessian"][1], "k": 3}]}
    for sweep, error, hint in (
        (lr, f"{runs[1].path}: lr is 0.02, but the run was started with 0.01", "use --overwrite to start the sweep"),
        (LONG, f"{runs[0].hessian['']} exists", "use --overwrite to start the sweep anew, or another --out"),
        (k, f"{runs[0].hessian['']} exists", "use --overwrite to start the sweep anew, or another --out"),
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
    assert f"{runs[5].hessian['end']}: it was made with k 10, not 3" in capsys.readouterr().err
    with sole_writer(tmp_path / "long"):
        assert cli.run(arguments(tmp_path, LONG)) == 1
    assert f"{tmp_path / 'long'} is being written by another process" in capsys.readouterr().err


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


def test_not_converged_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A budget of products that is too small is named at the end; --overwrite makes all files anew."""
    lanczos = {"steps": "20", "blocks": ["all"], "method": "lanczos", "max_products": 8, "tol": 1e-12}
    sweep = {"train": SHORT, "hessian": [lanczos]}
    (run,) = sweep_runs(SweepConfig(**sweep), tmp_path)
    assert cli.run(arguments(tmp_path, sweep)) == 3
    assert f"{run.hessian['']}: not every eigenvalue converged" in capsys.readouterr().out
    with RunReader(run.path) as reader:
        before = reader.attrs["run_id"]
    sweep = {"train": {**SHORT, "lr": 0.5}, "hessian": [{"steps": "0", "blocks": ["E"]}]}
    assert cli.run(arguments(tmp_path, sweep, "--overwrite")) == 0
    with RunReader(run.path) as reader:
        assert (reader.attrs["run_id"] != before, reader.config["lr"]) == (True, 0.5)
    assert HessianReader(run.hessian[""]).steps == [0]


def test_refined_points_are_those_of_landscape_critical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parameters, status and spectra alike; a search that was stopped is resumed, a finished one is kept."""
    smooth = {"activation": "tanh", "steps": 400, "checkpoint_every": 200, "weight_decay": 0.03}
    analysis = {"name": "saddle", "refine_from": 400, "objective": "regularised", "blocks": ["E,W"], "device": "cpu"}
    sweep = {"train": {**SHORT, **smooth}, "hessian": [analysis]}
    (run,) = sweep_runs(SweepConfig(**sweep), tmp_path)
    assert cli.run(arguments(tmp_path, sweep)) == 0
    ours, theirs = run.hessian["saddle"], tmp_path / "alone.h5"
    command = ["critical", "--ckpt", str(run.path), "--step", "400", "--blocks", "E,W", "--device", "cpu"]
    assert cli.run([*command, "--quiet", "--out", str(theirs)]) == 0
    assert served_hessian(ours) == served_hessian(theirs)
    one, two = (HessianReader(path).critical_point(400) for path in (ours, theirs))
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)
    before = ours.stat().st_mtime_ns
    assert cli.run(arguments(tmp_path, sweep)) == 0
    assert ours.stat().st_mtime_ns == before
    ours.unlink()

    def interrupted(*args: Any) -> CriticalPoint:
        *before, progress, hessian, state, save = args

        def press(*reached: Any) -> bool:
            os.kill(os.getpid(), signal.SIGINT)
            return bool(progress(*reached))

        return find_critical_point(*before, press, hessian, state, save)

    with monkeypatch.context() as context:
        context.setattr(landscape.analysis.critical, "find_critical_point", interrupted)
        assert cli.run([*command, "--quiet", "--out", str(ours)]) == 130
    assert "the same command with --resume continues" in capsys.readouterr().err
    assert HessianReader(ours).attrs["status"] == "running"
    assert cli.run(["info", str(ours)]) == 0
    assert "the same `landscape critical` command with --resume resumes it" in capsys.readouterr().out
    assert cli.run(arguments(tmp_path, sweep)) == 0
    assert HessianReader(ours).attrs["status"] == "complete"
    assert served_hessian(ours) == served_hessian(theirs)


def test_a_batch_larger_than_the_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Clipped with a warning, as by `train`; the finished run is known again."""
    sweep = {"train": {**SHORT, "batch_size": 999}}
    for _ in range(2):
        assert cli.run(arguments(tmp_path, sweep)) == 0
        assert capsys.readouterr().err == "warning: batch_size 999 exceeds the 29 training pairs; using 29\n"


def test_the_readme_has_a_sweep(tmp_path: Path) -> None:
    """The example is one that can be run."""
    (text,) = re.findall(r"```json\n(.*?)```", (Path(__file__).parents[2] / "README.md").read_text(), re.DOTALL)
    (tmp_path / "sweep.json").write_text(text)
    config = load_sweep(tmp_path / "sweep.json")
    assert len(sweep_runs(config)) == 12
    assert [analysis.name for analysis in config.analyses] == ["early"]
