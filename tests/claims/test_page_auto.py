"""What the page says of the learning rate that follows E's edge of stability."""

from __future__ import annotations

import math
from html import unescape
from pathlib import Path

import page
import page_auto
import pandas as pd
import pytest
from helpers.made_tables import write_tables
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
        for c, step in steps.items()
        for seed in SEEDS
    ]
    pilots = [
        {"study": "ratios-quick", "case": case, "lr_ratio": c, "seed": seed, "grokked": step + seed}
        for case in ("base", "mul")
        for c, step in {"1.0": 2000.0, "32.0": math.nan, "64.0": 800.0, "auto": 600.0}.items()
        for seed in range(3)
    ]
    pd.concat([runs, pd.DataFrame(rows + pilots)]).to_csv(folder / "runs.csv", index=False)


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
    found = page_auto.measured(scale)
    for name, values in x.items():
        assert list(found[name].values()) == pytest.approx(values)
    texts = page.written(tmp_path)
    html, report = unescape(texts[tmp_path / "index.html"]), texts[tmp_path / "report.md"]
    for name, verdict in (("A1", sooner), ("A2", within)):
        claim = BEYOND[name]
        for text in (html, report):
            assert (claim.holds if verdict == "supported" else claim.opposite) in text
    assert "| 64 | " in report
    plain = unlinked(report)
    assert "| 0 of 10 | ∞ |" in plain
    assert plain.index("| 64 |") < plain.index("| 256 |") < plain.index("| auto |")
    assert ">quick, a · b</th>" in html
    assert report.count(">801</a>") == report.count(">601</a>") == 2
    assert plain.count(f"| {601 / 801:.3g} |") == 2


def test_a_trial_without_the_runs_says_nothing_of_it(tmp_path: Path) -> None:
    write_tables(tmp_path / "quick", {}, tokens=2)
    assert 'id="auto"' not in page.written(tmp_path)[tmp_path / "index.html"]
