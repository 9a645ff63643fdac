"""What the page says of the learning rate that follows E's edge of stability."""

from __future__ import annotations

import math
import re
from html import unescape
from pathlib import Path

import beyond
import page
import page_auto
import pandas as pd
import pytest
from helpers.made_tables import judge_beyond, write_tables
from helpers.pages import unlinked
from page_claims import BEYOND
from scale import Scale

SEEDS = range(400, 410)


def write_auto(folder: Path, auto: float) -> None:
    """A scale that groks at step 3000 with c = 1, at 1000 with c = 256, never with c = 64, and at `auto`; pilots."""
    write_tables(folder, {}, tokens=2)
    runs = pd.read_csv(folder / "runs.csv")
    steps = {"1.0": 3000.0, "64.0": math.nan, "256.0": 1000.0, "auto": auto}
    rows = [
        {"study": "auto", "case": "base", "seed": seed, "lr_ratio": c, "grokked": step + 10 * (seed - SEEDS[0])}
        | {"memorised": math.nan if (seed, c) == (SEEDS[0], "auto") else 200.0, "watched": 6000}
        for c, step in steps.items()
        for seed in SEEDS
    ]
    pilots = [
        {"study": "ratios-quick", "case": case, "lr_ratio": c, "seed": seed, "grokked": step + seed}
        for case in ("base", "mul")
        for c, step in {"1.0": 2000.0, "32.0": math.nan, "64.0": 800.0, "auto": 600.0}.items()
        for seed in range(3)
    ]
    wider = [
        {"study": "ratios-quick-wider", "case": "mul", "lr_ratio": 128.0, "seed": seed, "grokked": 700.0 + seed}
        for seed in range(3)
    ]
    pd.concat([runs, pd.DataFrame(rows + pilots + wider)]).to_csv(folder / "runs.csv", index=False)
    rates = [
        {"study": "auto", "case": "base", "seed": seed, "step": step, "c": c}
        for seed in SEEDS
        for step, c in ((0, 1.0), (50, 90.0 - seed + SEEDS[0]), (100, 60.0 + seed - SEEDS[0]))
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
    for name, test in (("A1", beyond.follows_the_edge), ("A2", beyond.within_the_best)):
        assert list(test(scale).values()) == pytest.approx(x[name])
    texts = page.written(tmp_path)
    html, report = unescape(texts[tmp_path / "index.html"]), texts[tmp_path / "report.md"]
    for name, verdict in (("A1", sooner), ("A2", within)):
        claim = BEYOND[name]
        for text in (html, report):
            assert (claim.holds if verdict == "supported" else claim.opposite) in text
    assert "| 64 | " in report
    plain = unlinked(report)
    told = " ".join(re.sub("<[^>]*>", "", report).split())
    assert "| 0 of 10 | ∞ |" in plain
    assert plain.index("| 64 |") < plain.index("| 256 |") < plain.index("| auto |")
    assert ">quick, a · b</th>" in html
    # The best of one case lies at the last c of the sweep, that of the other in the wider one.
    assert "| quick | 2,001 | ≥ 64 | 801 | 601 | 0.75 |" in plain
    assert "| quick, a · b | 2,001 | ≥ 128 | 701 | 601 | 0.857 |" in plain
    assert "In 0 of 2 settings auto takes more than 1.1 times as long as the best c, which in 2 of 2 is" in told
    # Half of the edge is first 85.5 in the median, so that 256 is 256 / 171 of it.
    assert (
        "At quick auto first sets c = 85.5 (81 to 90) and ends at 64.5 (60 to 69), where 256 is best, 1.5 of the"
        in told
    )
    assert "edge as first measured; 1 of 10 never memorise. Medians of c and ranges over seeds." in told
    assert "No one share" not in told, "of one scale nothing differs"
    assert f"the ratio of the medians is {auto + 45:,.0f}/1,045 = {(auto + 45) / 1045:.3g} at quick." in told


def test_a_rate_at_which_nothing_groks_is_bounded_by_what_was_watched(tmp_path: Path) -> None:
    """Against steps 3000 to 3090 and 1000 to 1090 in ten seeds, of which the middle ones count."""
    write_auto(tmp_path / "quick", math.nan)
    told = unlinked(page.written(tmp_path)[tmp_path / "report.md"])
    for least, sign, steps in ((1, "≤", (3040, 3050)), (-1, "≥", (1040, 1050))):
        factor = (math.sqrt(math.prod(steps)) / 6000) ** least
        assert f"over {'auto' if least > 0 else 'the best c'}: × {sign} {factor:.3g} (10 of 10 never by 6,000)" in told


def test_best_rates_at_other_shares_of_the_edge_are_told() -> None:
    found = {name: {"set": {"size": size}} for name, size in (("quick", 1.0), ("mid", 0.6), ("paper", 0.1))}
    assert page_auto.apart(found)
    assert not page_auto.apart({name: found[name] for name in ("quick", "mid")})
    assert not page_auto.apart({"quick": found["quick"], "mid": {"set": None}})


def test_a_trial_without_the_runs_says_nothing_of_it(tmp_path: Path) -> None:
    write_tables(tmp_path / "quick", {}, tokens=2)
    assert 'id="auto"' not in page.written(tmp_path)[tmp_path / "index.html"]
