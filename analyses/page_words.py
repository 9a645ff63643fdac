"""What the trial's page says of natural text: rare words, rates and curvature."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from decay_map import LATE
from markupsafe import Markup
from page_beside import middle
from page_claims import number
from page_figures import depths
from page_links import Link, Linked
from page_panels import Curve, panels
from page_transformers import judged
from scale import Scale, chosen

QUANTITIES = {"norm": "‖e_i‖", "updated": "steps that update it", "learned": "step learned"}
"""What the figure shows against rank, by its column in ranges.csv."""
LEAST = {"‖e_i‖": 0.05, "steps that update it": 0.01, "step learned": 1.0}
"""By quantity, the least that is shown; of less a curve runs along the edge."""
COLOURS = (("grey", "#949494"), ("blue", "#0173b2"), ("orange", "#de8f05"))
"""Name and value of weight decays, from the least on."""
DASHED = 512
"""Size of the batches whose curves are dashed; the others are of 64."""
STEPS, WATCHED = (100, 400, 800), 800
"""At which test losses are compared, and the last."""
PAIRS = ("E,W", "W,V")
TEXTS = {"bible": "King James Bible", "jargon": "Jargon File"}
"""By file."""
RATES = {
    "c = 1": ("words", "decay"),
    "c = 3": ("rates", "c3"),
    "c = 10": ("rates", "c10"),
    "Proposition 4.1": ("rates", "prop41"),
    "c = 1, no weight decay": ("words", "none"),
    "c = 10, no weight decay": ("runaway", "c10"),
    "Proposition 4.1, no weight decay": ("runaway", "prop41"),
}
"""Study and case by the rate of E over that of W."""
RATES_OF_READER = {
    "c = 1": ("rates", "c1"),
    "c = 3": ("rates", "c3"),
    "c = 10": ("rates", "c10"),
    "Proposition 4.1": ("rates", "prop41"),
}
"""The same by the rate of E over that of all else in a Transformer."""


def natural_text(scale: Linked, link: Link) -> dict[str, Any] | None:
    """Four verdicts, what becomes of words by rank, losses by rate, and depths over training; None: no runs."""
    if "verdicts" not in scale.tables:
        return None
    middle = scale.rows("curvature", study="curvature", analysis="middle")
    depth = depths(middle.reset_index(), "Depth at step 100 by pair and seed", PAIRS)
    return {
        "claims": list(judged(scale, link)),
        "slope": slope(scale, link),
        "bounded": bounded(middle, link),
        "figure": depth,
        "caption": scale.caption("curvature", {"study": "curvature"}),
        "ranked": ranked(scale, link),
        "texts": list(texts(scale, link)),
        "rates": list(rates(scale, link, RATES)),
        "losses": [*(f"step {step}" for step in STEPS), "lowest"],
        "steps": list(over_training(scale, link)),
    }


def ranked(scale: Linked, link: Link) -> dict[str, Any] | None:
    """What becomes of words by rank, over sampler, weight decay and batch size; None: not recorded."""
    if "ranges" not in scale.tables:
        return None
    ranges = scale.tables["ranges"]
    decays = zip(COLOURS, sorted(set(ranges["weight_decay"])), strict=False)
    return {
        "legend": "; ".join(f"{name}: weight decay {decay:g}" for (name, _), decay in decays),
        "figure": by_rank(ranges),
        "caption": scale.caption("ranges", {"study": "words"}),
        "has_ratio": bool(ranges["balance"].notna().any()),
        "ends": ends(ranges, link),
        "pulls": list(pulls(ranges, link)),
        "ranks": [ranks(*ends) for ends in sorted(set(zip(ranges["first"], ranges["last"], strict=True)))],
        "opposed": opposed(ranges, link),
        "aware": aware(ranges, link),
    }


def slope(scale: Linked, link: Link) -> Markup | None:
    """The power of its rank with which a word's places in training contexts fall, over seeds; None: not recorded."""
    if "words" not in scale.tables:
        return None
    known = {"study": "words", "case": "decay"}
    found = []
    for _, rows in chosen(scale.tables["words"], **known).groupby(level="seed"):
        count = np.sort(rows["count"][rows["count"] > 0])[::-1]
        found.append(float(np.polyfit(np.log(np.arange(1, len(count) + 1)), np.log(count), 1)[0]))
    return link("words", middle(found), **known)


def bounded(middle: pd.DataFrame, link: Link) -> Markup:
    """In how many seeds bounds alone say that W,V is deeper: a Ritz value of it exceeds σ_max(G), which E,W cannot."""
    of = middle.pivot_table(index="seed", columns="block", values=["lowest", "saddle_bound"])
    surely = -of["lowest", "W,V"] > of["saddle_bound", "E,W"]
    return link("curvature", f"{surely.sum()} of {len(surely)}", study="curvature", block="W,V")


def by_rank(ranges: pd.DataFrame) -> Markup:
    """Quantities against rank: a column a sampler, a colour a weight decay, dashes for large batches."""
    rows: dict[str, dict[str, list[Curve]]] = {words: {} for words in QUANTITIES.values()}
    hues = {decay: hue for decay, (_, hue) in zip(sorted(set(ranges["weight_decay"])), COLOURS, strict=False)}
    for sampler, of_sampler in ranges.groupby("sampler", sort=False):
        for column, words in QUANTITIES.items():
            curves = []
            for (decay, size), group in of_sampler.groupby(["weight_decay", "batch_size"]):
                middle = group.groupby(["first", "last"])[column].median()
                x = [float(np.sqrt(first * last)) for first, last in middle.index]
                label = f"weight decay {decay:g}, batches of {size}"
                curves.append(Curve(label, x, middle.tolist(), hues[decay], size == DASHED))
            rows[words][str(sampler)] = curves
    alt = "Norm, updates and time to learn of words by rank, over sampler, weight decay and batch size"
    return panels(rows, "rank", LEAST, alt)


OF_ENDS = ("norm", "gradient", "updated", "balance", "opposed", "rest", "learned")


def ends(ranges: pd.DataFrame, link: Link) -> list[dict[str, Any]]:
    """The most frequent word and the rarest range, by weight decay, where places come as they are in batches of 64.

    Medians over seeds, with the least and the largest of what fluctuates with the last batches.
    """
    found = []
    rows = ranges[(ranges["sampler"] == "random") & (ranges["batch_size"] != DASHED)]
    for decay, group in rows.groupby("weight_decay"):
        for first in (group["first"].min(), group["first"].max()):
            at = group[group["first"] == first]
            known = {"sampler": "random", "batch_size": 64, "weight_decay": decay, "first": first}
            names = [name for name in OF_ENDS if at[name].notna().any()]
            texts = {name: number(float(at[name].median())) for name in names}
            if at["rest"].median() > LATE * WATCHED:
                texts["rest"] = f"> {LATE * WATCHED:g}"
            for name in {"balance", "opposed"} & {*names}:
                texts[name] += f" [{number(at[name].min())}, {number(at[name].max())}]"
            cells = {name: link("ranges", text, **known) for name, text in texts.items()}
            found.append({"decay": f"{decay:g}", "ranks": ranks(first, at["last"].iloc[0]), "cells": [*cells.values()]})
    return found


def pulls(ranges: pd.DataFrame, link: Link) -> Iterator[dict[str, Any]]:
    """By sampler, batches and weight decay, what decay and loss do to the words of each range: ratio and cosine."""
    # What follows gradients learns no word.
    kept = ranges[(ranges["weight_decay"] > 0) & (ranges["sampler"] != "frequency_aware")]
    for (sampler, size, decay), rows in kept.groupby(SETTING):
        known = {"sampler": sampler, "batch_size": size, "weight_decay": decay}
        middle = rows.groupby("first")[["balance", "opposed"]].median()
        yield {
            "setting": f"{sampler} batches of {size}, weight decay {decay:g}",
            "cells": [
                link("ranges", "; ".join(number(x) for x in row[1:] if not math.isnan(x)), **known, first=row.Index)
                for row in middle.itertuples()
            ],
        }


SETTING = ["sampler", "batch_size", "weight_decay"]


def opposed(ranges: pd.DataFrame, link: Link) -> dict[str, Markup]:
    """Least and largest median cosine of the ranges: where the protocol looks, and where they come nearest to 1.

    There: of the rarer half of the ranges, from which rank on, and with the medians of the ratio.
    """
    columns = ["opposed", "balance"]
    medians = ranges[ranges["weight_decay"] > 0].groupby([*SETTING, "first"])[columns].median()
    found = {}
    for name, at in (
        ("judged", ("random", 64, 0.001)),
        ("nearest", medians["opposed"].groupby(SETTING).median().idxmax()),
    ):
        if at not in medians.index.droplevel("first"):
            continue
        of = medians.loc[at]
        known = dict(zip(SETTING, at, strict=True))
        sampler, size, decay = at
        found[f"{name}_at"] = link("ranges", f"{sampler} batches of {size} at weight decay {decay:g}", **known)
        if name == "nearest":
            of = of.iloc[len(of) // 2 :]
            known["first"] = of.index[0]
            found["from"] = link("ranges", f"{of.index[0]}", **known)
            found["ratio"] = link("ranges", between(of["balance"]), **known)
        found[name] = link("ranges", between(of["opposed"]), **known)
    return found


def between(values: pd.Series) -> str:
    return f"{number(values.min())} to {number(values.max())}"


def ranks(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def aware(ranges: pd.DataFrame, link: Link) -> dict[str, Any] | None:
    """In how many runs that follow gradients words are hardly ever updated, or never learned; None: no runs."""
    rows = ranges[ranges["sampler"] == "frequency_aware"]
    if rows.empty:
        return None
    by_run = rows.groupby(["seed", "batch_size", "weight_decay"])
    never = by_run["updated"].median() < 0.01
    text = f"{int(never.sum())} of {len(never)}"
    unlearned = by_run["learned"].count() == 0
    return {
        "never": link("ranges", text, sampler="frequency_aware"),
        "unlearned": link("ranges", f"{int(unlearned.sum())} of {len(unlearned)}", sampler="frequency_aware"),
    }


def texts(scale: Scale, link: Link) -> Iterator[dict[str, Any]]:
    """By text and number of words, what weight decay and small batches do to the correlation of norm and frequency."""
    if "zipf" not in scale.tables:
        return
    judged_on = {name: scale.rows("seeds", claim=name)["x"] for name in ("N1", "N2")}
    yield {
        "text": TEXTS["bible"],
        "words": "500",
        "seeds": link("seeds", str(len(judged_on["N1"])), claim="N1"),
        "changes": [link("seeds", ends_of(x), claim=name) for name, x in judged_on.items()],
    }
    for (text, count), rows in scale.tables["zipf"].groupby(["text", "words"]):
        of = rows.set_index(["weight_decay", "batch_size", "seed"])["correlation"].unstack("seed")
        changes = of.loc[0.001, 64] - of.loc[0.0, 64], of.loc[0.001, 64] - of.loc[0.001, DASHED]
        yield {
            "text": TEXTS[text],
            "words": f"{count:,}",
            "seeds": link("zipf", str(of.shape[1]), text=text, words=count),
            "changes": [link("zipf", ends_of(x), text=text, words=count) for x in changes],
        }


def ends_of(x: pd.Series) -> str:
    """The median, and the least and the largest."""
    return f"{number(x.median())} [{number(x.min())}, {number(x.max())}]"


def rates(scale: Scale, link: Link, which: Mapping[str, tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Each rate's test loss by step and at its lowest, in how many seeds it is below that of c = 1, and its last c."""
    plain: dict[bool, pd.DataFrame] = {}
    for words, (study, case) in which.items():
        rows = scale.rows("losses", study=study, case=case)
        if rows.empty:
            continue
        known = {"study": study, "case": case}
        by_step = rows.reset_index().pivot(index="seed", columns="step", values="test_loss")
        losses = by_step[[step for step in STEPS if step in by_step]].assign(lowest=by_step.min(axis=1))
        # The first of those with the same weight decay.
        base = plain.setdefault("no weight decay" in words, losses)
        below = (losses < base.loc[losses.index]).sum()
        cells = [
            f"{number(losses[name].median())}" + ("" if base is losses else f" ({below[name]} of {len(losses)} lower)")
            for name in losses
        ]
        last = rows.sort_values("step").groupby(level="seed")["c"].last().median()
        yield {
            "words": words,
            "seeds": link("losses", str(len(losses)), **known),
            "losses": [link("losses", text, **known) for text in cells],
            "c": link("losses", number(last), **known),
        }


def over_training(scale: Scale, link: Link) -> Iterator[dict[str, Any]]:
    """By analysed step of a network small enough: depths, certified index of E,W and κ₁, medians over seeds."""
    rows = scale.rows("curvature", study="index", analysis="over-training").reset_index()
    for step, at in rows.groupby("step"):
        middle = at.groupby("block")[["lowest", "index", "kappa_1"]].median()
        known = {"study": "index", "step": step}
        cells = {
            "E,W": number(-middle.loc["E,W", "lowest"]),
            "W,V": number(-middle.loc["W,V", "lowest"]),
            "index": number(middle.loc["E,W", "index"]),
            "kappa": number(middle.loc["E,W", "kappa_1"]),
        }
        yield {"step": step, "cells": [link("curvature", text, **known) for text in cells.values()]}


def transformer_on_text(scale: Linked, link: Link) -> dict[str, Any] | None:
    """Two verdicts, each pair's depth over training, and losses by rate; None: no runs."""
    if "verdicts" not in scale.tables:
        return None
    rows = scale.rows("curvature", study="curvature", analysis="over-training")
    middle = (-rows.groupby(["block", "step"])["lowest"].median()).unstack("step")
    return {
        "claims": list(judged(scale, link)),
        "steps": middle.columns.tolist(),
        "pairs": {
            pair: [
                link("curvature", number(depth), analysis="over-training", block=pair, step=step)
                for step, depth in at.items()
            ]
            for pair, at in middle.iterrows()
        },
        "ranked": ranked(scale, link),
        "rates": list(rates(scale, link, RATES_OF_READER)),
    }
