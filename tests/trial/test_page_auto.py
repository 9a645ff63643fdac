"""What the page says of the learning rate that follows E's edge of stability."""

from __future__ import annotations

import math
import re
from html import unescape
from pathlib import Path

import beyond
import page
import pandas as pd
import pytest
from helpers.made_tables import judge_beyond, write_tables
from helpers.pages import unlinked
from page_claims import BEYOND
from scale import Scale

SEEDS = range(610, 620)
TESTS = {
    "A1": beyond.follows_the_edge,
    "A2": beyond.within_the_best,
    "A3": beyond.follows_elsewhere,
    "A4": beyond.within_elsewhere,
}


def write_auto(folder: Path, auto: float) -> None:
    """A scale that groks at step 3000 with c = 1, at 1000 with c = 256, never with c = 64, and at `auto`; pilots.

    So it does in four other settings; in one auto never groks, in one all three rates do at step 500.
    """
    write_tables(folder, {}, tokens=2)
    runs = pd.read_csv(folder / "runs.csv")
    steps = {"1.0": 3000.0, "64.0": math.nan, "256.0": 1000.0, "auto": auto}
    rows = [
        {"study": "auto", "case": "base", "seed": seed, "lr_ratio": c, "grokked": step + 10 * (seed - SEEDS[0])}
        | {"memorised": math.nan if (seed, c) == (SEEDS[0], "auto") else 200.0, "watched": 6000}
        for c, step in steps.items()
        for seed in SEEDS
    ]
    elsewhere = dict.fromkeys(beyond.SETTINGS, (3000.0, 1000.0, auto))
    elsewhere |= {"mul": (3000.0, 1000.0, math.nan), "decay-low": (500.0, 500.0, 500.0)}
    settings = [
        {"study": "auto-settings", "case": f"{setting}-{rate}", "seed": seed, "lr_ratio": c, "watched": 6000}
        | {"grokked": step + 10 * (seed - SEEDS[0])}
        for setting, steps in elsewhere.items()
        for (rate, c), step in zip({"even": "1.0", "swept": "64.0", "auto": "auto"}.items(), steps, strict=True)
        for seed in SEEDS
    ]
    pilots = [
        {"study": "ratios-quick", "case": case, "lr_ratio": c, "seed": seed, "grokked": step + seed}
        for case in ("base", "mul")
        for c, step in {"1.0": 2000.0, "32.0": math.nan, "64.0": 800.0}.items()
        for seed in range(3)
    ]
    wider = [
        {"study": "ratios-quick-wider", "case": "mul", "lr_ratio": c, "seed": seed, "grokked": step + seed}
        for c, step in {"128.0": 700.0, "256.0": 900.0}.items()
        for seed in range(3)
    ]
    pd.concat([runs, pd.DataFrame(rows + settings + pilots + wider)]).to_csv(folder / "runs.csv", index=False)
    rates = [
        {"study": "auto", "case": "base", "seed": seed, "step": step, "c": c}
        for seed in SEEDS
        for step, c in ((0, 1.0), (50, 2.0), (100, 90.0 - seed + SEEDS[0]), (150, 60.0 + seed - SEEDS[0]))
    ]
    pd.DataFrame(rates).to_csv(folder / "rates.csv", index=False)
    judge_beyond(folder)


@pytest.mark.parametrize(
    ("auto", "sooner", "within"),
    [
        (1000.0, "supported", "supported"),
        (2000.0, "supported", "not supported"),
        (9000.0, "not supported", "not supported"),
    ],
)
def test_the_page_follows_the_runs(auto: float, sooner: str, within: str, tmp_path: Path) -> None:
    """x of both tests by hand, and the sentence, steps and pilots that they lead to."""
    write_auto(tmp_path / "quick", auto)
    scale = Scale(tmp_path / "quick")
    late = [10 * (seed - SEEDS[0]) for seed in SEEDS]
    x = {
        "A1": [math.log((3000 + d) / (auto + d)) for d in late],
        "A2": [math.log(1.1 * (1000 + d) / (auto + d)) for d in late],
    }
    # Of six settings the third and fourth count, which are as above.
    x |= {"A3": x["A1"], "A4": x["A2"]}
    for name, test in TESTS.items():
        assert list(test(scale).values()) == pytest.approx(x[name])
    texts = page.written(tmp_path)
    html, report = unescape(texts[tmp_path / "index.html"]), texts[tmp_path / "report.md"]
    for name, verdict in (("A1", sooner), ("A2", within), ("A3", sooner), ("A4", within)):
        claim = BEYOND[name]
        for text in (html, report):
            assert (claim.holds if verdict == "supported" else claim.opposite) in text
    assert "| 64 | " in report
    plain = unlinked(report)
    told = " ".join(re.sub("<[^>]*>", "", report).split())
    assert "| 0 of 10 | ∞ |" in plain
    assert plain.index("| 64 |") < plain.index("| 256 |") < plain.index("| auto |")
    assert ">a · b</th>" in html
    assert (
        "| a · b | 3,045 (10 of 10) | 64 | 1,045 (10 of 10) | ∞ (0 of 10) | × ≤ 0.507 (10 of 10 never by 6,000) |"
        in plain
    )
    assert "| half the weight decay | 545 (10 of 10) | 64 | 545 (10 of 10) | 545 (10 of 10) | × 1 [1, 1] |" in plain
    # Of the pilots one best c is the last of its sweep, the other lies inside.
    assert "it is in 1 of 2 sweeps at an end, so that a better one may lie beyond." in told
    rises = (
        "At quick c rises to 85.5 (81 to 90), from step 100 on, and ends at 64.5 (60 to 69); 256 was the best of the"
    )
    assert f"{rises} pilots. Medians and ranges over seeds." in told
    assert f"the ratio of the medians is {auto + 45:,.0f}/1,045 = {(auto + 45) / 1045:.3g} at quick." in told


def test_a_rate_at_which_nothing_groks_is_bounded_by_what_was_watched(tmp_path: Path) -> None:
    """Against steps 3000 to 3090 and 1000 to 1090 in ten seeds, of which the middle ones count."""
    write_auto(tmp_path / "quick", math.nan)
    told = unlinked(page.written(tmp_path)[tmp_path / "report.md"])
    for least, sign, steps in ((1, "≤", (3040, 3050)), (-1, "≥", (1040, 1050))):
        factor = (math.sqrt(math.prod(steps)) / 6000) ** least
        assert f"over {'auto' if least > 0 else 'the best c'}: × {sign} {factor:.3g} (10 of 10 never by 6,000)" in told


def test_x_where_runs_never_grok() -> None:
    """Neither: 0, not within 10 %. Opposite infinities in the middle of the settings: 0. A missing one: no x."""
    assert beyond.within(math.nan, math.nan) == 0
    assert [beyond.within(math.nan, 900.0), beyond.within(900.0, math.nan)] == [-math.inf, math.inf]
    never = math.inf
    assert beyond.middle([never, -never, never, -never, never, -never]) == 0
    assert beyond.middle([never, never, never, 1.0, 3.0, -1.0]) == never
    assert beyond.middle([4.0, 1.0, 3.0, 2.0, -never, never]) == 2.5
    assert math.isnan(beyond.middle([1.0, math.nan, 1.0, 1.0, 1.0, 1.0]))


def test_a_trial_without_the_runs_says_nothing_of_it(tmp_path: Path) -> None:
    write_tables(tmp_path / "quick", {}, tokens=2)
    assert 'id="auto"' not in page.written(tmp_path)[tmp_path / "index.html"]
