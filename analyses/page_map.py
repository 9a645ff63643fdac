"""What the trial's page says of weight decay and the skew of tokens, where batches are small."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from page_claims import effect, number, said
from page_figures import heat
from page_links import Link, Linked
from primary import Numbers, judge
from scale import chosen

CLAIM = "G2"
DECAYS, SKEWS = (0.0005, 0.002), (0.0, 0.7)
"""Of the primary test: least first."""
PANELS = {
    "grokked": "step of grokking",
    "rest": "step at which rare tokens rest, over that of frequent ones",
}
"""What the map shows, by the name of its panel."""


def cost_of_skew(table: pd.DataFrame) -> Numbers:
    """x of a seed: how much more skewed tokens cost under more weight decay; what never grokked counts as watched."""
    steps = table["grokked"].fillna(table["watched"])
    at = steps.groupby([table["seed"], table["weight_decay"], table["skew"]]).first()
    (low, high), (flat, skewed) = DECAYS, SKEWS
    cost = lambda seed, decay: math.log(at[seed, decay, skewed] / at[seed, decay, flat])  # noqa: E731
    return {int(seed): cost(seed, high) - cost(seed, low) for seed in table["seed"].unique()}


def decay_map(scale: Linked, link: Link) -> dict[str, Any] | None:
    """The verdict on G2, and a map of grokking and of the embeddings' rest; None where that was not studied."""
    if "map" not in scale.tables:
        return None
    table = scale.tables["map"]
    (row,) = judge({CLAIM: cost_of_skew(table)}, {CLAIM: ("", lambda _: {})}).to_dict("records")
    row["seeds_to_decide"] = math.nan if row["seeds_to_decide"] is None else row["seeds_to_decide"]
    shown = {name: cells(table, name) for name in PANELS}
    skewed, judged_on = {"skew": table["skew"].max()}, {"skew": SKEWS[1], "weight_decay": DECAYS[1]}
    absent = {name: float(chosen(table, **skewed)[f"absent_{name}"].median()) for name in OF}
    alt = "; ".join(f"{PANELS[name]} by weight decay and skew" for name in PANELS)
    return {
        "sentence": said(CLAIM, row, lambda text: link("map", text, **judged_on)),
        "effect": link("map", effect(CLAIM, row), **judged_on),
        "p": link("map", number(row["p"]), **judged_on),
        "verdict": row["verdict"],
        "figure": heat({PANELS[name]: values for name, values in shown.items()}, ("skew", "weight decay"), alt),
        "absent": {name: link("map", f"{share:.0%}", **skewed) for name, share in absent.items()},
        "never": link("map", str(int(table["grokked"].isna().sum())), skew=SKEWS[1]),
        "runs": link("map", str(len(table)), study="map"),
        "setting": f"{scale.name}, batches of 32",
        "caption": scale.caption("map", {"study": "map"}),
    }


OF = ("rare", "frequent")
"""Fifths of the tokens by how many batches hold them."""


def cells(table: pd.DataFrame, panel: str) -> Mapping[tuple[float, float], float]:
    """Medians over seeds of what a panel shows, by skew and weight decay; infinite where most runs never got there."""
    values = table["grokked"].fillna(math.inf) if panel == "grokked" else table["rest_rare"] / table["rest_frequent"]
    medians = values.groupby([table["skew"], table["weight_decay"]]).median()
    return {(float(skew), float(decay)): float(value) for (skew, decay), value in medians.items()}
