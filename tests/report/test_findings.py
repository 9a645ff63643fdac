"""The sentences at the top of a report hold the files' numbers, and do not mention what was not measured."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
from conftest import TINY
from helpers.hessians import refine

from landscape.cli import main as cli
from landscape.config import AnalysisConfig
from landscape.files.inspect import repair
from landscape.report.figures.numbers import asked_of_rates, chosen_step, median_step, numbers
from landscape.report.figures.sources import Source, open_sources
from landscape.report.figures.training import training_curves
from landscape.report.findings import _couplings, findings
from landscape.training.loop import train


def reaching(run: Path, memorised: int | None, grokked: int | None, label: str = "run") -> Source:
    """The run with accuracies that reach the two events at these steps, of 0 to 900, and no Hessian file."""
    (source,) = open_sources([run])
    steps = np.arange(0, 901, 100)
    shares = {
        name: ("metric_step", np.where(steps >= (at or math.inf), 1.0, 0.25))
        for name, at in (("train_accuracy", memorised), ("test_accuracy", grokked))
    }
    source = dataclasses.replace(source, run=source.run and source.run.with_name(f"{label}.h5"), hessian=None)
    source.__dict__.update(
        metrics=xarray.Dataset(shares, {"metric_step": steps}),
        measured=xarray.Dataset(),
        run_attrs={**open_sources([run])[0].run_attrs, "run_id": label},
        hessian_attrs={},
        unrecorded=[],
    )
    return source


def test_they_hold_the_numbers_of_the_files(tiny_run: Path) -> None:
    """Depth, index, level, tolerance, ratio and sharpness at the chosen step, as HDF5 has them."""
    with h5py.File(tiny_run.with_name("tiny.hessian.h5")) as file, h5py.File(tiny_run) as run:
        at = file["step"][()].tolist().index(60)
        blocks, pairs = ([name.decode() for name in file[axis][()]] for axis in ("block", "pair"))
        _, depths, couplings, block, rates, sharpness = findings(open_sources([tiny_run]))
        for pair in ("E,W", "W,V"):
            i, j = blocks.index(pair), pairs.index(pair)
            lowest, count = file["eigenvalues"][at, i, 0, 0], file["inertia_lower"][at, i]
            told = f"{pair} is curved down to {lowest:.3g} in {count} directions (certified, τ "
            assert told.replace("-", "−") in depths
            assert f"{file['inertia_tolerance'][at, i]:.2g}".replace("-", "−") in depths
            assert f"{file['coupling_ratios'][at, j, 0]:.3g} for {'its control ' * (pair == 'W,V')}{pair}" in couplings
            assert f"with {file['coupling_index'][at, j]} above 1" in couplings
        assert depths.startswith("At the last analysed step, 60, E,W is curved down")
        known = run["metrics/prop41_ratio"][1:]
        assert f"lr_E/lr_W = {known[0]:.3g} at step 10 and {known[-1]:.3g} at step 60; 1 was in use" in rates
        limit = "times 38, the stable limit of full-batch Adam with β₁ = 0.9"
        assert f"sharpness is {file['sharpness_adam'][at] / 38:.3g} {limit}" in sharpness
        i = blocks.index("all")
        (lowest, highest), trace = file["eigenvalues"][at, i, :, 0], file["trace"][at, i]
        told = f"block all has λ_max {highest:.3g}, λ_min {lowest:.3g}, saddle index {file['inertia_lower'][at, i]} "
        assert told.replace("-", "−") in block
        assert f"trace {trace:.3g}; at step 0 it had λ_max {file['eigenvalues'][0, i, 1, 0]:.3g}" in block


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (
            (200, 600),
            "at step 200 (99 % of the training set) and grokked at step 600 (95 % of the test set), 400 steps",
        ),
        (
            (200, None),
            "at step 200 (99 % of the training set) and did not grok by step 900: its test accuracy is 0.25.",
        ),
        ((None, None), "did not memorise and did not grok by step 900: its test accuracy is 0.25."),
    ],
)
def test_when_it_memorised_and_grokked(events: tuple[int | None, int | None], sentence: str, tiny_run: Path) -> None:
    """And nothing of what was not measured."""
    (first,) = findings([reaching(tiny_run, *events)])
    assert first.startswith("run (seed 0) ")
    assert sentence in first


def test_a_run_that_diverged(tiny_run: Path, tmp_path: Path) -> None:
    """At the step that `landscape train` names; it is counted among several."""
    path = tmp_path / "wild.h5"
    summary = train(dataclasses.replace(TINY, lr=1e30), path, quiet=True)
    ended = f"diverged at step {summary.diverged_step}"
    said = findings(open_sources([path]))[0]
    assert said == f"wild (seed 0) did not memorise and {ended}, where its loss or a parameter is not finite."
    said = findings([*open_sources([path]), reaching(tiny_run, 200, 600)])[0]
    assert "1 grokked" in said
    assert f"; 1 diverged, at step {summary.diverged_step}" in said


@pytest.mark.parametrize(("lost", "steps"), [([30], "30"), ([20, 40, 60], "20 and 1 more of its schedule")])
def test_rows_of_metrics_that_damage_took_are_told(
    lost: list[int], steps: str, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An event may have been there; nothing of the end, as the last row that is left says how far the run is known."""
    with h5py.File(run_file, "r+") as file:
        losses = file["metrics/train_loss"]
        for step in lost:
            losses[step // 10] += 1
    told = f"no metrics at step {steps}, where an event may have been."
    for repaired in (False, True):
        if repaired:
            repair(run_file)
        sources = open_sources([run_file])
        assert findings(sources)[0].endswith(f" run (seed 0) has {told}")
        assert told in training_curves(sources).caption
    assert f"by step {50 if 60 in lost else 60}" in findings(sources)[0]
    capsys.readouterr()
    assert cli.run(["compare", str(run_file)]) == 0
    assert f"note: run (seed 0) has {told.rstrip('.')}\n" in capsys.readouterr().err
    # The steps that are made again with the end of the run are lost no more.
    again = sorted(set(lost) - {60})
    assert cli.run(["train", "--out", str(run_file), "--resume", "--quiet"]) == 0
    more = f" and {len(again) - 1} more of its schedule" if len(again) > 1 else ""
    assert f"; no metrics at step {again[0]}{more}, where an event may have been\n" in capsys.readouterr().out


def test_several_runs_are_counted(tiny_run: Path) -> None:
    """A run that never grokked is later than all others."""
    events = [(100, 300), (200, 700), (300, None)]
    runs = [reaching(tiny_run, *steps, str(i)) for i, steps in enumerate(events)]
    assert findings(runs)[0].startswith(
        "Of 3 runs 3 memorised, at step 200 in the median and 2 grokked, at step 700 in the median "
    )
    assert findings(runs[1:])[0].count("at step never") == 0
    assert median_step([300, None]) == median_step([None]) == float("inf")
    assert median_step([300, 400, None, None]) == float("inf")
    assert median_step([300, 400]) == 350


def test_counts_that_are_not_certified_are_told(tiny_run: Path) -> None:
    """Of three runs one has no certified number of ratios above 1; of one run that has none nothing is counted."""
    (source,) = open_sources([tiny_run])
    known = numbers(source)
    unknown = dataclasses.replace(
        known, pairs={name: dataclasses.replace(pair, above=math.nan) for name, pair in known.pairs.items()}
    )
    count = known.pairs["E,W"].above
    for runs, said in (
        ([known, unknown, known], f"E,W, with {count:.0f} above 1 (certified in 2 of 3), and"),
        ([known, known], f"E,W, with {count:.0f} above 1, and"),
        ([unknown], "E,W, with an uncertified number above 1, and"),
    ):
        assert said in _couplings(runs, [])


def test_the_plateau_is_where_the_curvature_is_told(tiny_run: Path, tmp_path: Path) -> None:
    """The middle on a log scale of memorising and grokking chooses among steps 0, 20 and 60; else it is the last."""
    (source,) = open_sources([tiny_run])
    assert chosen_step(source, 15, 30, 60) == (20, "on the plateau, at step 20")
    assert chosen_step(source, 50, None, 60) == (60, "on the plateau, at step 60")
    assert chosen_step(source, 30, 50, 60) == (20, "at step 20, of those analysed the nearest to the plateau")
    assert chosen_step(source, None, None, 60) == (60, "at the last analysed step, 60")
    alone = Path(shutil.copy(tiny_run.with_name("tiny.hessian.h5"), tmp_path / "moved.hessian.h5"))
    known = findings(open_sources([alone]))
    assert known[0] == findings([source])[1]
    assert not any("grok" in one for one in known)


def test_refined_points_are_found_beside_their_run(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is named. Without other analyses they are what is told."""
    shutil.copy(tiny_run, tmp_path)
    monkeypatch.chdir(tmp_path)
    run, point = Path("tiny.h5"), Path("tiny.critical-20.h5")
    refine(run, 20, AnalysisConfig(device="cpu", k=2), max_products=300, quiet=True)
    for files in ([run], [tmp_path / run], [run, tmp_path / point]):
        sources = open_sources(files)
        assert [s.path.name for s in sources] == [run.name, point.name]
    with h5py.File(point) as file:
        depth = file["eigenvalues"][0, [name.decode() for name in file["block"]].index("E,W"), 0, 0]
    _, depths, couplings, *_ = findings(sources)
    assert depths.startswith(f"At the point refined from step 20, E,W is curved down to {depth:.3g}".replace("-", "−"))
    assert "for E,W" in couplings


def test_a_ratio_known_at_one_step_is_told_once() -> None:
    """Both ends where they differ."""
    once = asked_of_rates([(4.76, 4.76)], [(20, 20)], [1.0])
    assert once == "Proposition 4.1 asks for lr_E/lr_W = 4.76 at step 20; 1 was in use"
    both = asked_of_rates([(4.76, 2.0)], [(20, 40)], [1.0])
    assert "4.76 at step 20 and 2 at step 40; " in both
