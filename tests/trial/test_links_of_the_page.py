"""No number of the committed page stands alone: what comes from a table leads to its row."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import page
import pandas as pd
import pytest
from helpers.pages import NUMBER, Loose

REFERENCE = Path(__file__).parents[2] / "reports/reference"
KEYS = {
    *("study", "case", "seed", "p", "tokens", "embed_dim", "hidden", "lr", "lr_ratio", "weight_decay", "batch_size"),
    *("first", "last", "words", "token", "skew", "watched", "seeds", "units"),
}
"""Columns that name a setting."""


@pytest.fixture(scope="module")
def committed() -> Loose:
    return Loose((REFERENCE / "index.html").read_text(encoding="utf-8"))


def test_every_number_in_a_table_is_a_link(committed: Loose) -> None:
    """The names of rows and columns are heads; what stands in a cell is a result."""
    assert len(committed.cells) > 1000
    assert [cell for cell in committed.cells if NUMBER.search(cell)] == []


def noisy(table: pd.DataFrame, keys: set[str], rng: np.random.Generator) -> pd.DataFrame:
    """The same table with all its results off by a few per cent, and its last run short of what it reached."""
    before, table = table, table.copy()
    for name in table.select_dtypes("number").columns.difference([*keys]):
        table[name] = table[name] * np.exp(0.03 * rng.standard_normal(len(table)))
    if {"memorised", "half"} <= set(table):
        # Waits between the two keep their signs.
        wait = (before["half"] - before["memorised"]) * np.exp(0.03 * rng.standard_normal(len(table)))
        table["half"] = table["memorised"] + wait
    if "status" in table:
        table.loc[table.index[table["status"] == "critical"][0], "status"] = "unfinished"
    return table


@pytest.mark.long
def test_no_number_outside_of_links_depends_on_the_results(tmp_path: Path, committed: Loose) -> None:
    """Other results leave every number outside of links, that is of settings, definitions and others' papers, alone."""
    rng = np.random.default_rng(0)
    for source in sorted(REFERENCE.glob("*/*.csv")):
        target = tmp_path / source.relative_to(REFERENCE)
        target.parent.mkdir(exist_ok=True)
        # A step is a result where it is that of an event.
        keys = KEYS | (set() if source.stem == "lags" else {"step"})
        noisy(pd.read_csv(source), keys, rng).to_csv(target, index=False)
    shutil.copytree(REFERENCE / "figures", tmp_path / "figures")
    other = Loose(page.written(tmp_path)[tmp_path / "index.html"])
    assert len(Counter(other.linked) - Counter(committed.linked)) > 500, "the results are others"
    assert Counter(other.numbers) == Counter(committed.numbers)
