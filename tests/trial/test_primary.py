"""The primary tests of the article, on tables whose answers are known."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import article
import numpy as np
import pandas as pd
import primary
import pytest
import verdicts
from helpers.tiny_trial import run as run_script
from primary import PRIMARY
from scipy import stats
from tables import Scale

SEEDS = range(700, 710)
NEVER = math.nan
RATES_E = [0.01 * 2.5**i for i in range(7)]
RATES_W = [0.00064, 0.0016, 0.004, 0.01, 0.025, 0.0625, 0.15625]


def run(study: str, case: str, seed: int, **more: object) -> dict[str, object]:
    return {"study": study, "case": case, "seed": seed, "grokked": NEVER, "delay": NEVER, **more}


def write(folder: Path, of_E: float, of_W: float, best: float, fork: int) -> None:
    """Tables of one size. of_E, of_W: slopes of ln(step) in both rates; best: ratio of rates at equal products."""
    folder.mkdir(parents=True)
    runs: list[dict[str, object]] = []
    for seed in SEEDS:
        waits = {"none": 1000.0, "random": 900.0, "EW": 600.0, "WV": 800.0, "held": NEVER}
        misses = {f"miss_{p}_{at}": 1.2 for p in ("one", "prop41", "inverse") for at in ("plateau", "before")}
        misses["miss_one_plateau"], misses["miss_prop41_before"] = 1.5, 2.4
        runs += [run("cut", case, seed, grokked=fork + wait, **misses) for case, wait in waits.items()]
        runs += [
            run("grid", case, seed, lr=lr, weight_decay=decay, delay=delay * (1 + lr))
            for lr, decay in itertools.product((0.01, 0.03, 0.1), (0.0002, 0.001))
            for case, delay in (("embedding", 300.0), ("onehot", 100.0 if decay == 0.001 else NEVER))
        ]
        steps = {"l2": NEVER, "nuclear": 400.0, "l2-V": NEVER, "nuclear-V": 500.0}
        runs += [run("crossed", case, seed, grokked=step) for case, step in steps.items()]
        for lr_E, lr in itertools.product(RATES_E, RATES_W) if seed < 705 else ():
            off = math.log(lr_E / lr / best) ** 2
            step = 1000 * lr_E**of_E * lr**of_W * math.exp(off)
            runs.append(run("rates", "base", seed, lr_E=lr_E, lr=lr, grokked=step, sigma_ratio=1.2))
    pd.DataFrame(runs).to_csv(folder / "runs.csv", index=False)
    depths = {"E,W": 0.0016, "E[operands],W": 0.001, "W,V": 0.004}
    curvature = [
        {"study": "settled", "analysis": analysis, "seed": seed, "block": block, "lowest": -times * depth}
        for seed in SEEDS
        for block, depth in depths.items()
        for analysis, times in (("plateau", 9.0), ("settled", 1.0))
    ]
    pd.DataFrame(curvature).to_csv(folder / "curvature.csv", index=False)
    settled = [{"study": "settled", "analysis": "settled", "seed": seed, "bias_gradient": 1.6} for seed in SEEDS]
    # Somebody's own study with an analysis of the same name is no part of the tests.
    settled += [{**row, "study": "wider", "bias_gradient": 9.0} for row in settled]
    pd.DataFrame(settled).to_csv(folder / "settled.csv", index=False)


def test_x_of_each_test(tmp_path: Path) -> None:
    write(tmp_path / "quick", of_E=-0.8, of_W=0.1, best=2.5**4, fork=1000)
    scale = Scale(tmp_path / "quick")
    expected = {
        "P1": math.log(2 / 1.6),
        "P2": 0.4,
        "P3": math.log(0.4),
        "P4": math.log(0.8 / (600 / 900)),
        "P5": math.inf,
        # One setting of two has no one-hot network that groks: the median lies between a ratio of 3 and of 0.
        "P8": -math.inf,
        "P9": -math.inf,
        "P10": math.log(1.5 / 1.2),
        "P11": math.log(1.2 / 2.4),
        "P12": math.inf,
        "P13": math.inf,
    }
    for name, x in expected.items():
        assert PRIMARY[name].x(scale) == pytest.approx(dict.fromkeys(SEEDS, x)), name
    shown = {"P1": 1.6, "P2": 1.6, "P3": 0.4, "P4": 600 / 900}
    for name, effect in shown.items():
        assert PRIMARY[name].effect(expected[name]) == pytest.approx(effect)


def test_slopes_and_ridges(tmp_path: Path) -> None:
    """A plane without a ridge is fitted exactly, cells that never grok aside; a ridge is where the best cells are."""
    rates = pd.MultiIndex.from_product([RATES_E, RATES_W], names=["lr_E", "lr"])
    steps = pd.Series([1000 * e**-0.8 * w**0.1 for e, w in rates], rates)
    steps.iloc[::5] = np.nan
    assert primary.plane(steps) == pytest.approx((-0.8, 0.1))
    for best in (1.0, 2.5**2, 2.5**4):
        write(tmp_path / str(best) / "mid", of_E=-0.5, of_W=-0.5, best=best, fork=300)
        scale = Scale(tmp_path / str(best) / "mid")
        x = PRIMARY["P7"].x(scale)
        assert x.keys() == set(range(700, 705))
        assert all(PRIMARY["P7"].effect(v) >= 1 for v in x.values())
        # At equal rates Proposition 4.1's ratio is 1.2, within a step of the grid of 2.5.
        assert (x[700] > 0) == (best == 1.0)


def test_what_grokked_before_the_fork_has_no_wait(tmp_path: Path) -> None:
    write(tmp_path / "quick", of_E=-0.8, of_W=0.1, best=1.0, fork=0)
    assert set(PRIMARY["P4"].x(Scale(tmp_path / "quick")).values()) == {0.0}


def test_what_never_came_what_came_at_once_and_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "mid", of_E=-0.8, of_W=0.1, best=1.0, fork=300)
    path = tmp_path / "mid/runs.csv"
    runs = pd.read_csv(path)
    is_cut, is_grid, is_rates = (runs["study"] == study for study in ("cut", "grid", "rates"))
    runs.loc[is_cut & runs["case"].isin(["EW", "random"]) & (runs["seed"] == 700), "grokked"] = NEVER
    runs.loc[is_cut & (runs["case"] == "EW") & (runs["seed"] == 701), "grokked"] = 300.0
    runs.loc[is_grid & (runs["case"] == "embedding"), "delay"] = 0.0
    runs.loc[is_grid & (runs["case"] == "onehot"), "delay"] = 50.0
    cell = runs.index[is_rates & (runs["seed"] == 702)][0]
    # Runs of seeds that no study names leave all as it is.
    others = runs.assign(seed=runs["seed"] + 200, grokked=325.0, delay=1.0)
    pd.concat([runs.drop(index=cell), others]).to_csv(path, index=False)
    scale = Scale(tmp_path / "mid")
    kicked = PRIMARY["P4"].x(scale)
    assert (kicked[700], kicked[701]) == (0, pytest.approx(math.log(0.8) - math.log(25 / 900)))
    assert PRIMARY["P8"].x(scale) == pytest.approx(dict.fromkeys(SEEDS, math.log(25 / 50)))
    assert PRIMARY["P6"].x(scale).keys() == {700, 701, 703, 704}


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    for main in (verdicts.main, article.main):
        with pytest.raises(SystemExit, match="has no runs.csv in quick, mid or paper\nhint: name a copy"):
            run_script(main, tmp_path)


def test_all_are_corrected_together(tmp_path: Path) -> None:
    """24 tests of two sizes; p by SciPy, Holm's by hand."""
    for scale, fork in primary.FORK.items():
        write(tmp_path / scale, of_E=-0.8, of_W=0.1, best=2.5**4, fork=fork)
    table, seeds = verdicts.primary(tmp_path)
    assert len(table) == 24
    assert len(seeds) == 24 * 10
    assert set(table["verdict"]) == {"supported", "contradicted"}
    words = table.groupby("test")["verdict"].first()
    assert {t for t, word in words.items() if word == "contradicted"} == {"P3", "P6", "P7", "P8", "P9", "P11"}
    for row in table.itertuples():
        x = seeds["x"][
            (seeds["test"] == row.test) & (seeds["size"].isin(["quick", "mid"] if row.size == "both" else [row.size]))
        ]
        signs = stats.binomtest(int((x > 0).sum()), len(x)).pvalue
        assert row.p == pytest.approx(signs)
        assert row.seeds == 10
    ordered = table["p"].sort_values().to_numpy()
    holm = np.minimum(np.maximum.accumulate(ordered * np.arange(24, 0, -1)), 1)
    assert np.sort(table["holm"]) == pytest.approx(holm)
