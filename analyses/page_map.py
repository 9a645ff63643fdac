"""What the trial's page says of weight decay and the skew of tokens, where batches are small."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from beyond import DECAYS, SKEWS
from decay_map import LATE
from markupsafe import Markup
from page_beside import differences, ratio
from page_claims import number
from page_figures import heat
from page_links import Link, Linked
from page_transformers import judged
from scale import chosen

PANELS = {
    "grokked": "step of grokking",
    "rest_rare": "step at which rare tokens rest",
    "rest_frequent": "step at which frequent tokens rest",
}
"""What the map shows, by its column in map.csv."""


def decay_map(scale: Linked, link: Link) -> dict[str, Any] | None:
    """The verdict on G2, and a map of grokking and of the embeddings' rest; None where that was not studied."""
    if "map" not in scale.tables:
        return None
    table = scale.tables["map"]
    watched = float(table["watched"].max())
    # What has not come to rest by then, or never grokked, is later than all.
    last = {"grokked": watched, **dict.fromkeys(("rest_rare", "rest_frequent"), LATE * watched)}
    skewed = {"skew": table["skew"].max()}
    absent = {name: float(chosen(table, **skewed)[f"absent_{name}"].median()) for name in ("rare", "frequent")}
    asked, decays = table[table["skew"].isin(SKEWS)], {"low": DECAYS[0], "high": DECAYS[1]}
    alt = "; ".join(f"{words} by weight decay and skew" for words in PANELS.values())
    return {
        **next(judged(scale, link, "beyond", ("G2",))),
        "figure": heat(
            {words: cells(table, name, last[name]) for name, words in PANELS.items()},
            ("skew", "weight decay"),
            alt,
            {words: "∞" if name == "grokked" else f"> {last[name]:,.0f}" for name, words in PANELS.items()},
        ),
        "absent": {name: link("map", f"{share:.0%}", **skewed) for name, share in absent.items()},
        "decays": decays,
        "censored": {name: link("map", never(asked, decay), weight_decay=decay) for name, decay in decays.items()},
        "never": link("map", never(table), study="map"),
        "saved": list(saved(table, link)),
        "rest": resting(table, link),
        "late": link("map", f"{(table['rest_rare'] > last['rest_rare']).sum()} of {len(table)}", study="map"),
        "caption": scale.caption("map", {"study": "map"}),
    }


def saved(table: pd.DataFrame, link: Link) -> Iterator[Markup]:
    """Grokking with the most skewed tokens over that with uniform ones, by each decay at which half of both grok."""
    for decay, rows in table.groupby("weight_decay"):
        by_skew = [chosen(rows, skew=skew) for skew in (rows["skew"].max(), rows["skew"].min())]
        if all(math.isfinite(of["grokked"].fillna(math.inf).median()) for of in by_skew):
            sooner = sum(value < 0 for value in differences(*by_skew))
            text = f"{ratio(*by_skew)} at weight decay {decay:g} ({sooner} of {len(by_skew[0])} sooner)"
            yield link("map", text, weight_decay=decay)


def resting(table: pd.DataFrame, link: Link) -> Markup:
    """The step at which rare tokens rest over that of frequent ones: least and largest median of the map."""
    ratios = (table["rest_rare"] / table["rest_frequent"]).groupby([table["skew"], table["weight_decay"]]).median()
    return link(
        "map", f"× {number(ratios.min())} to {number(ratios.max())} as many steps", study=table["study"].iloc[0]
    )


def never(table: pd.DataFrame, decay: float | None = None) -> str:
    """How many runs never grokked, of those with this weight decay or of all."""
    steps = table["grokked"] if decay is None else table["grokked"][table["weight_decay"] == decay]
    return f"{steps.isna().sum()} of {len(steps)}"


def cells(table: pd.DataFrame, name: str, last: float) -> Mapping[tuple[float, float], float]:
    """Medians over seeds of a column, by skew and weight decay; infinite where half of the runs come after `last`."""
    steps = table[name].fillna(math.inf)
    medians = steps.where(steps <= last, math.inf).groupby([table["skew"], table["weight_decay"]]).median()
    return {(float(skew), float(decay)): float(value) for (skew, decay), value in medians.items()}
