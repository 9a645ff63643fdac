"""What the trial's page puts beside others' results: Gromov's solution, Grokfast's division, late spikes in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup
from page_arms import step
from page_claims import number
from page_links import Linked, linked

GROMOV = "others/gromov.csv"
"""Below the folder of the page; analyses/gromov.py writes it."""


def gromov(out: Path) -> dict[str, Markup] | None:
    """Size, saddle index and zero eigenvalues of Gromov's analytic solution; None where it was not measured."""
    if not (out / GROMOV).exists():
        return None
    rows = pd.read_csv(out / GROMOV)
    whole = rows[rows["block"] == "all"].iloc[0]
    most = rows["negative"].idxmax()
    texts = {
        **{name: f"{whole[name]:,}" for name in ("p", "units", "parameters", "zero", "positive")},
        "grad_norm": number(whole["grad_norm"]),
    }
    cells = {name: linked(GROMOV, rows, text, block="all") for name, text in texts.items()}
    index = linked(GROMOV, rows, str(rows["negative"][most]), block=rows["block"][most])
    return {**cells, "index": index, "level": Markup(" and ").join(sorted(set(rows["level"])))}


def division(scales: Sequence[Linked]) -> list[dict[str, Any]]:
    """Median steps of division by scale and rate: memorised, grokked."""
    found = []
    for one in scales:
        for case, words in {"c1": "Adam", "c10": "Adam-LR (c = 10)"}.items():
            known = {"study": "tasks", "case": case, "task": "div"}
            rows = one.runs("tasks", case=case, task="div")
            if rows.empty:
                continue
            cells = {
                "p": str(rows["p"].iloc[0]),
                "grokked": step(rows["grokked"]),
                "memorised": step(rows["memorised"]),
                "runs": str(len(rows)),
            }
            shown = {name: one.link("runs", text, **known) for name, text in cells.items()}
            found.append({"words": f"MLP at {one.name}, {words}", **shown})
    return found


def spikes(scales: Sequence[Linked]) -> dict[str, Any]:
    """In how many runs the training loss spiked after grokking, by scale and precision; whether it did in any."""
    found, any_at_all = {}, False
    for one in scales:
        for case in ("float32", "float64"):
            if len(rows := one.runs("spikes", case=case)):
                any_at_all |= bool((rows["spikes"] > 0).any())
                words = f"{(rows['spikes'] > 0).sum()} of {len(rows)}"
                found[f"{one.name}, {case}"] = one.link("runs", words, study="spikes", case=case)
    return {"counts": found, "any": any_at_all}
