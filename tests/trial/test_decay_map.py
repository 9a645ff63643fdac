"""The map of weight decay and skew: rows from the raw files, the rest of embeddings, and what the page says."""

from __future__ import annotations

import json
import math
import re
from html import unescape
from pathlib import Path

import beyond
import decay_map
import h5py
import numpy as np
import page
import pandas as pd
import pytest
from helpers.made_tables import NETWORK, judge_beyond, write_tables
from helpers.pages import unlinked
from helpers.tiny_trial import STUDIES, TINY
from page_claims import BEYOND
from runs import finished
from scale import Scale

from landscape.jobs.plan import SweepConfig
from landscape.jobs.run import run_sweep

MAP = json.loads((STUDIES / "quick/beyond/map.json").read_text())
SEEDS = range(200, 210)


def test_an_embedding_rests_when_its_norm_no_longer_changes() -> None:
    steps = np.array([0, 10, 20, 30])
    # Near from the start; near, away, and near again; near at the last alone.
    norms = np.array([[1.0, 1.0, 5.0], [1.05, 3.0, 4.0], [0.95, 1.0, 3.0], [1.0, 1.0, 1.0]])
    np.testing.assert_array_equal(decay_map.rests(steps, norms), [0, 20, 30])


@pytest.mark.usefixtures("without_workers")
def test_rows_are_those_of_the_raw_files(tmp_path: Path) -> None:
    """By h5py alone."""
    grid = {"weight_decay": [0.001], "skew": [0.0, 1.0]}
    tiny = {**MAP, "train": {**MAP["train"], **TINY, "batch_size": 8}, "grid": grid, "seeds": [200]}
    run_sweep(SweepConfig(**tiny), tmp_path, jobs=1, overwrite=False, quiet=True)
    for run in finished("map", tmp_path):
        (row,) = decay_map.map_row(run).to_dict("records")
        with h5py.File(run.planned.path) as file:
            steps, norms, count = (file[f"tokens/{name}"][:] for name in ("step", "embedding_norm", "count"))
            accuracy, at = file["metrics/test_accuracy"][:], file["metrics/metric_step"][:]
        p = TINY["p"]
        order = np.argsort(count[-1, :p], kind="stable")
        for name, group in (("rare", order[: p // 5]), ("frequent", order[-(p // 5) :])):
            rest = [min(s for s in steps if (abs(norms[steps >= s, i] / norms[-1, i] - 1) <= 0.1).all()) for i in group]
            assert row[f"rest_{name}"] == np.median(rest)
            assert row[f"absent_{name}"] == pytest.approx(1 - count[-1, group].mean() / steps[-1])
        np.testing.assert_equal(row["grokked"], min(at[accuracy >= 0.95], default=math.nan))
        assert row["absent_rare"] > row["absent_frequent"]


def write_map(folder: Path, cost: float) -> None:
    """A scale in which skew 0.7 costs so many times more at weight decay 0.002, and skew 1 never groks."""
    write_tables(folder, {}, tokens=2)
    rows = [
        {"study": "map", "case": "base", "seed": seed, "weight_decay": decay, "skew": skew, "watched": 10_000}
        | {"grokked": math.nan if skew == 1 else 1000 * (cost if (decay, skew) == (0.002, 0.7) else 1.0)}
        | {"rest_rare": 8001 if decay == 0.0002 else 300 * (1 + skew), "rest_frequent": 200}
        | {"absent_rare": 0.5, "absent_frequent": 0.1}
        for decay in MAP["grid"]["weight_decay"]
        for skew in MAP["grid"]["skew"]
        for seed in SEEDS
    ]
    pd.DataFrame(rows).to_csv(folder / "map.csv", index=False)
    runs = pd.DataFrame([{"study": "map", "case": "base", "seed": seed, **NETWORK} for seed in SEEDS])
    pd.concat([pd.read_csv(folder / "runs.csv"), runs]).to_csv(folder / "runs.csv", index=False)
    judge_beyond(folder)


@pytest.mark.parametrize(("cost", "judgement"), [(2.0, "supported"), (0.5, "not supported"), (1.0, "undecided")])
def test_the_page_follows_the_map(cost: float, judgement: str, tmp_path: Path) -> None:
    write_map(tmp_path / "quick", cost)
    x = beyond.cost_of_skew(Scale(tmp_path / "quick"))
    assert x == pytest.approx(dict.fromkeys(SEEDS, math.log(cost)))
    texts = page.written(tmp_path)
    html, claim = unescape(texts[tmp_path / "index.html"]), BEYOND["G2"]
    sentence = {"supported": claim.holds, "not supported": claim.opposite}.get(judgement, claim.question)
    assert sentence in html
    assert sentence in texts[tmp_path / "report.md"]
    plain = " ".join(unlinked(html).split())
    assert "absent from 50% of batches" in plain
    assert "of the whole map 50 of 200 runs never grokked" in plain
    assert "of its runs 0 of 20 at weight decay 0.0005 never grokked" in plain
    assert "Where most grok" not in plain
    assert "come to rest after × 1.5 to 40 as many steps as frequent ones" in re.sub("<[^>]*>", "", html)
    assert "p = 59, 3 tokens, d = 16, h = 64, seeds 200 to 209; map.csv." in plain
    figure = texts[tmp_path / "figures/quick-map.svg"]
    # Five decays of the largest skew never grok; four skews of the least decay still move in the last fifth.
    assert (figure.count(">∞<"), figure.count(">&gt; 8,000<")) == (5, 4)
    assert (f">{1000 * cost:,.0f}<" in figure, figure.count(">300<"), figure.count(">600<")) == (True, 4, 4)


def test_skew_is_compared_where_most_runs_grok(tmp_path: Path) -> None:
    """By seed, at each weight decay at which both the most and the least skewed tokens have a median step."""
    write_map(tmp_path / "quick", 1.0)
    table = pd.read_csv(tmp_path / "quick/map.csv")
    table.loc[(table["skew"] == 1) & (table["weight_decay"] >= 0.002), "grokked"] = 500.0
    late = (table["skew"] == 0) & (table["seed"] >= SEEDS[5])
    table.loc[late & (table["weight_decay"] == 0.004), "grokked"] = math.nan
    table.loc[late & (table["weight_decay"] == 0.002), "grokked"] = 400.0
    table.to_csv(tmp_path / "quick/map.csv", index=False)
    told = re.sub("<[^>]*>", "", unescape(page.written(tmp_path)[tmp_path / "index.html"]))
    factor = math.sqrt(0.5 * 1.25)
    assert f"uniform ones take × {factor:.3g} [0.5, 1.25] at weight decay 0.002 (5 of 10 sooner). Rare" in told


def test_a_trial_without_the_map_says_nothing_of_it(tmp_path: Path) -> None:
    write_tables(tmp_path / "quick", {}, tokens=2)
    assert 'id="map"' not in page.written(tmp_path)[tmp_path / "index.html"]
