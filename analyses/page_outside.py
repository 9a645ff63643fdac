"""What the trial's page says of networks other than MLPs on modular addition: each question, and its verdict there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from page_bounds import shown
from page_claims import size
from page_links import Linked

QUESTIONS = {
    "Is the coupling of E with what reads it deeper than that of the layers after it?": ("C4", "T1", "N4", "N5"),
    "Does Adam-LR (c = 10) learn sooner?": ("C8", "T2", None, "N6"),
    "Does c by Proposition 4.1 learn more in as many steps?": (None, None, "N3", None),
    "Do uniform tokens grok before skewed ones?": ("C3", "T3", None, None),
    "Does weight decay leave rare tokens with shorter embeddings?": ("R1", "R1", "N1", None),
    "Do small batches do so more than large ones?": ("R2", "R2", "N2", None),
    "Does E's rate at its edge of stability (auto) grok sooner than c = 1?": ("A1", "A1", None, None),
    "Does the main frequency appear before 50 % test accuracy?": ("G1", "G1", None, None),
}
"""The claim that asks it of each network."""


def outside(networks: Sequence[Linked]) -> dict[str, Any]:
    """By question, the verdict and effect in each network, a dash where it was not asked.

    networks: an MLP and a Transformer on addition, and both on text.
    """
    answers = {
        question: [verdict(scale, name) if name else "–" for scale, name in zip(networks, claims, strict=True)]
        for question, claims in QUESTIONS.items()
    }
    mlp = f"MLP, a + b, {size(networks[0].name)}"
    return {"networks": (mlp, "Transformer, a + b", "MLP, text", "Transformer, text"), "answers": answers}


def verdict(scale: Linked, name: str) -> Markup | str:
    """The verdict on a claim with its effect; a dash where it has none."""
    for table in ("verdicts", "beyond"):
        rows = scale.tables.get(table)
        if rows is not None and name in set(rows["claim"]):
            row = rows.set_index("claim", drop=False).loc[name].to_dict()
            return scale.link(table, f"{name} {row['verdict']}, {shown(scale, name, row)}", claim=name)
    return "–"
