"""Sweeps of real small runs in worker processes: names, skipping, messages and exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.faults import served_hessian
from helpers.run_files import same_run
from helpers.sweeps import LONG, SHORT, arguments, files

import landscape.measure.critical
from landscape.cli import main as cli
from landscape.config import TrainConfig, to_json
from landscape.curvature.critical import CriticalPoint, find_critical_point
from landscape.files.hessians import HessianReader
from landscape.files.inspect import inspect
from landscape.files.runs import RunReader
from landscape.jobs.plan import DEFINITION, SweepConfig, load_sweep, sweep_runs
from landscape.training.ensemble import balanced
from landscape.training.loop import train


@pytest.mark.long
def test_the_product_and_its_names(whole: Path) -> None:
    """Cases x grid x seeds in order, a file each, analyses where they are asked for, and nothing beside."""
    runs = sweep_runs(SweepConfig(**LONG), whole)
    stems = [f"{case}-lr_ratio=0.5-bias=true-s{s}" for case in ("base", "wide") for s in (0, 3)]
    assert [run.path for run in runs] == [whole / "long" / f"{stem}.h5" for stem in stems]
    assert runs[1].labels == {"case": "base", "lr_ratio": 0.5, "bias": True, "seed": 3}
    assert [list(run.hessian) for run in runs] == [[""], [""], [""], ["", "end"]]
    assert runs[3].hessian["end"] == whole / "long" / f"{stems[3]}.hessian-end.h5"
    names = {path.name for run in runs for path in (run.path, *run.hessian.values())}
    assert {path.name for path in (whole / "long").iterdir()} == names | {DEFINITION}
    assert sweep_runs(load_sweep(whole / "long" / DEFINITION), whole) == runs
    for run in runs:
        with RunReader(run.path) as reader:
            assert reader.config == json.loads(to_json(run.config))
            assert reader.attrs["status"] == "complete"
        assert (run.config.hidden, run.config.lr_ratio) == (12 if run.labels["case"] == "wide" else 8, 0.5)
        assert HessianReader(run.hessian[""]).steps == [0, 20, 1500]
        assert not inspect(run.hessian[""]).notes[1:], "its run file is found beside it"
    assert HessianReader(runs[3].hessian["end"]).blocks == ["all"]
    grid = {"lr_ratio": [1, 0.5], "bias": [True, False]}
    planned = sweep_runs(SweepConfig(**{**LONG, "grid": grid}), whole)
    assert [tuple(run.labels.values()) for run in planned] == [
        (case, ratio, bias, seed)
        for case in ("base", "wide")
        for ratio in (1, 0.5)
        for bias in (True, False)
        for seed in (0, 3)
    ]


def test_each_run_is_the_run_alone(whole: Path, tmp_path: Path) -> None:
    """Trained in a worker beside others, a run is what `train` makes of its config."""
    run = sweep_runs(SweepConfig(**LONG), whole)[2]
    train(run.config, tmp_path / "alone.h5", quiet=True)
    same_run(run.path, tmp_path / "alone.h5", 1e-6)


def test_values_as_names() -> None:
    """Every value of the grid has its own text, without a space or a quote."""
    grid = {"checkpoint_at": [[], [3, 5]], "lr": [1e-5, 0.1], "test_fraction": [None], "batch_size": ["full"]}
    runs = sweep_runs(SweepConfig(name="n", grid=grid, seeds=(7,)), Path("o"))
    assert runs[0].path == Path("o/n/base-checkpoint_at=-lr=1e-05-test_fraction=null-batch_size=full-s7.h5")
    assert runs[3].path == Path("o/n/base-checkpoint_at=3+5-lr=0.1-test_fraction=null-batch_size=full-s7.h5")
    assert runs[3].config.checkpoint_at == (3, 5)


def test_paths_as_names() -> None:
    """A grid over texts leads out of no folder and to one file each, whatever their names hold."""
    texts = ["../a.txt", "..%2Fa.txt", "/b c|*[é].txt", "a\nb", "\udce9", "corpus.txt"]
    runs = sweep_runs(SweepConfig(name="n", train={"task": "text"}, grid={"text": texts}), Path("o"))
    assert [run.config.text for run in runs] == texts
    names = ["..%2Fa.txt", "..%252Fa.txt", "%2Fb%20c%7C%2A%5B%C3%A9%5D.txt", "a%0Ab", "%ED%B3%A9", "corpus.txt"]
    assert [run.path for run in runs] == [Path(f"o/n/base-text={name}-s0.h5") for name in names]


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


@pytest.mark.usefixtures("without_workers")
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
    gone = [runs[0].path, runs[0].hessian[""], runs[3].hessian["end"]]
    for path in gone:
        path.unlink()
    assert cli.run(arguments(tmp_path, LONG)) == 0
    after = files(tmp_path)
    assert after.keys() == before.keys()
    assert {n for n in before if before[n] != after[n]} == {str(path.relative_to(tmp_path)) for path in gone}


def test_what_a_killed_sweep_left_is_removed(whole: Path, tmp_path: Path) -> None:
    """Half of a definition under its temporary name, but no file of another program that bears such a name."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    before = files(tmp_path)
    mine, ours = (tmp_path / "long" / f".{DEFINITION}.{number}.landscape.tmp" for number in (77, 78))
    mine.write_text("mine")
    ours.write_text('{"name": "lo')
    assert cli.run(arguments(tmp_path, LONG)) == 0
    assert mine.read_text() == "mine"
    mine.unlink()
    assert files(tmp_path) == before


def test_json_is_one_document(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels, file, thresholds and Hessian files of every run, from a sweep that is finished already."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    assert cli.run(arguments(tmp_path, LONG, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"runs", "unconverged", "failures"}
    runs = sweep_runs(SweepConfig(**LONG), tmp_path)
    assert [entry["labels"] for entry in document["runs"]] == [run.labels for run in runs]
    assert [entry["path"] for entry in document["runs"]] == [str(run.path) for run in runs]
    assert document["runs"][3]["hessian"]["end"] == str(runs[3].hessian["end"])
    assert (document["runs"][0]["steps"], document["runs"][0]["grok_step"]) == (1500, None)
    assert (document["unconverged"], document["failures"]) == ([], [])


@pytest.mark.usefixtures("without_workers")
def test_not_converged_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A budget of products that is too small is named at the end; --overwrite makes all files anew."""
    lanczos = {"steps": "20", "blocks": ["all"], "method": "lanczos", "max_hvps": 8, "rtol": 1e-12}
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


@pytest.mark.usefixtures("without_workers")
@pytest.mark.long
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
        context.setattr(landscape.measure.critical, "find_critical_point", interrupted)
        assert cli.run([*command, "--quiet", "--out", str(ours)]) == 130
    assert "interrupted: the same command resumes" in capsys.readouterr().err
    assert HessianReader(ours).attrs["status"] == "running"
    assert cli.run(["info", str(ours)]) == 0
    assert "the same `landscape critical` command resumes it" in capsys.readouterr().out
    assert cli.run(arguments(tmp_path, sweep)) == 0
    assert HessianReader(ours).attrs["status"] == "complete"
    assert served_hessian(ours) == served_hessian(theirs)


@pytest.mark.usefixtures("without_workers")
def test_a_batch_larger_than_the_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Clipped with a warning, as by `train`; the finished run is known again."""
    sweep = {"train": {**SHORT, "batch_size": 999}}
    for _ in range(2):
        assert cli.run(arguments(tmp_path, sweep)) == 0
        assert capsys.readouterr().err == "warning: batch_size 999 exceeds the 29 training pairs; using 29\n"


def test_the_guides_have_a_sweep(tmp_path: Path) -> None:
    """The example is one that can be run."""
    (text,) = re.findall(r"```json\n(.*?)```", (Path(__file__).parents[2] / "docs/how-to.md").read_text(), re.DOTALL)
    (tmp_path / "sweep.json").write_text(text)
    config = load_sweep(tmp_path / "sweep.json")
    assert len(sweep_runs(config)) == 12
    assert [analysis.name for analysis in config.analyses] == ["early"]
