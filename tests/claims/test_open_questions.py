"""What the open questions count, beside the same count by plain h5py."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import evidence
import h5py
import numpy as np
import open_decay_frequency
import pandas as pd
import pytest
from conftest import TINY
from helpers.studies import STUDIES

from landscape.problems.tasks import make_data
from landscape.sweep.plan import SweepRun, load_sweep, sweep_runs
from landscape.training.loop import train

PUBLISHED = Path(__file__).parents[2] / "reports/reference"


@pytest.mark.parametrize("tokens", [2, 4])
def test_the_rarest_token_is_counted_in_the_training_pairs(tokens: int, tmp_path: Path) -> None:
    """Neither the test pairs nor the operator and `=` are counted."""
    path = tmp_path / "run.h5"
    config = dataclasses.replace(TINY, p=11, tokens=tokens, sampler="zipf", steps=0, checkpoint_every=0)
    train(config, path, quiet=True)
    with h5py.File(path) as file:
        split, pairs = file["data/split"][:], file["data/tokens"][:]
    assert {*split} == {0, 1}
    operands = pairs[split == 0][:, [0, tokens // 2]]
    counts = [int((operands == token).sum()) for token in range(config.p)]
    found = open_decay_frequency.rarest(evidence.Run(SweepRun({}, path, config, {})))
    assert found == pytest.approx(min(counts) / (sum(counts) / config.p), rel=1e-12)


def test_the_published_shares_are_those_of_the_training_pairs() -> None:
    """The pairs of a run follow from its config; page and table say what they hold."""
    table = pd.read_csv(PUBLISHED / "open_decay_frequency/runs.csv").set_index("file")["rarest_token"]
    by_skew: dict[float, list[float]] = {}
    for run in sweep_runs(load_sweep(STUDIES / "decay.json")):
        data = make_data(run.config)
        held = np.bincount(data.tokens[data.split == 0].ravel(), minlength=run.config.p)
        assert table[run.path.name] == pytest.approx(held.min() / held.mean(), rel=1e-12)
        by_skew.setdefault(run.config.skew, []).append(table[run.path.name])
    said = ", ".join(f"{np.median(shares):.2f} at skew {skew:g}" for skew, shares in sorted(by_skew.items()))
    for page in ("report.md", "report.html"):
        assert f"is in the median {said}." in (PUBLISHED / page).read_text()
