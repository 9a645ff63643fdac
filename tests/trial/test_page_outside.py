"""What the page says of networks other than MLPs on addition: the verdict of each on its own claim."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
from helpers.made_tables import write_tables
from page_links import Linked
from page_outside import QUESTIONS, outside

COUPLING, RATE, _, _, DECAY, *_, FREQUENCY = QUESTIONS


def test_each_network_answers_by_its_own_claim(tmp_path: Path) -> None:
    """The same question, of claims by different names and in either table; a dash where none of them asks."""
    write_tables(tmp_path / "paper", {"C4": math.log(1.5), "C8": -math.log(2)}, tokens=4)
    asked = {
        "transformer/verdicts": {"claim": "T2", "verdict": "undecided", "median": math.log(2)},
        "transformer/beyond": {"claim": "G1", "verdict": "supported", "median": math.log(1.25)},
        "text/verdicts": {"claim": "N1", "verdict": "supported", "median": 0.5},
    }
    for table, row in asked.items():
        (tmp_path / table).parent.mkdir(exist_ok=True)
        ends = {"low": row["median"], "high": row["median"]}
        pd.DataFrame([row | ends]).to_csv(tmp_path / f"{table}.csv", index=False)
    found = outside([Linked(tmp_path / name) for name in ("paper", "transformer", "text", "text-transformer")])
    assert found["networks"][0] == "MLP, a + b, at the paper's size"
    assert list(found["answers"]) == list(QUESTIONS)
    texts = {question: [plain(cell) for cell in cells] for question, cells in found["answers"].items()}
    assert texts[COUPLING][1:] == ["–", "–", "–"]
    assert texts[COUPLING][0].startswith("C4 supported, × 1.5")
    assert texts[RATE][0].startswith("C8 not supported, × 0.")
    assert texts[RATE][1:] == ["T2 undecided, × 2 [2, 2]", "–", "–"]
    assert texts[DECAY] == ["–", "–", "N1 supported, 0.5 [0.5, 0.5]", "–"]
    assert texts[FREQUENCY] == ["–", "G1 supported, × 1.25 [1.25, 1.25]", "–", "–"]
    assert "transformer/beyond.csv#L2" in found["answers"][FREQUENCY][1]


def plain(cell: str) -> str:
    return re.sub("<[^>]*>", "", cell)
