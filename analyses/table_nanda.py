"""Transformers of the size of arXiv 2301.05217 over training

By pair, seed and step: depth, its share of the block's λ_max, and how many eigenvalues lie below −10⁻³ ‖H‖, bracketed
or at least (≥; open: no bound is known). A search whose residual is above 1 % of its value gives the least that the
depth can be. Steps are the stored ones nearest to each event.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from table_pairs import PAIRS, THREE
from tables import Scale, main, number

NANDA = {"study": "nanda", "case": "base"}


def depth_and_index(row: Mapping[str, Any]) -> str:
    least = "≥ " if row["lowest_residual"] > 0.01 * abs(row["lowest"]) else ""
    share = number(-100 * row["lowest"] / row["highest"])
    return f"{least}{number(-row['lowest'])}; {share} %; {bracket(row)}"


def bracket(row: Mapping[str, Any]) -> str:
    """What the bounds of an index leave; of one that is estimated the upper one is the size of the block."""
    low, high = (f"{row[f'index_{end}']:,.0f}" for end in ("lower", "upper"))
    if row["index_level"] == "estimated":
        return f"≥ {low}" if row["index_lower"] else "open"
    return low if low == high else f"{low} to {high}"


def table(root: Path) -> pd.DataFrame:
    scale, rows = Scale(root / "transformer"), []
    for seed in sorted(set(scale.rows("curvature", **NANDA, analysis="over-training").index)):
        every = scale.rows("curvature", **NANDA, seed=seed)
        steps, run = sorted(set(every["step"])), scale.runs(**NANDA, seed=seed).iloc[0]
        near = {event: min(steps, key=lambda step: abs(step - run[event])) for event in ("memorised", "grokked")}
        named = {step: "plateau" if step else "start" for step in steps} | {step: event for event, step in near.items()}
        for pair in (*PAIRS, THREE):
            of_pair = every[every["block"] == pair].set_index("step", drop=False)
            cells = {name: f"{depth_and_index(of_pair.loc[step].to_dict())}" for step, name in named.items()}
            rows.append({"seed": seed, "steps": ", ".join(f"{step:,}" for step in steps), "pair": pair} | cells)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(table)
