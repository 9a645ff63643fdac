"""Rare tokens at the end of training, samplers and starts: rows from the raw files, x, and what the page says."""

from __future__ import annotations

import json
import math
from html import unescape
from pathlib import Path

import beyond
import h5py
import numpy as np
import page
import pandas as pd
import pytest
import rare_late
from helpers.made_tables import NETWORK, judge_beyond, write_tables
from helpers.pages import unlinked
from helpers.tiny_trial import STUDIES, TINY
from page_claims import BEYOND, CLAIMS
from runs import finished
from scale import Scale
from scipy.stats import rankdata

from landscape.jobs.plan import SweepConfig
from landscape.jobs.run import run_sweep

SEEDS = range(500, 510)


@pytest.mark.usefixtures("without_workers")
def test_rows_are_those_of_the_raw_files(tmp_path: Path) -> None:
    """By h5py, and ranks."""
    study = json.loads((STUDIES / "mid/fresh/rare-late.json").read_text())
    tiny = {**study, "train": {**study["train"], **TINY, "sampler": "skewed"}, "seeds": [500]}
    run_sweep(SweepConfig(**tiny), tmp_path, jobs=1, overwrite=False, quiet=True)
    for run in finished("rare-late", tmp_path):
        with h5py.File(run.planned.path) as file:
            norms, steps = file["tokens/embedding_norm"][:], file["tokens/step"][:]
            pairs, split = file["data/tokens"][:], file["data/split"][:]
            meanings = file["data/split"].attrs["flag_meanings"].split()
            train = split == file["data/split"].attrs["flag_values"][meanings.index("train")]
        count = [np.sum(pairs[train] == token) for token in range(TINY["p"])]
        by_step = rare_late.correlations(run).set_index("step")["correlation"]
        assert by_step.index.tolist() == steps.tolist()
        assert steps[-1] == TINY["steps"]
        for i, step in enumerate(steps):
            ranks = [rankdata(values) for values in (count, norms[i, : TINY["p"]])]
            assert by_step[step] == pytest.approx(np.corrcoef(ranks)[0, 1])
        last = rare_late.last_tokens(run)
        assert (last["count"].tolist(), set(last["step"])) == (count, {TINY["steps"]})
        assert last["norm"].tolist() == norms[-1, : TINY["p"]].tolist()
    assert len(set(count)) > 5


ORDER = {"follows": 1, "opposes": -1}


def write_rare(folder: Path, norms: dict[str, str]) -> None:
    """A scale whose norms follow the frequency of tokens, or oppose it, in each case of the study."""
    write_tables(folder, {}, tokens=4)
    tokens, steps, runs = [], [], []
    for case, order in norms.items():
        for seed in SEEDS:
            known = {"study": "rare-late", "case": case, "seed": seed}
            norm = [9 + ORDER[order] * i for i in range(9)]
            tokens += [{**known, "step": 6000, "token": i, "count": i, "norm": norm[i]} for i in range(9)]
            steps += [{**known, "step": step, "correlation": step / 6000 * ORDER[order]} for step in (0, 60, 6000)]
            grokked = 500.0 if case == "full" else math.nan
            memorised = math.nan if (case, seed) == ("nodecay", 500) else 100.0
            runs.append({**known, **NETWORK, "watched": 6000, "grokked": grokked, "memorised": memorised})
    before = folder / "tokens.csv"
    old = pd.read_csv(before) if before.exists() else pd.DataFrame()
    pd.concat([old, pd.DataFrame(tokens)]).to_csv(before, index=False)
    pd.DataFrame(steps).to_csv(folder / "rare_late.csv", index=False)
    pd.concat([pd.read_csv(folder / "runs.csv"), pd.DataFrame(runs)]).to_csv(folder / "runs.csv", index=False)
    judge_beyond(folder)


@pytest.mark.parametrize(
    ("norms", "x", "judgements"),
    [
        (("follows", "follows", "opposes"), (2, 0), ("supported", "undecided")),
        (("opposes", "follows", "opposes"), (0, -2), ("undecided", "not supported")),
        (("opposes", "opposes", "follows"), (-2, 0), ("not supported", "undecided")),
        (("follows", "opposes", "follows"), (0, 2), ("undecided", "supported")),
    ],
)
def test_the_page_follows_rare_tokens(
    norms: tuple[str, ...], x: tuple[int, int], judgements: tuple[str, str], tmp_path: Path
) -> None:
    write_rare(tmp_path / "mid", dict(zip(("small", "full", "nodecay"), norms, strict=True)))
    scale = Scale(tmp_path / "mid")
    for value, test in zip(x, (beyond.trained_decay, beyond.trained_batches), strict=True):
        assert test(scale) == pytest.approx(dict.fromkeys(SEEDS, value))
    texts = page.written(tmp_path)
    html, report = unescape(texts[tmp_path / "index.html"]), texts[tmp_path / "report.md"]
    for name, judgement in zip(("R1", "R2"), judgements, strict=True):
        sentence = {"supported": BEYOND[name].holds, "not supported": BEYOND[name].opposite}
        assert html.count(said := sentence.get(judgement, BEYOND[name].question)) >= (2 if name == "R1" else 1)
        assert said in report
        assert f"{name} {judgement}, " in " ".join(unlinked(html).split())
    last = {"follows": "1 [1, 1]", "opposes": "−1 [−1, −1]"}
    small, full, without = (last[order] for order in norms)
    told = f"batches of 64 {small}, full batches {full}, batches of 64, no weight decay {without}."
    assert told in " ".join(unlinked(html).split())
    told = "Grokked by then: batches of 64 0 of 10, full batches 10 of 10, batches of 64, no weight decay 0 of 10."
    assert told in " ".join(unlinked(html).split())
    assert "R2 compares networks that have grokked with networks that have not." in html
    assert "R1 compares networks" not in html
    assert (
        "norm at the last step, batches of 64 minus full batches. Mind: one of the two cases alone has grokked at mid."
        in html
    )
    assert "* R2: one of the two cases alone has grokked at mid.\n" in report
    assert html.count("one of the two cases alone") == 1
    # The rarest of nine tokens has norm 9, the most frequent 17 or 1.
    ratio = {"follows": "× 0.529 [0.529, 0.529]", "opposes": "× 9 [9, 9]"}
    small, full, without = (ratio[order] for order in norms)
    told = "Median norm of the rarest fifth of tokens over that of the most frequent: "
    told += f"batches of 64 {small}, full batches {full}, batches of 64, no weight decay {without}."
    assert told in " ".join(unlinked(html).split())
    told = "Memorised by then: batches of 64 10 of 10, full batches 10 of 10, batches of 64, no weight decay 9 of 10."
    assert told in " ".join(unlinked(html).split())
    assert ("With weight decay norms do not clearly follow frequency here." in html) == (norms[0] == "opposes")
    assert "seeds 500 to 509; rare_late.csv." in unlinked(html)
    assert tmp_path / "figures/mid-rare.svg" in texts


def test_where_norms_do_not_follow_frequency_the_page_says_so(tmp_path: Path) -> None:
    """In half of the seeds they do, in half they go the other way."""
    write_rare(tmp_path / "mid", dict.fromkeys(("small", "full", "nodecay"), "follows"))
    tokens = pd.read_csv(tmp_path / "mid/tokens.csv")
    odd = (tokens["study"] == "rare-late") & (tokens["seed"] % 2 == 1)
    tokens.loc[odd, "norm"] *= -1
    tokens.to_csv(tmp_path / "mid/tokens.csv", index=False)
    runs = pd.read_csv(tmp_path / "mid/runs.csv")
    runs.loc[runs["study"] == "rare-late", ["grokked", "memorised"]] = 500.0
    runs.to_csv(tmp_path / "mid/runs.csv", index=False)
    judge_beyond(tmp_path / "mid")
    texts = page.written(tmp_path)
    for name in ("index.html", "report.md"):
        assert "With weight decay norms do not clearly follow frequency here." in texts[tmp_path / name]
        assert "have grokked with networks" not in texts[tmp_path / name]
        assert "one of the two cases alone" not in texts[tmp_path / name].lower()
        assert "Memorised by then" not in texts[tmp_path / name]


def test_the_page_has_rare_tokens_of_transformers_alone_and_none_that_were_not_judged(tmp_path: Path) -> None:
    write_tables(tmp_path / "mid", {}, tokens=4)
    write_rare(tmp_path / "transformer", dict.fromkeys(("small", "full", "nodecay"), "follows"))
    (tmp_path / "transformer/verdicts.csv").unlink()
    html = page.written(tmp_path)[tmp_path / "index.html"]
    assert "<h2>Rare tokens at the end of training</h2>" in html
    for name in ("beyond", "beyond-seeds"):
        (tmp_path / f"transformer/{name}.csv").unlink()
    assert 'id="rare"' not in page.written(tmp_path)[tmp_path / "index.html"]


def write_grokked(folder: Path, steps: dict[tuple[str, str, str, int], float], watched: int = 30_000) -> None:
    """A scale with runs of these studies, cases, samplers and batches that grok at about these steps."""
    write_tables(folder, {}, tokens=4)
    runs = [
        {"study": study, "case": case, "sampler": sampler, "batch_size": size, "seed": seed, **NETWORK}
        | {"grokked": step * (1 + (seed - 500) / 100), "memorised": 100.0, "watched": watched}
        for (study, case, sampler, size), step in steps.items()
        for seed in SEEDS
    ]
    pd.concat([pd.read_csv(folder / "runs.csv"), pd.DataFrame(runs)]).to_csv(folder / "runs.csv", index=False)
    judge_beyond(folder)


def test_the_page_follows_samplers_and_starts(tmp_path: Path) -> None:
    """Frequency-aware batches grok twice as soon, E at twice its start never, W at twice its start sooner."""
    study = "sensitivity"
    steps = {(study, "random", "random", 64): 2000.0, (study, "aware", "frequency_aware", 64): 1000.0}
    steps |= {(study, "E-double", "random", 512): math.nan, (study, "E-half", "random", 512): 1000.0}
    steps |= {(study, "W-double", "random", 512): 500.0, (study, "W-half", "random", 512): 1000.0}
    # Skewed batches of 64 never grok, and count with the budget; those of 512 grok at three times the step.
    slow = ("sampling-slow", "base")
    steps |= {(*slow, "uniform", 64): 10_000.0, (*slow, "skewed", 64): math.nan}
    steps |= {(*slow, "uniform", 512): 1000.0, (*slow, "skewed", 512): 3000.0}
    write_grokked(tmp_path / "paper", steps)
    scale = Scale(tmp_path / "paper")
    tests = {"S1": beyond.aware, "I1": beyond.start_of_E, "I2": beyond.start_of_W}
    expected = {"S1": math.log(2), "I1": math.inf, "I2": -math.log(2)}
    for name, test in tests.items():
        assert test(scale) == pytest.approx(dict.fromkeys(SEEDS, expected[name]))
    slower = {seed: (math.log(3 / (1 + (seed - 500) / 100)) + math.log(3)) / 2 for seed in SEEDS}
    assert beyond.slow_sampling(scale) == pytest.approx(slower)
    html = unescape(page.written(tmp_path)[tmp_path / "index.html"])
    plain = " ".join(unlinked(html).split())
    for name, judgement, effect in (
        ("S1", "supported", "× 2 [2, 2]"),
        ("S2", "supported", "× 2.93 [2.89, 2.99]"),
        ("I1", "supported", "× ≥ 28.7 (10 of 10 never by 30,000)"),
        ("I2", "not supported", "× 0.5 [0.5, 0.5]"),
    ):
        claim = BEYOND[name]
        assert f"<h3>{name}. {claim.holds if judgement == 'supported' else claim.opposite}</h3>" in html
        assert f'{judgement.replace(" ", "-")}">paper: {judgement}</span> {effect}; p = ' in plain
    # Nothing of rare tokens, which were not studied.
    assert 'id="rare"' not in html
    assert BEYOND["R1"].question not in html


def test_a_verdict_whose_interval_includes_no_effect_says_so(tmp_path: Path) -> None:
    """Nine seeds grok later by a lot, two of them hardly, one sooner by a little."""
    study, kinds = "sensitivity", ("E-double", "E-half", "W-double", "W-half", "random", "aware")
    write_grokked(tmp_path / "mid", {(study, kind, "random", 512): 1000.0 for kind in kinds})
    runs = pd.read_csv(tmp_path / "mid/runs.csv")
    for i, by in enumerate((-0.01, -0.02, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)):
        at = (runs["study"] == study) & (runs["case"] == "E-double") & (runs["seed"] == SEEDS[i])
        runs.loc[at, "grokked"] *= math.exp(by)
    runs.to_csv(tmp_path / "mid/runs.csv", index=False)
    judge_beyond(tmp_path / "mid")
    report = page.written(tmp_path)[tmp_path / "report.md"]
    assert BEYOND["I1"].holds in report
    told = "the ranks of all seeds decide, though the interval includes no effect, at mid."
    assert report.count(f"* I1: {told}") == report.count(told) == 1


def test_every_claim_has_its_definition_in_the_protocol() -> None:
    assert set(page.definitions()) == set(CLAIMS) | set(BEYOND)
