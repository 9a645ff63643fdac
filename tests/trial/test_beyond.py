"""The claims about Transformers: x from the raw files by h5py alone, and what the page says of them."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any

import beyond
import collect
import h5py
import numpy as np
import page
import pandas as pd
import primary
import pytest
import runs
from helpers.made_tables import NETWORK, assert_told, made, write_tables
from helpers.pages import unlinked
from helpers.tiny_trial import STUDIES
from page_transformers import NETWORKS, PAIRS, THREE

from landscape.jobs.plan import SweepConfig
from landscape.jobs.run import run_sweep
from landscape.measure import hessian

TINY: dict[str, Any] = {
    "p": 13,
    "embed_dim": 12,
    "hidden": 24,
    "lr": 0.03,
    "weight_decay": 0.5,
    "train_fraction": 0.75,
    "steps": 400,
    "checkpoint_log": 4,
    "extra_steps": 0,
    "device": "cpu",
}
"""Networks that memorise, and of which most get half of the test pairs right."""
GROKKED = 0.5
"""Test accuracy that counts as grokked here. Which of them reach 95 % differs between machines, with their rounding."""
SEEDS = (200, 201)
TESTS = beyond.TESTS["transformer"]


def run(main: Any, *arguments: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["script", *map(str, arguments)])
        patch.setattr(beyond, "SEEDS", {"transformer": SEEDS})
        main()


def events(path: Path) -> dict[str, float]:
    """First steps of 99 % training and 95 % test accuracy, infinite where they never came."""
    with h5py.File(path) as file:
        steps = file["metrics/metric_step"][:]
        found = {"memorised": ("train_accuracy", 0.99), "grokked": ("test_accuracy", GROKKED)}
        return {k: float(min(steps[file[f"metrics/{m}"][:] >= a], default=math.inf)) for k, (m, a) in found.items()}


@pytest.mark.long
@pytest.mark.usefixtures("without_workers")
def test_x_is_that_of_the_raw_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hessian, runs):
        monkeypatch.setattr(module, "GROK", ("test_accuracy", GROKKED))
    scale = tmp_path / "transformer"
    for name in ("curvature", "sampling"):
        study = json.loads((STUDIES / f"transformer/beyond/{name}.json").read_text())
        # Of the analyses T1 reads one, of its blocks two.
        analyses = [
            {**one, "device": "cpu", "blocks": ["mlp_in,mlp_out", "E,mlp_in"]}
            for one in study.get("hessian", ())
            if one["name"] == "plateau"
        ]
        tiny = {**study, "train": {**study["train"], **TINY}, "seeds": list(SEEDS), "hessian": analyses}
        run_sweep(SweepConfig(**tiny), scale, jobs=1, overwrite=False, quiet=True)
    run(collect.main, scale, "--out", tmp_path / "out")
    run(beyond.main, tmp_path / "out/transformer")
    with (tmp_path / "out/transformer/seeds.csv").open() as file:
        x = {(row["claim"], int(row["seed"])): float(row["x"]) for row in csv.DictReader(file)}
    grokked = {path.stem: events(path)["grokked"] for path in scale.glob("*/*-s???.h5")}
    for seed in SEEDS:
        with h5py.File(scale / f"curvature/c1-s{seed}.hessian-plateau.h5") as file:
            lowest = dict(zip(file["block"].asstr(), file["eigenvalues"][0, :, 0, 0], strict=True))
        assert x["T1", seed] == pytest.approx(math.log(lowest["E,mlp_in"] / lowest["mlp_in,mlp_out"]))
        one, ten = grokked[f"c1-s{seed}"], grokked[f"c10-s{seed}"]
        assert x["T2", seed] == pytest.approx(0.0 if one == ten else math.log(one) - math.log(ten))
        costs = []
        for size in (64, 512):
            at = {
                s: min(grokked[f"base-sampler={s}-batch_size={size}-s{seed}"], TINY["steps"])
                for s in ("skewed", "uniform")
            }
            costs.append(math.log(at["skewed"] / at["uniform"]))
        assert x["T3", seed] == pytest.approx(np.mean(costs))
    assert len(x) == len(TESTS) * len(SEEDS)
    # A claim whose numbers were all alike would be tested by chance alone.
    assert all(any(x[name, seed] for seed in SEEDS) for name in TESTS)


MADE = [one for one in NETWORKS.values() if one != ("nanda", "base")]
"""Networks whose runs are made up."""


def write_transformers(folder: Path, x: float) -> None:
    """Tables of Transformers whose claims all have this x, in which E,U is deepest where that is determined."""
    numbers = {name: {seed + 100: value for seed, value in made(x).items()} for name in TESTS}
    each = [{"claim": name, "seed": seed, "x": value} for name, by in numbers.items() for seed, value in by.items()]
    depth = {pair: 0.01 * (i + 1) for i, pair in enumerate(PAIRS)} | {THREE: 0.6}
    runs, rows = [], []
    for study, case in MADE:
        for seed in beyond.SEEDS["transformer"]:
            known = {"study": study, "case": case, "seed": seed}
            never = {"grokked": np.nan, "delay": np.nan} if case == "post" else {"grokked": 300.0, "delay": 50.0}
            runs.append({**known, **NETWORK, "lr_ratio": 1.0, "memorised": 250.0, "half": 200.0, **never})
            for analysis, step in (("plateau", 100), ("over-training", 0), ("over-training", 400)):
                # No embedding that unembeds has a pair E,U.
                pairs = [pair for pair in (*PAIRS, THREE) if (case, pair) != ("tied", "E,U")]
                rows += [
                    {**known, "analysis": analysis, "step": step, "block": pair, "index": 7.0}
                    | {"lowest": -depth[pair] * (1 + step), "highest": 8 * (1 + step), "saddle_bound_constants": np.nan}
                    | {"lowest_residual": (case == "tied") * (1 + step)}
                    for pair in pairs
                ]
    runs += [
        {
            "study": "policy",
            "case": "base",
            **NETWORK,
            "seed": seed,
            "lr_ratio": "prop41",
            "grokked": 150.0 + seed - 200,
        }
        for seed in beyond.SEEDS["transformer"]
    ]
    folder.mkdir()
    tables = {"runs": runs, "curvature": rows, "seeds": each}
    for name, table in {**tables, "verdicts": primary.judge(numbers, TESTS)}.items():
        pd.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)


@pytest.mark.parametrize(("x", "judgement"), [(0.7, "supported"), (-0.7, "not supported"), (0.0, "undecided")])
def test_the_page_follows_the_verdicts(x: float, judgement: str, tmp_path: Path) -> None:
    write_tables(tmp_path / "mid", {}, tokens=4)
    write_transformers(tmp_path / "transformer", x)
    texts = page.written(tmp_path)
    html, report = unescape(texts[tmp_path / "index.html"]), texts[tmp_path / "report.md"]
    assert_told(html, report, TESTS, judgement)
    assert "E,U is the deepest in the median" in html
    # Start, plateau and end; its index beside each.
    assert [f"{0.05 * times:.3g}; 7</a>" in html for times in (1, 101, 401)] == [True] * 3
    plain = unlinked(html)
    # A block that contains a pair is none.
    assert plain.count("E,U 10</td>") == len(MADE) - 1
    share = 100 * max(0.01 * (i + 1) for i, pair in enumerate(PAIRS) if pair != "E,U") / 8
    assert f"<td>not determined</td><td>none found deeper than {share:.3g} % of its λ_max</td>" in plain
    assert re.search(r">1</th><td>\d+ of \d+</td><td>300</td>", plain)
    assert ">by Proposition 4.1</th><td>10 of 10</td><td>154</td>" in plain
    network = "<td>10 of 10</td><td>{}</td><td>{}</td><td>{}</td><td>10</td><td>× 0.5 [0.5, 0.5]</td>"
    assert plain.count(network.format("0 of 10", "∞", "–")) == 1
    assert plain.count(network.format("10 of 10", "300", "50 (50 to 50)")) == len(MADE) - 2
    told = " ".join(plain.split())
    assert "memorised in 10 of 10 seeds, and delays are 50 (50 to 50) steps, median and range" in told
    assert "E,Q,K contains Q,K, × 20 [20, 20] as deep" in told
    assert "Not run: the size of 2301.05217." in told
    assert "p = 59, 3 tokens, d = 16, h = 64, seeds 200 to 209; curvature.csv." in plain
    assert tmp_path / "figures/transformer-depths.svg" in texts


@pytest.mark.parametrize(("followed", "begin"), [((201,), "One network"), ((201, 203), "Networks")])
def test_the_page_shows_large_transformers_over_training(followed: tuple[int, ...], begin: str, tmp_path: Path) -> None:
    """A search that did not converge bounds the depth from below; runs that are analysed once are not in the table."""
    write_tables(tmp_path / "mid", {}, tokens=4)
    folder = tmp_path / "transformer"
    write_transformers(folder, 0.7)
    known = {"study": "nanda", "case": "base"}
    run = {**known, **NETWORK, "lr_ratio": 1.0, "memorised": 200.0, "half": 3000.0, "grokked": 4400.0, "delay": 4200.0}
    analysed = {0: "over-training", 205: "over-training", 1000: "plateau", 4400: "over-training"}
    bounds = {0: ("estimated", 18, 99), 205: ("bracketed", 3, 3), 1000: ("bracketed", 0, 1), 4400: ("estimated", 0, 99)}
    rows = [
        {**known, "seed": seed, "analysis": analysis, "step": step, "block": pair, "index": 7.0}
        | {"lowest": -0.04 / (1 + step), "highest": 0.5, "lowest_residual": 0.02 * (step == 1000)}
        | dict(zip(("index_level", "index_lower", "index_upper"), bounds[step], strict=True))
        for pair in (*PAIRS, THREE)
        for step, analysis in analysed.items()
        for seed in (*followed, 202)
        if seed in followed or analysis == "plateau"
    ]
    for name, more in {"runs": [{**run, "seed": seed} for seed in (*followed, 202)], "curvature": rows}.items():
        pd.concat([pd.read_csv(folder / f"{name}.csv"), pd.DataFrame(more)]).to_csv(folder / f"{name}.csv", index=False)
    texts = page.written(tmp_path)
    html, report = (
        " ".join(unlinked(unescape(texts[tmp_path / name])).split()) for name in ("index.html", "report.md")
    )
    steps = ("start", "memorised, 205", "plateau, 1,000", "grokked, 4,400")
    for seed in followed:
        assert "".join(f"<th>{step}</th>" for step in (f"pair, seed {seed}", *steps)) in html
    assert html.count("<th>pair, seed ") == len(followed)
    cells = ("0.04; 8 %; ≥ 18", "0.000194; 0.0388 %; 3", "≥ 4e−05; 0.00799 %; 0 to 1", "9.09e−06; 0.00182 %; open")
    assert html.count("".join(f"<td>{cell}</td>" for cell in cells)) == len((*PAIRS, THREE)) * len(followed)
    assert f"{begin} of the size of 2301.05217 over training" in html
    assert "| pair, seed 201 | start | memorised, 205 | plateau, 1,000 | grokked, 4,400 |" in report


def test_a_trial_without_transformers_says_nothing_of_them(tmp_path: Path) -> None:
    write_tables(tmp_path / "mid", {}, tokens=4)
    texts = page.written(tmp_path)
    assert 'id="transformers"' not in texts[tmp_path / "index.html"]
    assert not any("transformer" in path.name for path in texts)
