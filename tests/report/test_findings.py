"""The sentences at the top of a report hold the files' numbers, and do not mention what was not measured."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import TINY
from helpers.hessians import analyse

from landscape import HessianConfig, Recorder, train
from landscape.cli import main as cli
from landscape.report.findings import findings
from landscape.report.numbers import numbers
from landscape.report.sources import Source, open_sources
from landscape.report.words import median_step, percent


def shown(value: float) -> str:
    text = f"{value:.3g}"
    return (f"{float(text):,.0f}" if "e+" in text else text).replace("-", "−")


def reaching(run: Path, memorised: int | None, grokked: int | None, label: str = "run") -> Source:
    """The run with these events, test accuracy 0.25 at its last step, 900, and no analysis."""
    metrics = pd.DataFrame({"step": [0, 900], "test_accuracy": [0.0, 0.25]})
    (source,) = open_sources([run])
    changes: dict[str, Any] = {"memorised": memorised, "grokked": grokked, "label": label}
    return dataclasses.replace(source, tables={"metrics": metrics}, **changes)


def test_they_hold_the_numbers_of_the_files(tiny_run: Path) -> None:
    """λ_min, count, level, ratio and sharpness at the chosen step, as HDF5 has them."""
    with h5py.File(tiny_run.with_name("tiny.hessian.h5")) as file, h5py.File(tiny_run) as run:
        at = file["step"][()].tolist().index(60)
        blocks, pairs = ([name.decode() for name in file[axis][()]] for axis in ("block", "pair"))
        _, negative, coupled, block, *curves, rates, sharpness = findings(open_sources([tiny_run]))
        assert negative.startswith("At the last analysed step, 60: E,W has λ_min")
        for pair in ("E,W", "W,V"):
            i, j = blocks.index(pair), pairs.index(pair)
            count = f"{file['inertia_lower'][at, i]} negative eigenvalues (certified)"
            assert f"{pair} has λ_min {shown(file['eigenvalues'][at, i, 0, 0])} and {count}" in negative
            ratio = f"{shown(file['coupling_ratios'][at, j, 0])} for {pair}"
            assert f"{ratio}, with {file['coupling_index'][at, j]} above 1" in coupled
        assert "its control W,V" in negative
        assert len(curves) == len(blocks)
        counts = file["index_curve_lower"][at, blocks.index("E,W")]
        assert f": the saddle index of E,W is {counts[8]} at τ = 1e-8 ‖H‖, and {counts[2]} at 1e-2" in curves[3]
        assert curves[0].endswith(f"the saddle index of E is {counts[0]} at every τ from 1e-2 to 1e-10 ‖H‖.")
        known = run["metrics/prop41_ratio"][1:]
        asked = f"lr_E/lr_W = {known[0]:.3g} at step 10 and {known[-1]:.3g} at step 60"
        assert f"{asked}; the ratio in use is 1." in rates
        limit = "times 38, the stable limit of full-batch Adam with β₁ = 0.9."
        assert f"sharpness is {file['sharpness_adam'][at] / 38:.3g} {limit}" in sharpness
        i = blocks.index("all")
        (lowest, highest), trace = file["eigenvalues"][at, i, :, 0], file["trace"][at, i]
        ends = f"block all has λ_max {shown(highest)} and λ_min {shown(lowest)}, with {file['inertia_lower'][at, i]} "
        assert ends in block
        assert f"trace {shown(trace)}. At step 0 it had λ_max {shown(file['eigenvalues'][0, i, 1, 0])}" in block


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ((200, 600), "reached 99 % training accuracy at step 200 and 95 % test accuracy at step 600, 400 steps later."),
        (
            (200, None),
            "reached 99 % training accuracy at step 200 but not 95 % test accuracy by step 900, "
            "where test accuracy is 0.25.",
        ),
        (
            (None, None),
            "did not reach 99 % training accuracy nor 95 % test accuracy by step 900, where test accuracy is 0.25.",
        ),
        ((None, 600), "did not reach 99 % training accuracy but reached 95 % test accuracy at step 600."),
    ],
)
def test_when_it_memorised_and_grokked(events: tuple[int | None, int | None], sentence: str, tiny_run: Path) -> None:
    """And nothing of what was not measured."""
    assert findings([reaching(tiny_run, *events)]) == [f"run {sentence}"]


def test_several_runs_are_counted(tiny_run: Path) -> None:
    """A run that never grokked is later than all others."""
    events = [(100, 300), (200, 700), (300, None)]
    runs = [reaching(tiny_run, *steps, str(i)) for i, steps in enumerate(events)]
    counted = "3 of 3 runs reached 99 % training accuracy and 2 reached 95 % test accuracy."
    assert findings(runs) == [f"{counted} The median step of 95 % test accuracy is 700 (300 to never)."]
    assert "median" not in findings(runs[1:])[0]
    assert median_step([300, None]) == median_step([None]) == math.inf
    assert median_step([300, 400]) == 350


def test_a_run_that_diverged(tmp_path: Path) -> None:
    """At the step that `landscape train` names."""
    path = tmp_path / "wild.h5"
    summary = train(dataclasses.replace(TINY, lr=1e30), path, quiet=True)
    said = findings(open_sources([path]))[0]
    assert said.startswith("wild (seed 0) did not reach 99 % training accuracy; it diverged at step ")
    assert f"at step {summary.diverged_step}, where its loss or a parameter is not finite." in said


def test_the_plateau_is_where_the_curvature_is_read(tiny_run: Path) -> None:
    """The middle on a log scale of memorising and grokking chooses among steps 0, 20 and 60; else it is the last."""
    (source,) = open_sources([tiny_run])
    for memorised, grokked, step, where in (
        (15, 30, 20, "On the plateau, at step 20"),
        (50, None, 60, "On the plateau, at step 60"),
        (30, 50, 20, "At step 20, nearest to the plateau"),
        (None, None, 60, "At the last analysed step, 60"),
    ):
        one = numbers(dataclasses.replace(source, memorised=memorised, grokked=grokked))
        assert (one.step, one.where) == (step, where)
    table = source.tables["by_step"]
    alone = dataclasses.replace(source, tables={**source.tables, "by_step": table[table["step"] == 20]})
    for memorised, where in ((15, "On the plateau, at step 20"), (30, "At step 20"), (None, "At step 20")):
        assert numbers(dataclasses.replace(alone, memorised=memorised, grokked=50)).where == where


def test_what_is_a_bound_is_called_one(tiny_run: Path) -> None:
    """A search that did not converge, a count between bounds, a ratio whose error nothing bounds."""
    (source,) = open_sources([tiny_run])
    tables = {name: table.copy() for name, table in source.tables.items()}
    ends, blocks, ratios = (tables[f"by_step_{axes}"] for axes in ("block_end_rank", "block", "pair_rank"))
    ends.loc[ends["block"] == "E,W", "converged"] = 0
    at = (blocks["block"] == "E,W") & (blocks["step"] == 60)
    (count,) = blocks.loc[at, "inertia_lower"]
    blocks.loc[at, "inertia_upper"] = count + 5
    blocks.loc[at, "inertia_level"] = "bracketed"
    ratios["coupling_ratio_error"] = np.nan
    _, negative, coupled, *_ = findings([dataclasses.replace(source, tables=tables)])
    assert "E,W has λ_min at most −" in negative
    assert f"between {count} and {count + 5} negative eigenvalues (bracketed)" in negative
    assert "is at least " in coupled


def test_an_analysis_without_the_pair_is_not_counted(tiny_run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.h5"
    train(dataclasses.replace(TINY, seed=7), other, quiet=True)
    analyse(other, HessianConfig(blocks=("E", "W"), steps="20", k=1, probes=2, device="cpu"), quiet=True)
    negative = findings(open_sources([tiny_run, other]))[1]
    assert negative.startswith("At the last step of 2 analyses: E,W (in 1 of 2) has")


def test_another_network_is_described_by_what_was_measured(users_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """λ, index and trace of its blocks as in the file; nothing of a plateau, a control or Proposition 4.1."""
    command = ["hessian", "run.h5", "--problem", "mine.py:problem", "--steps", "0,9", "--quiet"]
    assert cli.run([*command, "--blocks", "all", "first", "last", "first,last"]) == 0
    sources = open_sources(["run.h5"])
    said = findings(sources)
    with h5py.File("run.hessian.h5") as file:
        blocks = [name.decode() for name in file["block"][()]]
        i, j = blocks.index("all"), blocks.index("first,last")
        lowest, highest = file["eigenvalues"][-1, i, :, 0]
        assert any(
            line.startswith(
                f"At the last analysed step, 9: block all has λ_max {shown(highest)} and λ_min {shown(lowest)}"
            )
            for line in said
        )
        assert any(f"first,last has λ_min {shown(file['eigenvalues'][-1, j, 0, 0])}" in line for line in said)
    assert not [line for line in said if any(word in line for word in ("plateau", "control", "4.1", "grok", "99 %"))]


def test_recorded_metrics(tmp_path: Path) -> None:
    """By the usual names of accuracies, each at its own last step; runs that may differ in more are not pooled."""
    for seed in (1, 2):
        with Recorder(
            tmp_path / f"{seed}.h5", torch.nn.Linear(2, 1), seed=seed, metrics=("loss", "valAcc")
        ) as recorder:
            recorder.checkpoint(0)
            recorder.metrics(5, loss=2.0 * seed)
            recorder.metrics(7, valAcc=0.5)
    paths = [tmp_path / f"{seed}.h5" for seed in (1, 2)]
    assert findings(open_sources(paths[:1])) == ["Last recorded: valAcc 0.5 (step 7), loss 2 (step 5)."]
    assert findings(open_sources(paths)) == ["Last recorded: valAcc 0.5 (step 7), loss 3 (2 to 4) (step 5)."]
    with Recorder(tmp_path / "3.h5", torch.nn.Linear(2, 1)) as recorder:
        recorder.checkpoint(0)
    with Recorder(tmp_path / "4.h5", torch.nn.Linear(2, 1)) as recorder:
        recorder.checkpoint(0)
    apart = open_sources([tmp_path / "3.h5", tmp_path / "4.h5"])
    assert len({source.setting for source in apart}) == 2
    assert findings(apart[:1]) == [
        "Nothing is recorded but checkpoints: `landscape hessian` measures the curvature there."
    ]


def test_a_loss_that_is_not_the_recorded_one(tiny_run: Path) -> None:
    """More than 1 % is said with both losses and the step; NaN is not known."""
    (source,) = open_sources([tiny_run])
    table = source.tables["by_step"].copy()
    loss = float(table["train_loss"].iloc[-1])
    for recorded, is_said in ((2 * loss, True), (loss * 1.005, False), (math.nan, False)):
        table["recorded_loss"] = [*table["train_loss"].iloc[:-1], recorded]
        (*_, last) = findings([dataclasses.replace(source, tables={**source.tables, "by_step": table})])
        assert last.startswith("The measured data give another loss") == is_said
        assert (f"{loss:.4g} against {recorded:.4g} at step 60." in last) == is_said


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.0004, "< 1 %"), (0.4, "40 %"), (0.994, "99 %"), (0.9996, "> 99 %"), (1.0, "100 %")],
)
def test_a_rounded_share_is_not_exact(share: float, text: str) -> None:
    """0 % and 100 % are those alone."""
    assert percent(share) == text
