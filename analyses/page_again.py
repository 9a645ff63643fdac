"""What became of verdicts whose runs were trained again with the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from page_claims import effect, number
from page_links import Linked

AGAIN = "again"
"""Table of a scale: rows as those of verdicts.csv, from runs trained and analysed again with other rounding."""


def again(scale: Linked, claim: str) -> dict[str, Markup] | None:
    """Verdict, effect and Holm's p of a claim from runs trained again; None: there are none."""
    rows = scale.tables.get(AGAIN)
    if rows is None:
        return None
    row = dict(rows[rows["claim"] == claim].iloc[0])
    texts = {"verdict": row["verdict"], "effect": effect(claim, row), "p": number(row["holm"])}
    return {name: scale.link(AGAIN, text, claim=claim) for name, text in texts.items()}


def turned(scales: Sequence[Linked]) -> list[dict[str, Any]]:
    """By scale the claims whose verdict is another from runs trained again, and how many have the same."""
    found = []
    for scale in scales:
        if AGAIN in scale.tables:
            both = scale.tables[AGAIN].merge(scale.tables["verdicts"], on="claim", suffixes=("", "_first"))
            other = both["verdict"] != both["verdict_first"]
            found.append({"scale": scale.name, "same": int((~other).sum()), "other": both["claim"][other].tolist()})
    return found
