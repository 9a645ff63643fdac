"""What became of verdicts whose runs were trained again with the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from page_claims import effect, number
from page_links import Linked

AGAIN = "again"
"""Table of a scale: rows as those of verdicts.csv, of the claims whose runs were trained and analysed again."""


def again(scale: Linked, claim: str) -> dict[str, Markup] | None:
    """Verdict, effect and Holm's p of a claim from runs trained again; None: there are none."""
    rows = scale.tables.get(AGAIN)
    if rows is None or claim not in set(rows["claim"]):
        return None
    row = dict(rows[rows["claim"] == claim].iloc[0])
    texts = {"verdict": row["verdict"], "effect": effect(claim, row), "p": number(row["holm"])}
    return {name: scale.link(AGAIN, text, claim=claim) for name, text in texts.items()}


def turned(scales: Sequence[Linked]) -> list[dict[str, Any]]:
    """By scale the claims whose verdict is another from runs trained again, the same, and those not made again."""
    found = []
    for scale in scales:
        if AGAIN in scale.tables:
            both = scale.tables[AGAIN].merge(scale.tables["verdicts"], on="claim", suffixes=("", "_first"))
            other = both["verdict"] != both["verdict_first"]
            first = scale.tables["verdicts"]["claim"]
            names = {
                "rest": first[~first.isin(both["claim"])].tolist(),
                "other": both["claim"][other].tolist(),
                "same": both["claim"][~other].tolist(),
            }
            found.append({"scale": scale.name, **names})
    return found
