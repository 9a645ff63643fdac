"""The verdicts on Mechanism 2: events are found where they were put, and each rule's verdict flips with the data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import c4_measures
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

from landscape.report.style import style

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


def checkpoints(case: str, index: dict[str, int], gauge_free: float = 5, deep: float = 2.0) -> pd.DataFrame:
    """Certified checkpoints of five seeds with these indices; `deep`: lambda_min of E,W over that of W,V."""
    rows = [
        {"case": case, "seed": seed, "step": step, "phase": phase, "block": block, "index": n, "lower": n, "upper": n}
        | {"certified": 1, "gauge_free": gauge_free if block == "E,W" else np.nan}
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


def searches(phase: str, status: str = "critical", seeds: int = 3, **index: int) -> pd.DataFrame:
    """Searches for critical points that found these certified indices."""
    rows = [
        {"case": "quadratic", "seed": seed, "phase": phase, "status": status, "certified": 1}
        | {"block": ",".join(pair), "lower": n, "upper": n, "index": n}
        for seed in range(seeds)
        for pair, n in index.items()
    ]
    return pd.DataFrame(rows)


SADDLES = pd.concat([searches(phase, EW=3, WV=2) for phase in ("plateau", "grokked")])


def saddles(
    base: pd.DataFrame, frozen: dict[str, int], points: pd.DataFrame = SADDLES, **delay: float
) -> dict[str, str]:
    """What the rules of C4 say."""
    table = pd.concat([base, *(checkpoints(case, frozen) for case in ("frozenE", "frozenW"))])
    times = delays(**{"base": 1000, "frozenE": 100, "frozenW": 100} | delay)
    return judgements(c4_saddles.verdicts(table, points, times))


def test_the_paper_would_be_supported_by_data_that_say_so() -> None:
    said = saddles(checkpoints("base", BLOCKS), dict.fromkeys(BLOCKS, 0))
    assert set(said.values()) == {"supported"}


def test_steps_at_which_only_other_blocks_were_measured_count_for_nothing() -> None:
    """The file of all parameters has steps that the file of the pairs lacks."""
    base = checkpoints("base", BLOCKS)
    whole = checkpoints("base", {"all": 9}).assign(step=lambda t: t["step"] + 1000)
    never = dict.fromkeys(BLOCKS, 0)
    assert saddles(pd.concat([base, whole]), never) == saddles(base, never)
    assert c4_measures.deepest(pd.concat([base, whole.assign(lambda_min=-9.0)])) == c4_measures.deepest(base)


PLATEAU, GROKKED = "At critical points searched on the plateau, ", "At critical points searched after grokking, "
JOINT, CONTROL = "E,W has negative curvature", "the control W,V has negative curvature"


def refined(*points: pd.DataFrame) -> dict[str, evidence.Verdict]:
    """The verdicts on critical points, by statement."""
    found = c4_saddles.verdicts_at_critical_points(pd.concat(points))
    return {verdict.statement: verdict for verdict in found}


def test_verdicts_at_critical_points_flip_with_the_index() -> None:
    said = refined(searches("plateau", EW=0, WV=2), searches("grokked", EW=7, WV=0))
    assert (said[PLATEAU + JOINT].judgement, said[PLATEAU + CONTROL].judgement) == ("not supported", "supported")
    assert (said[GROKKED + JOINT].judgement, said[GROKKED + CONTROL].judgement) == ("supported", "not supported")
    assert said[GROKKED + JOINT].number.startswith("3 of 3 searches ended at a critical point; share")
    # Seeds that differ decide nothing.
    half = searches("grokked", EW=7, WV=0).assign(lower=lambda t: t["lower"].where(t["seed"] > 0, 0))
    assert refined(half)[GROKKED + JOINT].judgement == "undecided"


def test_only_critical_points_with_a_certified_index_are_counted() -> None:
    for status in ("gradient-flat", "unfinished"):
        verdict = refined(searches("plateau", status, EW=7, WV=7))[PLATEAU + JOINT]
        assert (verdict.judgement, verdict.number) == ("undecided", "0 of 3 searches ended at a critical point")
        other = searches("plateau", status, EW=7, WV=7)
        assert refined(other, searches("plateau", EW=0, WV=0))[PLATEAU + JOINT].judgement == "not supported"
    assert refined(searches("grokked", EW=7, WV=0).assign(certified=0))[GROKKED + JOINT].judgement == "undecided"
    assert refined(searches("grokked", seeds=1, EW=7, WV=0))[GROKKED + JOINT].judgement == "undecided"


def test_the_text_on_critical_points_follows_the_data() -> None:
    numbers = {"grad_norm_before": 0.25, "grad_norm_after": 3e-11, "distance": 7.5, "lambda_min": -4e-5}
    found = searches("grokked", EW=7, WV=0).assign(zeros=75, rotations=75, gauge_free=6, **numbers)
    [where, there] = c4_saddles.at_critical_points(found)
    assert "quadratic after grokking, 3 of 3 searches ended critical" in where
    assert "gradient norm 0.25 to 0.25 before and 3e-11 to 3e-11 after, distance 7.5 to 7.5" in where
    assert "At the 3 critical points 6 of 6 inertias are certified" in there
    assert "above 0 at 3 of them, that of the control W,V at 0: 7 for E,W with lambda_min -4e-05 to -4e-05" in there
    assert "as many zeros as rotations at 3 of 3 points" in there
    stopped = found.assign(status="gradient-flat", phase="plateau", index=found["index"] + found["seed"])
    [where, left] = c4_saddles.at_critical_points(stopped)
    assert "0 of 3 searches ended critical and 3 of 3 searches gradient-flat" in where
    assert "quadratic on the plateau, index 7 to 9 of E,W, 6 off the gauge tangents, and 0 to 2 of W,V" in left


def test_rotations_that_move_the_embedding_are_counted() -> None:
    """All planes but those among the directions that E does not use."""
    E = np.random.default_rng(0).normal(size=(9, 5))
    assert c4_measures.rotations(E) == 10
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0]
    assert c4_measures.rotations((E * [1, 1, 0, 0, 0]) @ rotation) == 10 - 3


def test_each_part_of_the_claim_can_fail() -> None:
    never = dict.fromkeys(BLOCKS, 0)
    said = saddles(checkpoints("base", BLOCKS, gauge_free=0), never)
    assert (said[BEYOND], said[HOLDS], said[MADE]) == ("not supported", "not supported", "supported")
    said = saddles(checkpoints("base", BLOCKS, deep=0.5), never)
    assert said["On the plateau E,W goes deeper than the control W,V"] == said[HOLDS] == "not supported"
    assert saddles(checkpoints("base", BLOCKS | {"W": 1}), never)[MADE] == "not supported"
    assert saddles(checkpoints("base", BLOCKS).assign(certified=0), never)[MADE] == "not supported"
    assert saddles(checkpoints("base", BLOCKS, gauge_free=np.nan), never)[BEYOND] == "undecided"
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
        written = evidence.write(finding, tmp_path / name)
    assert all(path.stat().st_size for path in written)
    assert all("|" not in verdict.statement + verdict.number for verdict in finding.verdicts)
    assert all(path.exists() for path in finding.files)
    assert all(not panel.data.empty and panel.caption for panel in finding.panels)
    assert not any(word in paragraph for paragraph in finding.text for word in ("nan", "{", "}"))
    table = finding.tables["curves" if name == "c6_events" else "checkpoints"]
    study = evidence.study("mechanism" if name == "c4_saddles" else "curvature", tiny_studies)
    path = study[0].planned.hessian["pairs" if name == "c4_saddles" else "top"]
    with h5py.File(path) as file:
        at = list(file["block"].asstr()).index("W")
        row = table[(table["case"] == study[0].labels["case"]) & (table["seed"] == 0) & (table["block"] == "W")]
        np.testing.assert_array_equal(row["lambda_max"], file["eigenvalues"][:, at, 1, 0])
        np.testing.assert_array_equal(row["index"], file["inertia"][:, at, 0])


def test_refined_points_are_read_as_they_were_stored(tiny_studies: Path) -> None:
    """One row a search and block with its status, norms and index, on its own table: the path has none of them."""
    with style():
        finding = c4_saddles.claim(tiny_studies)
    points = finding.tables["refined"]
    run = next(one for one in evidence.study("mechanism", tiny_studies) if "grokked" in one.planned.hessian)
    with h5py.File(run.planned.hessian["grokked"]) as file:
        found, step = file["critical_point"], file["step"][0]
        rows = points[(points["case"] == "quadratic") & (points["from_step"] == step)]
        rows = rows[rows["seed"] == run.labels["seed"]]
        assert list(rows["block"]) == list(file["block"].asstr())
        assert set(rows["grad_norm_after"]) == {found["grad_norm"][0]}
        assert set(rows["grad_norm_before"]) == {found["start_grad_norm"][0]} != {found["grad_norm"][0]}
        assert set(rows["status"]) == {("unfinished", "gradient-flat", "critical")[found["status"][0]]}
        np.testing.assert_array_equal(rows["index"], file["inertia"][0, :, 0])
    assert set(points["case"]) == {"base", "quadratic"}
    assert "quadratic" not in set(finding.tables["checkpoints"]["case"])


def test_a_phase_begins_at_the_nearest_stored_checkpoint(tiny_studies: Path) -> None:
    """Not at the nearest one that a Hessian file holds, of which there are few."""
    one = evidence.study("mechanism", tiny_studies)[0]
    stored, measured = one.data["step"].values.tolist(), one.hessian("pairs")["step"].values.tolist()
    nearest = max(step for step in stored if step < max(measured) and step not in measured)
    before = max(step for step in measured if step < nearest)
    one.__dict__["times"] = {"memorised": nearest - 1, "grokked": np.nan}
    assert one.phases(measured)[measured.index(before)] == "plateau"
    table = c4_measures.checkpoints(one, "pairs")
    assert set(table.loc[table["step"] == before, "phase"]) == {"memorising"}
