"""What is committed of the trial: its verdicts, again from its tables with NumPy and SciPy alone, and its page."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import page
import pytest
from helpers.trial_by_hand import Tables, every_x, verdict

REFERENCE = Path(__file__).parents[2] / "reports/reference"
SCALES = ("quick", "mid", "paper")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", SCALES)
def test_verdicts_follow_from_the_committed_tables(name: str) -> None:
    folder = REFERENCE / name
    if not (folder / "verdicts.csv").exists():
        pytest.skip(f"no verdicts of {name} are committed yet: make studies")
    x = every_x(Tables(folder))
    for row in rows(folder / "seeds.csv"):
        assert np.isclose(x[row["claim"]][int(row["seed"])], float(row["x"]), rtol=1e-12, atol=1e-12), row
    verdicts, by_hand = rows(folder / "verdicts.csv"), verdict(x)
    assert [row["claim"] for row in verdicts] == list(x)
    for row in verdicts:
        corrected, judgement = by_hand[row["claim"]]
        assert row["verdict"] == judgement, row
        assert np.isclose(float(row["holm"]), corrected), row
        assert np.isclose(float(row["median"]), np.median(list(x[row["claim"]].values()))), row


def test_the_committed_page_is_that_of_the_committed_tables() -> None:
    if not (REFERENCE / "index.html").exists():
        pytest.skip("no page is committed yet: python analyses/page.py")
    for path, text in page.written(REFERENCE).items():
        assert path.read_text(encoding="utf-8") == text, path
