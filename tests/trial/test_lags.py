"""When the geometry appears: events from the files, and what the page says of them."""

from __future__ import annotations

import json
import math
import re
from html import unescape
from pathlib import Path

import h5py
import lags
import numpy as np
import page
import pandas as pd
import pytest
from helpers.made_tables import judge_beyond, write_tables
from helpers.pages import unlinked
from helpers.tiny_trial import STUDIES, shortened
from page_claims import BEYOND
from page_lags import Lag, bracket
from runs import finished

from landscape.errors import LandscapeError
from landscape.jobs.plan import SweepConfig
from landscape.jobs.run import run_sweep
from landscape.measure.geometry import measure_geometry

SEEDS = range(200, 210)
LATER = {"half": 1.5, "grokked": 2.0, "memorised": 0.5}
"""Steps of events over that of the frequencies; all others come with them."""


def write_lags(folder: Path, sign: int) -> None:
    """A scale whose events come so much later, or as much earlier, at every seed."""
    write_tables(folder, {}, tokens=4)
    of = {event: LATER.get(event, 1.0) ** sign for event in [lags.REFERENCE, *lags.EVENTS]}
    rows = [
        {"study": "lags", "case": "base", "seed": seed, "event": event, "step": times * 10 * seed}
        for seed in SEEDS
        for event, times in of.items()
    ]
    table = pd.DataFrame(rows)
    # A network that never groks does so later than all.
    table.loc[(table["event"] == "grokked") & (table["seed"] == 200), "step"] = np.nan
    # What is highest at the start has no logarithm.
    table.loc[table["event"] == "index_peak", "step"] = 0
    table.to_csv(folder / "lags.csv", index=False)
    judge_beyond(folder)


@pytest.mark.parametrize(("sign", "judgement"), [(1, "supported"), (-1, "not supported"), (0, "undecided")])
def test_the_page_says_what_comes_first(sign: int, judgement: str, tmp_path: Path) -> None:
    write_lags(tmp_path / "mid", sign)
    texts = page.written(tmp_path)
    text, claim = unlinked(unescape(texts[tmp_path / "index.html"])), BEYOND["G1"]
    undecided = f"Undecided: {claim.question}"
    sentence = {"supported": claim.holds, "not supported": claim.opposite}.get(judgement, undecided)
    assert f'<details id="geometry"><summary><h2>{sentence}</h2>' in text
    # All signs alike, which two of 2^10 choices are; or all zero.
    assert re.search(rf">{judgement}</span></td><td>{'1' if sign == 0 else '0.00195'}</td>", text)
    where = {1: "before", -1: "after", 0: "with"}[sign]
    assert f"<td><b>{where}, × {1.5**sign:.3g} [" in text
    found = re.search(r">50 % test accuracy</th><td>(.*?)</td><td>(.*?)</td>", text)
    assert found
    ratio = f"{1.5**sign:.3g}"
    assert found.groups() == (f"× {ratio} [{ratio}, {ratio}]", f"{10 if sign > 0 else 0} of 10")
    assert re.search(r">the saddle index of the pair is highest</th><td>× 0.000489 [^<]*</td><td>0 of 10</td>", text)
    grokked = re.search(r">95 % test accuracy</th><td>.*?</td><td>(.*?)</td>", text)
    assert grokked
    assert grokked[1] == f"{10 if sign > 0 else 1} of 10"
    assert sentence in unlinked(texts[tmp_path / "report.md"])


def test_an_event_lies_between_the_analysed_steps() -> None:
    """A peak between its neighbours, beyond the last step where it is the last; a fall after the step before."""
    steps = [0, 10, 20, 40]
    assert bracket("kappa_peak", 20, steps) == (10, 40)
    assert bracket("kappa_peak", 40, steps) == (20, math.inf)
    assert bracket("index_peak", 0, steps) == (0, 10)
    assert bracket("index_half", 20, steps) == (10, 20)
    np.testing.assert_equal(bracket("index_half", math.nan, steps), (math.nan, math.nan))


def test_what_the_analysed_steps_leave_open_is_unresolved(tmp_path: Path) -> None:
    """A peak seen with the frequencies, at the last analysed step, is later; with a step on either side it is open."""
    write_lags(tmp_path / "mid", 1)
    curvature = pd.read_csv(tmp_path / "mid/curvature.csv")
    for last, shown in ((False, "unresolved, × 1 [0.5, 2]"), (True, "before, × 2 [1.5, ∞]")):
        at = (0.5, 1.0, 2.0) if not last else (0.5, 1.5, 2.0)
        rows = [
            {"study": "lags", "case": "base", "seed": seed, "analysis": "over-training", "block": "E,W"}
            | {"step": round(times * 10 * seed), "lowest": -1.0, "index_level": "certified"}
            for seed in SEEDS
            for times in at
        ]
        pd.concat([curvature, pd.DataFrame(rows)]).to_csv(tmp_path / "mid/curvature.csv", index=False)
        table = pd.read_csv(tmp_path / "mid/lags.csv")
        table.loc[table["event"] == "kappa_peak", "step"] = [10 * seed * (2 if last else 1) for seed in SEEDS]
        table.to_csv(tmp_path / "mid/lags.csv", index=False)
        assert f">{shown}</a>" in unescape(page.written(tmp_path)[tmp_path / "index.html"])


def test_seeds_that_disagree_are_not_resolved_by_more_steps() -> None:
    """Half of them earlier and half later, whatever lies between the analysed steps."""
    signs = np.array([-1, 1] * 5)
    assert Lag(*(signs + away for away in (0.0, -0.5, 0.5))).where == "with"
    assert Lag(*(signs + away for away in (0.0, -0.5, 1.5))).where == "unresolved"
    assert Lag(*(signs + away for away in (2.0, 1.5, 2.5))).where == "before"


def test_what_analysed_steps_know_is_read_from_runs_that_have_more_of_them(tmp_path: Path) -> None:
    """With the frequencies of those runs, and with a link to their table; what metrics know stays."""
    write_lags(tmp_path / "mid", 1)
    table = pd.read_csv(tmp_path / "mid/lags.csv").assign(study="peaks")
    table["step"] *= 7
    table.loc[table["event"] == "kappa_peak", "step"] *= 3
    table.loc[table["event"] == "half", "step"] *= 5
    table.to_csv(tmp_path / "mid/peaks.csv", index=False)
    text = unescape(page.written(tmp_path)[tmp_path / "index.html"])
    assert re.search(
        r'"mid/peaks.csv#L\d+" title="mid/peaks.csv, the 10 rows kappa_peak">before, × 3 \[3, 3\]</a>', text
    )
    assert re.search(r'"mid/lags.csv#L\d+" title="mid/lags.csv, the 10 rows half">before, × 1.5 \[', text)


def test_how_far_apart_the_analysed_steps_are_is_said(tmp_path: Path) -> None:
    """κ₁ next to its peak, in the seed in which it differs most, and in how many another step rivals the peak."""
    write_lags(tmp_path / "mid", 1)
    table = pd.read_csv(tmp_path / "mid/curvature.csv")
    known = {"study": "lags", "case": "base", "block": "E,W", "index_level": "certified"}
    rows = [
        {**known, "seed": seed, "file": f"{seed}.h5", "step": step, "kappa_1": kappa}
        for seed, by_step in {200: {0: 3.0, 10: 8.0, 20: 5.0}, 201: {0: 9.0, 10: 4.5, 20: 1.0, 30: 8.2}}.items()
        for step, kappa in by_step.items()
    ]
    pd.concat([table, pd.DataFrame(rows)]).to_csv(tmp_path / "mid/curvature.csv", index=False)
    told = " ".join(re.sub("<[^>]*>", "", unescape(page.written(tmp_path)[tmp_path / "index.html"])).split())
    assert "are known at 3 to 4 steps of a run" in told
    lower = f"κ₁ is lower by up to × {8 / 3:.3g} at the steps next to it"
    assert f"{lower}, and within 10 % of it further away in 1 of 2 runs, at mid." in told


def test_what_is_not_defined_is_left_open(tmp_path: Path) -> None:
    """Coupling ratios need blocks without negative eigenvalues, which an embedding may not have."""
    write_lags(tmp_path / "mid", 1)
    table = pd.read_csv(tmp_path / "mid/lags.csv")
    table[table["event"] != "kappa_peak"].to_csv(tmp_path / "mid/lags.csv", index=False)
    text = unescape(page.written(tmp_path)[tmp_path / "index.html"])
    assert ">κ₁ of the pair is highest</th><td>–</td><td>–</td>" in text


def test_scales_without_the_study_have_no_section(tmp_path: Path) -> None:
    write_tables(tmp_path / "mid", {}, tokens=4)
    assert 'id="geometry"' not in page.written(tmp_path)[tmp_path / "index.html"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_workers")
def test_events_are_those_of_the_raw_files(tmp_path: Path) -> None:
    """By h5py alone."""
    definition = shortened(json.loads((STUDIES / "quick/beyond/lags.json").read_text()), {"base"})
    definition = {name: value for name, value in definition.items() if name not in ("cases", "grid")}
    # A second analysis, at steps of its own.
    (first,) = definition["hessian"]
    more = {**{name: value for name, value in first.items() if name != "num_steps"}, "name": "more", "steps": "2,5"}
    definition["hessian"] = [first, more]
    run_sweep(SweepConfig(**{**definition, "seeds": [200]}), tmp_path, jobs=1, overwrite=False, quiet=True)
    (run,) = finished("lags", tmp_path)
    measure_geometry(run.planned.path)
    found = lags.lags(run).set_index("event")["step"].to_dict()
    with h5py.File(run.planned.path) as file:
        steps, loss, accuracy = (file[f"metrics/{name}"][:] for name in ("metric_step", "test_loss", "test_accuracy"))
    assert found["loss_peak"] == steps[loss.argmax()]
    assert found["half"] == steps[accuracy >= 0.5][0]
    after = steps[(steps > found["loss_peak"]) & (loss <= loss.max() / 2)]
    np.testing.assert_equal(found["loss_half"], after[0] if len(after) else np.nan)
    kappa, index = {}, {}
    for path in run.planned.hessian.values():
        with h5py.File(path) as file:
            pair = [name.decode() for name in file["pair"]].index("E,W")
            kappa |= dict(zip(file["step"][:].tolist(), file["coupling_ratios"][:, pair, 0], strict=True))
            index |= dict(zip(file["step"][:].tolist(), file["inertia"][:, 0, 0], strict=True))
    assert {2, 5} <= set(kappa)
    known = {at: value for at, value in sorted(kappa.items()) if not np.isnan(value)}
    assert found["kappa_peak"] == max(known, key=lambda at: known[at])
    assert found["index_peak"] == max(sorted(index), key=lambda at: index[at])
    with h5py.File(run.planned.path.with_suffix(".geometry.h5")) as file:
        at, share, p = (file[name][:] for name in ("step", "top_frequency_share", "top_frequency_share_p"))
        r2, chance, r2_p = (file[f"top_circle_r2{end}"][:] for end in ("", "_null", "_p"))
        train, test = (file["split"][:].tolist().index(name) for name in (b"train", b"test"))
        restricted, excluded = file["restricted_loss"][:, test], file["excluded_loss"][:, train]
    there = at[(p <= 0.01) & (share >= share[-1] / 2)]
    np.testing.assert_equal(found["frequency"], there[0] if len(there) else np.nan)
    there = at[(r2_p <= 0.01) & (r2 - chance >= (r2[-1] - chance[-1]) / 2)]
    np.testing.assert_equal(found["circle"], there[0] if len(there) else np.nan)
    after = at[(at > at[restricted.argmax()]) & (restricted <= restricted.max() / 2)]
    np.testing.assert_equal(found["restricted"], after[0] if len(after) else np.nan)
    least = excluded.argmin()
    after = at[least + 1 :][excluded[least + 1 :] >= (excluded[least] + excluded[-1]) / 2]
    np.testing.assert_equal(found["excluded"], after[0] if len(after) else np.nan)
    with h5py.File(run.planned.path.with_suffix(".geometry.h5"), "r+") as file:
        file.attrs["status"] = "running"
    with pytest.raises(LandscapeError, match=r"geometry.h5 is running, not complete"):
        lags.lags(run)


def test_a_peak_and_its_fall() -> None:
    values = pd.Series({0: 1.0, 10: 4.0, 20: 3.0, 30: 2.0, 40: 1.0})
    assert (lags.highest(values), lags.fall(values)) == (10, 30)
    assert np.isnan(lags.fall(values[:3]))
    assert np.isnan(lags.highest(values[:0]))


def test_a_rise_is_from_the_least_to_the_last() -> None:
    values = pd.Series({0: 4.0, 10: 1.0, 20: 1.9, 30: 2.0, 40: 5.0, 50: 3.0})
    assert lags.rise(values) == 30
    for falling in (values[:2], values[:0]):
        assert np.isnan(lags.rise(falling))
