"""The verdicts on Mechanism 2: events are found where they were put, and each rule's verdict flips with the data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import c4_saddles
import c5_heterogeneity
import c6_events
import c6_measures
import evidence
import h5py
import intervals
import numpy as np
import pandas as pd
import pytest

from landscape.plotting import style

STEPS = np.array([0, 1, 2, 4, 8, 16, 32, 64, 128, 256])


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals good enough for data without noise, in a fraction of the time."""
    monkeypatch.setattr(intervals, "RESAMPLES", 100)


def judgements(verdicts: list[evidence.Verdict]) -> dict[str, str]:
    """Judgement by statement."""
    return {verdict.statement: verdict.judgement for verdict in verdicts}


# --- phases and rules -----------------------------------------------------------------------------------------


def test_phases_begin_at_the_nearest_checkpoint() -> None:
    found = evidence.phases(STEPS, 30.0, 100.0)
    assert found == ["start"] + ["memorising"] * 5 + ["plateau"] * 2 + ["grokked"] * 2
    assert evidence.phases(STEPS, np.nan, np.nan) == ["start"] + ["memorising"] * 9
    assert evidence.phases(STEPS, 30.0, np.nan)[-1] == "plateau"


def test_an_interval_across_the_threshold_decides_nothing() -> None:
    assert intervals.above((1.5, 1.1, 2.0), 1.0) == "supported"
    assert intervals.above((0.5, 0.1, 0.9), 1.0) == "not supported"
    assert intervals.above((1.0, 0.9, 1.1), 1.0) == "undecided"
    assert intervals.above((1.0, np.nan, np.nan), 1.0) == "undecided"
    # One that touches it does not lie above.
    assert intervals.above((1.5, 1.0, 2.0), 1.0) == intervals.above((0.5, 0.1, 1.0), 1.0) == "undecided"


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (("supported", "supported"), "supported"),
        (("supported", "undecided"), "undecided"),
        (("not supported", "undecided"), "not supported"),
    ],
)
def test_a_conjunction_fails_with_one_part(parts: tuple[Any, Any], whole: str) -> None:
    assert intervals.all_of(*parts) == whole


# --- C6: events -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([1, 1, 2, 3, 5, 9, 7, 4, 2, 1], 16),
        ([1, 99, 1, 2, 4, 9, 7, 4, 2, 1], 16),  # one checkpoint alone is no peak
        ([1, 2, 9, 9, 9, 4, 3, 2, 1, 1], 8),  # the last of a level maximum
        ([9, 8, 7, 6, 5, 4, 3, 2, 1, 1], 0),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 256),
    ],
)
def test_a_fall_starts_at_the_last_maximum(values: list[float], step: float) -> None:
    assert c6_measures.fall(STEPS, values) == step


def test_the_second_reading_skips_a_fall_from_the_initial_point() -> None:
    values = [50, 40, 10, 5, 5, 8, 20, 20, 6, 2]
    assert c6_measures.fall(STEPS, values) == 0
    assert c6_measures.last_fall(STEPS, values) == 64
    assert np.isnan(c6_measures.last_fall(STEPS, np.linspace(2.0, 1.0, len(STEPS))))
    ripple = [50, 40, 10, 5, 5, 5.5, 5.6, 5.5, 5, 2]
    assert np.isnan(c6_measures.last_fall(STEPS, ripple))


def test_the_steepest_fall_is_between_the_checkpoints_around_it() -> None:
    values = [1, 1, 2, 4, 8, 7, 6, 1, 0.9, 0.8]
    assert c6_measures.steepest(STEPS, values) == pytest.approx(np.sqrt(32 * 64))


def events(train: float, test: float, fall_W: float, fall_E: float) -> pd.DataFrame:
    """Five runs with these events, a few per cent apart; a NaN stays one."""
    rows = {"train": train, "test": test, "fall_W": fall_W, "fall_E": fall_E}
    spread = np.array([0.96, 0.98, 1.0, 1.02, 1.04])
    table = pd.DataFrame({name: value * spread for name, value in rows.items()})
    return table.assign(case="c1", seed=range(5), last=6000.0)


def test_events_that_come_together_are_told_from_those_that_do_not() -> None:
    said = judgements(c6_events.verdicts(events(400, 2000, 300, 1800)))
    assert set(said.values()) == {"supported"}
    said = judgements(c6_events.verdicts(events(400, 2000, 1800, 300)))
    assert set(said.values()) == {"not supported"}
    said = judgements(c6_events.verdicts(events(400, 2000, 300, 300)))
    assert said["E's top eigenvalue starts to fall after W's"] == "undecided"
    assert said["Test accuracy has risen when E's top eigenvalue starts to fall"] == "not supported"


def test_runs_that_never_got_there_are_censored() -> None:
    table = events(400, 2000, 300, 1800)
    table.loc[2:, "test"] = np.nan
    median, _, high = c6_measures.over(table, "test", "fall_E")
    assert np.isinf(median)
    assert np.isinf(high)
    name = "Test accuracy has risen when E's top eigenvalue starts to fall"
    assert judgements(c6_events.verdicts(table))[name] == "undecided"
    # Where a late event is makes no difference to which of two early falls is nearer.
    gaps = c6_measures.nearer(table, "test", "E", "W")
    np.testing.assert_allclose(gaps[2:], np.log2(1800 / 300))


def test_order_names_what_is_simultaneous() -> None:
    row = pd.Series({"fall_W": 8.0, "train": 16.0, "fall_E": 8.0, "test": np.nan})
    assert c6_measures.order(row) == "W falls = E falls < training done"


# --- C5: curvature ratio --------------------------------------------------------------------------------------


def curves(adam: float, adam_lr: float) -> pd.DataFrame:
    """Ratios, constant over a run, of five seeds of both optimisers."""
    rows = []
    for case, ratio in (("c1", adam), ("c10", adam_lr)):
        for seed in range(5):
            phases = evidence.phases(STEPS, 30.0, 100.0)
            r = ratio * (1 + 0.01 * seed)
            for block, top in (("W", r), ("E", 1.0)):
                table = pd.DataFrame({"step": STEPS, "phase": phases, "lambda_max": top, "curvature_ratio": r})
                rows.append(table.assign(case=case, seed=seed, block=block))
    return pd.concat(rows)


def test_heterogeneity_and_its_narrowing_flip_with_the_ratio() -> None:
    said = judgements(c5_heterogeneity.verdicts(curves(20.0, 4.0)))
    wide = "Adam, plateau: the top eigenvalue of W is more than 2 times that of E"
    narrows, peak = "Adam-LR narrows the gap, plateau", "Adam-LR lowers the peak of W's top eigenvalue"
    assert (said[wide], said[narrows], said[peak]) == ("supported",) * 3
    said = judgements(c5_heterogeneity.verdicts(curves(1.2, 4.0)))
    assert (said[wide], said[narrows], said[peak]) == ("not supported",) * 3
    # A tenth is as far from 1 as ten.
    assert judgements(c5_heterogeneity.verdicts(curves(4.0, 0.1)))[narrows] == "not supported"


# --- C4: saddles ----------------------------------------------------------------------------------------------


def checkpoints(case: str, index: dict[str, int], gauge_free: int = 5, deep: float = 2.0) -> pd.DataFrame:
    """Certified checkpoints of five seeds with these indices; `deep`: lambda_min of E,W over that of W,V."""
    rows = [
        {"case": case, "seed": seed, "step": step, "phase": phase, "block": block, "index": n, "lower": n, "upper": n}
        | {"certified": 1, "gauge_free": gauge_free if block == "E,W" else -1}
        | {"lambda_min": {"E,W": -deep, "W,V": -1.0}.get(block, 0.0)}
        for seed in range(5)
        for step, phase in zip(STEPS, evidence.phases(STEPS, 30.0, 100.0), strict=True)
        for block, n in index.items()
    ]
    return pd.DataFrame(rows)


def delays(**delay: float) -> pd.DataFrame:
    """Five runs a case that memorise at 100 and grok that many steps later."""
    rows = [
        {"case": case, "seed": seed, "memorised": 100.0, "grokked": 100 + d + seed, "delay": d + seed, "last": 6000.0}
        for case, d in delay.items()
        for seed in range(5)
    ]
    return pd.DataFrame(rows)


MADE, BEYOND, HOLDS = (
    "Coupled, E and W have negative curvature that neither has alone",
    "On the plateau it is more than the gauge freedom of E and W",
    "A saddle of E,W holds training on the plateau",
)
BLOCKS = {"E": 0, "W": 0, "E,W": 9, "W,V": 9, "E,V": 9}


def saddles(base: pd.DataFrame, frozen: dict[str, int], **delay: float) -> dict[str, str]:
    """What the rules of C4 say."""
    table = pd.concat([base, *(checkpoints(case, frozen) for case in ("frozenE", "frozenW"))])
    return judgements(c4_saddles.verdicts(table, delays(**{"base": 1000, "frozenE": 100, "frozenW": 100} | delay)))


def test_the_paper_would_be_supported_by_data_that_say_so() -> None:
    said = saddles(checkpoints("base", BLOCKS), dict.fromkeys(BLOCKS, 0))
    assert set(said.values()) == {"supported"}


def test_each_part_of_the_claim_can_fail() -> None:
    never = dict.fromkeys(BLOCKS, 0)
    said = saddles(checkpoints("base", BLOCKS, gauge_free=0), never)
    assert (said[BEYOND], said[HOLDS], said[MADE]) == ("not supported", "not supported", "supported")
    said = saddles(checkpoints("base", BLOCKS, deep=0.5), never)
    assert said["On the plateau E,W goes deeper than the control W,V"] == said[HOLDS] == "not supported"
    assert saddles(checkpoints("base", BLOCKS | {"W": 1}), never)[MADE] == "not supported"
    assert saddles(checkpoints("base", BLOCKS).assign(certified=0), never)[MADE] == "not supported"
    assert saddles(checkpoints("base", BLOCKS, gauge_free=-1), never)[BEYOND] == "undecided"
    said = saddles(checkpoints("base", BLOCKS), BLOCKS, frozenE=5000, frozenW=1000)
    assert said["With E frozen, what is still trained (W,V) has no negative curvature"] == "not supported"
    assert said["With E frozen the delay is shorter"] == "not supported"
    assert said["With W frozen the delay is shorter"] == "undecided"


# --- from files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["c4_saddles", "c5_heterogeneity", "c6_events"])
def test_a_claim_reads_its_files(name: str, tiny_studies: Path, tmp_path: Path) -> None:
    module = sys.modules[name]
    with style():
        finding = module.claim(tiny_studies)
        written = evidence.write(name, finding, tmp_path)
    assert all(path.stat().st_size for path in written)
    assert all("|" not in verdict.statement + verdict.number for verdict in finding.verdicts)
    assert all(path.exists() for path in finding.files)
    assert all(not panel.data.empty and panel.caption for panel in finding.panels)
    assert not any(word in paragraph for paragraph in finding.text for word in ("nan", "{", "}"))
    table = finding.tables["curves" if name == "c6_events" else "checkpoints"]
    study = evidence.study("mechanism" if name == "c4_saddles" else "curvature", tiny_studies)
    path = study[0].planned.hessian["blocks" if name == "c4_saddles" else "top"]
    with h5py.File(path) as file:
        at = list(file["block"].asstr()).index("W")
        row = table[(table["case"] == study[0].labels["case"]) & (table["seed"] == 0) & (table["block"] == "W")]
        np.testing.assert_array_equal(row["lambda_max"], file["eigenvalues"][:, at, 1, 0])
        np.testing.assert_array_equal(row["index"], file["inertia"][:, at, 0])
