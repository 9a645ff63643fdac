"""How the tables write numbers, and what they make of rows whose answer is known."""

from __future__ import annotations

import math
from pathlib import Path

import claims
import numpy as np
import pandas as pd
import pytest
import tables
import verdicts
from exact import later
from helpers.trial_by_hand import verdict

TEN = np.arange(1.0, 11)


@pytest.mark.parametrize(
    ("x", "judgement"),
    [
        (TEN, "supported"),
        (-TEN, "contradicted"),
        # Infinite numbers rank highest, and the median is that of the others.
        (np.r_[TEN[:4], [np.inf] * 6], "supported"),
        # Of four seeds all of a sign p is 2/2^4.
        (TEN[:4], "inconclusive"),
        (np.zeros(10), "inconclusive"),
        (np.r_[TEN[:5], -TEN[:5]], "inconclusive"),
    ],
)
def test_verdicts(x: np.ndarray, judgement: str) -> None:
    """Beside twelve tests that decide nothing."""
    others = {name: dict(enumerate(np.zeros(10))) for name in claims.CLAIMS if name != "C1"}
    judged = verdicts.judge({"C1": dict(enumerate(x)), **others})
    row = judged.pop("C1")
    assert row["verdict"] == judgement
    assert row["holm"] == pytest.approx(min(1, 13 * row["p"]))
    assert all(of["verdict"] == "inconclusive" for of in judged.values())
    assert row["median"] == np.median(x)
    if len(x) == 10:
        # The second and the ninth of ten: 97.9 %.
        assert (row["low"], row["high"]) == tuple(np.sort(x)[[1, 8]])
    assert verdict({"C1": dict(enumerate(x)), **others})["C1"] == (pytest.approx(row["holm"]), judgement)


@pytest.mark.parametrize(
    ("of", "over", "expected"),
    [
        # Seven never by 1,000: the median of the ratios is at least that of the sixth and fifth, 10 and 10.
        ([200.0] * 3 + [None] * 7, [100.0] * 10, "≥ 10 (7 of 10 never by 1,000)"),
        # Of one seed neither came: its ratio may be anything, so that it is the least.
        ([200.0] * 3 + [None] * 7, [100.0] * 9 + [None], "≥ 10 (7 of 10 never by 1,000)"),
        ([200.0] * 4 + [None] * 6, [100.0] * 9 + [None], f"≥ {20**0.5:.3g} (6 of 10 never by 1,000)"),
        ([100.0] * 10, [200.0] * 3 + [None] * 7, "≤ 0.1 (7 of 10 never by 1,000)"),
        # Six ratios are not known.
        ([None] * 10, [100.0] * 4 + [None] * 6, None),
        ([0.0] * 10, [None] * 10, None),
    ],
)
def test_runs_that_never_came_bound_a_ratio(of: list[float], over: list[float], expected: str | None) -> None:
    assert tables.bound(*(runs(steps) for steps in (of, over))) == expected


def runs(steps: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"grokked": pd.Series(steps, dtype=float), "watched": 1000})


def test_ratios_are_of_seeds_that_both_have() -> None:
    of, over = (runs(steps)["grokked"] for steps in ([200.0 * (i + 1) for i in range(10)], [100.0] * 12))
    assert tables.factor(tables.log_ratios(of, over)) == "× 11 [4, 18]".replace("11", f"{math.sqrt(10 * 12):.3g}")
    assert tables.factor(tables.log_ratios(of[:3], over)) == "× 4 (2 to 6; n = 3)"
    assert tables.factor(tables.log_ratios(of, over[:0])) == "–"
    assert (later(math.nan, 5), later(5, math.nan), later(math.nan, math.nan)) == (math.inf, -math.inf, 0)


def test_ends_of_an_effect_that_is_turned_over_are_in_order() -> None:
    assert tables.interval(TEN, lambda x: -x) == "−5.5 [−9, −2]"


def test_never_is_the_latest_step() -> None:
    steps = pd.Series([1000.0, 2000.0, None])
    assert (tables.step(steps), tables.count(steps)) == ("2,000", "2 of 3")
    assert tables.step(steps[1:]) == "never"
    assert [tables.number(x) for x in (-0.00012345, math.inf, -math.inf)] == ["−0.000123", "∞", "−∞"]


def test_the_constant_of_proposition_41_is_1_where_it_holds() -> None:
    """|∇W| / |∇E| equal to σ_max(E) / σ_max(W) at each step; the plateau alone counts."""
    of = pd.DataFrame({"sigma_max_E": [2.0, 3, 4, 5], "sigma_max_W": [1.0, 1, 2, 2], "grad_norm_E": 0.5})
    records = of.assign(grad_norm_W=0.5 * of["sigma_max_E"] / of["sigma_max_W"], step=[0, 10, 20, 30]).set_index("step")
    constants = tables.prop41_constant(records, {"memorised": 10.0, "grokked": 20.0})
    assert constants.to_dict() == pytest.approx({10: 0.0, 20: 0.0})
    twice = tables.prop41_constant(records.assign(grad_norm_E=0.25), {"memorised": 10.0, "grokked": math.nan})
    assert twice.tolist() == pytest.approx([math.log(2)] * 3)


def test_effects_have_the_units_of_their_claims() -> None:
    effects = {name: [round(claims.CLAIMS[name].effect(x), 3) for x in (0.0, math.log(2))] for name in claims.CLAIMS}
    assert [effects[name] for name in ("C1", "C2", "C7", "D1")] == [[1, 2], [0, 0.693], [2, 1], [2, 4]]


def test_a_median_of_six_settings_is_between_the_middle_two() -> None:
    assert claims.middle([5.0, 1.0, 2.0, 4.0, -math.inf, math.inf]) == 3
    assert claims.middle([-math.inf, math.inf]) == 0
    assert math.isnan(claims.middle([1.0, math.nan]))


def test_c6_asks_which_fall_an_event_is_nearer_to(tmp_path: Path) -> None:
    """W falls at 10 and E at 100; memorising at 10 and half way at 100 is as claimed, the other order the opposite."""
    top = [
        {"study": "curvature", "case": "c1", "seed": seed, "analysis": "top", "block": block, "step": step}
        | {"highest": 2.0 if step == peak else 1.0}
        for seed in (1, 2, 3)
        for block, peak in (("E", 100), ("W", 10))
        for step in (0, 10, 100)
    ]
    events = {1: (10.0, 100.0), 2: (100.0, 10.0), 3: (10.0, math.nan)}
    each = [
        {"study": "curvature", "case": "c1", "seed": seed, "memorised": m, "half": g} for seed, (m, g) in events.items()
    ]
    folder = tmp_path / "quick"
    folder.mkdir()
    for name, rows in (("curvature", top), ("runs", each)):
        pd.DataFrame(rows).to_csv(folder / f"{name}.csv", index=False)
    far = 2 * math.log(10)
    # What never came is later than both, so that it is nearer to the later fall.
    assert claims.falls(tables.Scale(folder)) == pytest.approx({1: far, 2: -far, 3: far})
