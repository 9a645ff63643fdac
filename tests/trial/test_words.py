"""Natural text: x and the tables of words from the raw files by other means, and what the page says of them."""

from __future__ import annotations

import csv
import json
import math
import pydoc_data.topics
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
import pytest
import torch
import words
from helpers.made_tables import assert_told, write_tables
from helpers.made_texts import OF_READER, TESTS, TINY, write_text
from helpers.once import made_once
from helpers.pages import unlinked
from helpers.tiny_trial import STUDIES
from helpers.trial_by_hand import verdict
from page_words import RATES
from runs import finished
from scipy import stats

from landscape.jobs.plan import SweepConfig
from landscape.jobs.run import run_sweep

SEEDS = (300, 301)
REFERENCE = STUDIES.parent / "reports/reference"


def make_words(folder: Path) -> None:
    """The tiny runs and analyses that the primary tests read, in a folder `text`."""
    text = folder / "topics.txt"
    text.write_text("\n".join(pydoc_data.topics.topics.values()), encoding="utf-8")
    for name in ("words", "rates", "curvature", "samplers"):
        study = json.loads(next((STUDIES / "text/beyond").rglob(f"{name}.json")).read_text())
        analyses = [{**one, "device": "cpu"} for one in study.get("hessian", ())]
        # Larger batches than of TINY, but not full ones.
        cases = {
            case: {**options, **({"batch_size": 100} if "batch_size" in options else {})}
            for case, options in study.get("cases", {"base": {}}).items()
        }
        grid = {"sampler": ["uniform"], "weight_decay": [0.0]} if "grid" in study else {}
        tiny = {**study, "train": {**study["train"], **TINY, "text": str(text)}, "cases": cases, "grid": grid}
        tiny |= {"seeds": list(SEEDS), "hessian": analyses}
        run_sweep(SweepConfig(**tiny), folder / "text", jobs=1, overwrite=False, quiet=True)


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return made_once(tmp_path_factory, make_words) / "text"


def run(main: Any, *arguments: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["script", *map(str, arguments)])
        patch.setattr(beyond, "SEEDS", {"text": SEEDS})
        main()


def correlation(path: Path) -> float:
    """Of a word's places in training contexts with its norm at the end, but for the last word of the vocabulary."""
    with h5py.File(path) as file:
        contexts = file["data/tokens"][:][file["data/split"][:] == 0]
        norms = np.linalg.norm(file["checkpoints/E"][-1][:-1], axis=1)
    places = [np.count_nonzero(contexts == word) for word in range(len(norms))]
    return float(np.corrcoef(stats.rankdata(places), stats.rankdata(norms))[0, 1])


def lowest_loss(path: Path) -> float:
    with h5py.File(path) as file:
        return float(file["metrics/test_loss"][:].min())


@pytest.mark.slow
@pytest.mark.usefixtures("without_workers")
@pytest.mark.long
def test_x_is_that_of_the_raw_files(scale: Path, tmp_path: Path) -> None:
    run(collect.main, scale, "--out", tmp_path)
    run(beyond.main, tmp_path / "text")
    table = pd.read_csv(tmp_path / "text/seeds.csv")
    x = {(row.claim, row.seed): row.x for row in table.itertuples()}
    for seed in SEEDS:
        of = {case: correlation(scale / f"words/{case}-s{seed}.h5") for case in ("decay", "none", "large")}
        # Norms have five decimals in the table, which may tie two of sixty words.
        assert x["N1", seed] == pytest.approx(of["decay"] - of["none"], abs=1e-3)
        assert x["N2", seed] == pytest.approx(of["decay"] - of["large"], abs=1e-3)
        losses = [lowest_loss(scale / f"{run}-s{seed}.h5") for run in ("words/decay", "rates/prop41")]
        assert x["N3", seed] == pytest.approx(losses[0] - losses[1])
        with h5py.File(scale / f"curvature/base-s{seed}.hessian-middle.h5") as file:
            lowest = dict(zip(file["block"].asstr(), file["eigenvalues"][0, :, 0, 0], strict=True))
        assert x["N4", seed] == pytest.approx(math.log(lowest["E,W"] / lowest["W,V"]))
    for run_of in finished("words", scale):
        row = words.zipf(run_of)
        path = scale / f"words/{row['case']}-s{row['seed']}.h5"
        assert row["correlation"] == pytest.approx(correlation(path), abs=1e-3)
        assert (row["text"], row["words"]) == ("topics", 60)
    assert len(x) == len(TESTS) * len(SEEDS)
    assert all(any(x[name, seed] for seed in SEEDS) for name in TESTS)


class Committed:
    """What the tables of a scale give, by csv and NumPy alone."""

    def __init__(self, scale: str) -> None:
        self.folder = REFERENCE / scale

    def rows(self, name: str, **known: str) -> list[dict[str, str]]:
        with (self.folder / f"{name}.csv").open(encoding="utf-8") as file:
            return [row for row in csv.DictReader(file) if all(row[k] == value for k, value in known.items())]

    def correlation(self, case: str, seed: str) -> float:
        of = np.array([(row["count"], row["norm"]) for row in self.rows("words", case=case, seed=seed)], float)
        return float(np.corrcoef(*(stats.rankdata(column) for column in of.T))[0, 1])

    def best(self, study: str, case: str, seed: str) -> float:
        return min(float(row["test_loss"]) for row in self.rows("losses", study=study, case=case, seed=seed))

    def deeper(self, one: str, other: str, seed: str) -> float:
        found = []
        for block in (one, other):
            (row,) = self.rows("curvature", study="curvature", analysis="middle", block=block, seed=seed)
            found.append(-float(row["lowest"]))
        return math.log(found[0] / found[1])

    def require(self, x: dict[str, dict[int, float]]) -> None:
        """The numbers and verdicts that are committed are these."""
        for row in self.rows("seeds"):
            assert float(row["x"]) == pytest.approx(x[row["claim"]][int(row["seed"])], abs=1e-9)
        assert len(self.rows("seeds")) == 10 * len(x)
        by_hand = verdict(x)
        for row in self.rows("verdicts"):
            assert (pytest.approx(float(row["holm"])), row["verdict"]) == by_hand[row["claim"]]


def test_the_committed_verdicts_are_those_of_the_committed_rows() -> None:
    text, x = Committed("text"), {name: dict[int, float]() for name in TESTS}
    for seed in map(str, range(300, 310)):
        of = {case: text.correlation(case, seed) for case in ("decay", "none", "large")}
        x["N1"][int(seed)], x["N2"][int(seed)] = of["decay"] - of["none"], of["decay"] - of["large"]
        x["N3"][int(seed)] = text.best("words", "decay", seed) - text.best("rates", "prop41", seed)
        x["N4"][int(seed)] = text.deeper("E,W", "W,V", seed)
    text.require(x)


def test_the_committed_verdicts_on_a_transformer_are_those_of_the_committed_rows() -> None:
    reader, x = Committed("text-transformer"), {name: dict[int, float]() for name in OF_READER}
    for seed in map(str, range(300, 310)):
        x["N5"][int(seed)] = reader.deeper("E,mlp_in", "mlp_in,mlp_out", seed)
        x["N6"][int(seed)] = reader.best("rates", "c1", seed) - reader.best("rates", "c10", seed)
    reader.require(x)


@pytest.mark.slow
@pytest.mark.usefixtures("without_workers")
def test_ranges_are_those_of_the_raw_files(scale: Path) -> None:
    """The gradient by autograd; losses by PyTorch, place by place."""
    run = next(run for run in finished("words", scale) if run.labels["case"] == "decay")
    table = words.ranges(run)
    with h5py.File(run.planned.path) as file:
        read = lambda name: torch.from_numpy(file[name][:])  # noqa: E731
        tokens, labels, split = (read(f"data/{name}").long() for name in ("tokens", "labels", "split"))
        weights = [read(f"checkpoints/{name}").double() for name in ("E", "W", "b1", "V", "b2")]
        steps, seen = file["checkpoints/step"][:], file["tokens/count"][-1]
    each = []
    for i in range(len(steps)):
        E, W, b1, V, b2 = (w[i].clone().requires_grad_() for w in weights)
        logits = torch.relu(E[tokens].flatten(1) @ W.T + b1) @ V.T + b2
        each.append(torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
    each[-1][split == 0].mean().backward()
    e, g = E.detach()[:-1], E.grad[:-1]
    sizes = e.norm(dim=1), g.norm(dim=1)
    balance, opposed = 1e-3 * sizes[0] / sizes[1], -(e * g).sum(dim=1) / sizes[0] / sizes[1]
    frequency = torch.bincount(labels[split == 0], minlength=60) + 1.0
    alone = -(frequency / frequency.sum()).log()[labels]
    for row in table.itertuples():
        of = slice(row.first - 1, row.last)
        np.testing.assert_allclose(row.norm, np.median(e[of].norm(dim=1)), rtol=1e-6)
        np.testing.assert_allclose(row.balance, np.median(balance[of]), rtol=1e-6)
        np.testing.assert_allclose(row.opposed, np.nanmedian(opposed[of]), rtol=1e-6, atol=1e-9)
        assert row.updated == pytest.approx(np.median(seen[of]) / steps[-1])
        there = (split == 1) & (tokens[:, -1] >= row.first - 1) & (tokens[:, -1] < row.last)
        gain = [float((alone - loss.detach())[there].mean()) for loss in each]
        half = [step for step, value in zip(steps, gain, strict=True) if value >= max(gain) / 2]
        np.testing.assert_equal(row.learned, half[0] if max(gain) > 0 else np.nan)
    # Every word but the last of the vocabulary is in one range.
    assert table["first"].tolist()[1:] == [last + 1 for last in table["last"][:-1]]
    assert (table["first"].iloc[0], table["last"].iloc[-1]) == (1, 59)


@pytest.mark.parametrize(("x", "judgement"), [(0.7, "supported"), (-0.7, "not supported"), (0.0, "undecided")])
def test_the_page_follows_the_verdicts(x: float, judgement: str, tmp_path: Path) -> None:
    write_tables(tmp_path / "mid", {}, tokens=4)
    write_text(tmp_path / "text", x)
    texts = page.written(tmp_path)
    html, report = unescape(texts[tmp_path / "index.html"]), texts[tmp_path / "report.md"]
    assert_told(html, report, TESTS, judgement)
    for text in (html, report):
        assert "4 of 4</a> runs the" in text.replace("\n", " ")
        # Of two weight decays one rate is what the others are compared with; the lowest is that of step 400.
        for loss, times in ((5.5, 1), (4.25, 2), (4.75, 1)):
            assert text.count(f">{loss}</a>") == 2 * times
            assert text.count(f">{loss} (0 of 1 lower)</a>") == (len(RATES) - 2) * times
        assert text.count(">1.5</a>") == len(RATES)
        assert text.count(">0.015</a>") == text.count(">0.045</a>") == text.count(">2.5</a>") == 2
        assert ">3.25</a>" in text
        # Powers of −1, −2 and −3 in three seeds.
        assert "fall with the power −2 (−3 to −1; n = 3) of its rank" in unlinked(text)
        # Ratio and cosine of both ranges, of the settings with weight decay.
        assert text.count(">0.5; 0.25</a>") == 2 * 2
        assert ">random batches of 64 at weight decay 0.001</a>" in text
        assert "1 of 1</a> seeds bounds decide" in text
        # Medians over seeds of what weight decay adds, and of what small batches take; the judged seeds themselves.
        assert text.count(">0.562 [0.5, 0.625]</a>") == text.count(">−0.125 [−0.125, −0.125]</a>") == 1
        assert text.count("Jargon File") == 1
        bible = r"King James Bible(</th><th scope=\"row\">| \| )500(</th><td>| \| )10\b"
        assert re.search(bible, unlinked(text))
    plain = unlinked(html)
    assert plain.count("Vocabulary 500, d = 16, h = 64, seed 300; ") == 2
    # Two samplers, two decays, two sizes of batches, three quantities; words that are never learned have no curve.
    figure = texts[tmp_path / "figures/text-ranks.svg"]
    assert (figure.count("<path"), figure.count("stroke-dasharray")) == (20, 10)
    assert tmp_path / "figures/text-depths.svg" in texts


def test_a_trial_without_text_says_nothing_of_it(tmp_path: Path) -> None:
    write_tables(tmp_path / "mid", {}, tokens=4)
    texts = page.written(tmp_path)
    assert 'id="text"' not in texts[tmp_path / "index.html"]
    assert not any("text" in path.name for path in texts)
