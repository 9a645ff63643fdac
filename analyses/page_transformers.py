"""What the trial's page says of Transformers."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from page_beside import crosses, differences, spread, times
from page_bounds import shown
from page_claims import BEYOND, number, said
from page_figures import depths
from page_links import Link, Linked
from scale import Scale, chosen

PAIRS = ("E,mlp_in", "mlp_in,mlp_out", "Q,K", "V,O", "E,U")
"""Two matrices of which one multiplies the other, or of which both see the residual stream."""
CONVERGED = 0.01
"""Residual over a Ritz value below which this page gives the value alone."""
THREE = "E,Q,K"
"""Not compared with pairs: it contains Q,K, so that it is at least as deep."""
NETWORKS = {
    "no LayerNorm, untied": ("curvature", "c1"),
    "LayerNorm before each sublayer": ("variants", "pre"),
    "LayerNorm after each sum": ("variants", "post"),
    "tied: E unembeds, too": ("variants", "tied"),
    "the size of 2301.05217": ("nanda", "base"),
}
"""Study and case by what is different about the network."""


def transformers(scale: Linked, link: Link) -> dict[str, Any] | None:
    """Three verdicts, where the negative curvature is, and what LayerNorm and tied embeddings change; None: no runs."""
    if "verdicts" not in scale.tables:
        return None
    plateau, runs = on_plateau(scale, "curvature", "c1").reset_index(), scale.runs("curvature", case="c1")
    lowest = plateau.pivot_table(index="seed", columns="block", values="lowest")
    there = functools.partial(link, "curvature", study="curvature", case="c1", analysis="plateau")
    early = runs["half"] < runs["memorised"]
    deepest = plateau[plateau["block"].isin(PAIRS)].groupby("block")["lowest"].median().idxmin()
    alt = f"Depth on the plateau by pair and seed: {deepest} is the deepest in the median"
    compared = list(networks(scale, link))
    return {
        "claims": list(judged(scale, link)),
        "censored": censored(scale, link),
        "deepest": deepest,
        "figure": depths(plateau, alt, PAIRS),
        "caption": scale.caption("curvature", {"study": "curvature", "case": "c1"}),
        "early": link("runs", f"{early.sum()} of {len(early)}", study="curvature", case="c1"),
        "waits": waits(runs, link, study="curvature", case="c1")["delay"],
        "contained": there(spread((lowest[THREE] / lowest["Q,K"]).tolist()), block=THREE),
        "missing": [words for words, (study, case) in NETWORKS.items() if scale.runs(study, case=case).empty],
        "pairs": list(pairs(scale, link)),
        "large": list(large(scale, link)),
        "networks": compared,
        "open": [one["words"] for one in compared if one["is_open"]],
        "rates": list(rates(scale, link)),
    }


def judged(
    scale: Scale, link: Link, table: str = "verdicts", names: Collection[str] = tuple(BEYOND)
) -> Iterator[dict[str, Any]]:
    """Each of these claims: what its verdict says, its effect, p and every seed.

    table: verdicts, of one scale alone, or beyond, of the claims that several scales have.
    """
    x = "seeds" if table == "verdicts" else f"{table}-seeds"
    rows = scale.tables[table]
    for row in rows[rows["claim"].isin(names)].to_dict("records"):
        name = row["claim"]
        each = scale.rows(x, claim=name)["x"]
        yield {
            "name": name,
            "sentence": said(name, row, functools.partial(link, table, claim=name)),
            "measure": BEYOND[name].measure,
            "verdict": row["verdict"],
            "effect": link(table, shown(scale, name, row), claim=name),
            "p": link(table, number(row["holm"]), claim=name),
            "seeds": [link(x, number(value), claim=name, seed=seed) for seed, value in each.items()],
        }


def censored(scale: Scale, link: Link) -> dict[str, Markup] | None:
    """How many runs of T3 never grokked, and its effect where such a run is later than all others; None: no runs."""
    if scale.runs("sampling").empty:
        return None
    runs = {
        (sampler, size): scale.runs("sampling", sampler=sampler, batch_size=size)
        for sampler in ("skewed", "uniform")
        for size in (64, 512)
    }
    each = pd.concat(runs.values())["grokked"]
    costs = [differences(runs["skewed", size], runs["uniform", size]) for size in (64, 512)]
    x = [sum(pair) / len(pair) for pair in zip(*costs, strict=True)]
    texts = {"never": f"{each.isna().sum()} of {len(each)}", "effect": times(x)}
    return {name: link("runs", text, study="sampling", sampler="skewed") for name, text in texts.items()}


def on_plateau(scale: Scale, study: str, case: str) -> pd.DataFrame:
    """Rows of curvature.csv on the plateau of a study's runs, by seed."""
    found = scale.rows("curvature", study=study, case=case)
    return found[found["analysis"].str.startswith("plateau")]


def pairs(scale: Scale, link: Link) -> Iterator[dict[str, Any]]:
    """Each pair's median depth at the start, on the plateau and at the end of training, and its saddle index there."""
    known = {"study": "curvature", "case": "c1"}
    through = scale.rows("curvature", **known, analysis="over-training").reset_index()
    for pair in (*PAIRS, THREE):
        of_pair = through[through["block"] == pair].sort_values("step").groupby("seed")
        middle = chosen(on_plateau(scale, *known.values()).reset_index(), block=pair)
        at = {"start": (of_pair.first(), "over-training"), "plateau": (middle, "plateau")}
        at["end"] = of_pair.last(), "over-training"
        cells = {}
        for when, (rows, analysis) in at.items():
            text = f"{number(-rows['lowest'].median())}; {number(rows['index'].median())}"
            cells[when] = link("curvature", text, **known, analysis=analysis, block=pair)
        yield {"pair": f"{pair}, contains Q,K" if pair == THREE else pair, "cells": cells}


def large(scale: Scale, link: Link) -> Iterator[dict[str, Any]]:
    """Each pair's depth and saddle index at the steps of each large run that is analysed over training.

    A Ritz value bounds λ_min from above, so that the depth is at least what a search that did not converge gives.
    """
    known = {"study": "nanda", "case": "base"}
    for seed in sorted(set(scale.rows("curvature", **known, analysis="over-training").index)):
        every = scale.rows("curvature", **known, seed=seed).sort_values("step")
        run = scale.runs(**known, seed=seed).iloc[0]
        named = {step: "plateau" if step else "start" for step in every["step"]}
        for event in ("memorised", "grokked"):
            named[min(named, key=lambda step: abs(step - run[event]))] = event
        rows = {pair: every[every["block"] == pair].to_dict("records") for pair in (*PAIRS, THREE)}
        texts = {pair: [(depth_and_index(row), row["step"]) for row in of_pair] for pair, of_pair in rows.items()}
        yield {
            "seed": seed,
            "steps": [f"{name}, {step:,}" if step else name for step, name in named.items()],
            "rows": {
                pair: [link("curvature", text, **known, seed=seed, step=step, block=pair) for text, step in of_pair]
                for pair, of_pair in texts.items()
            },
        }


def depth_and_index(row: Mapping[str, Any]) -> str:
    """A block's depth, its share of λ_max, and its saddle index."""
    least = "≥ " if row["lowest_residual"] > CONVERGED * abs(row["lowest"]) else ""
    return f"{least}{number(-row['lowest'])}; {number(-100 * row['lowest'] / row['highest'])} %; {bracket(row)}"


def bracket(row: Mapping[str, Any]) -> str:
    """What the bounds of a saddle index leave; of one that is estimated the upper one is the size of the block."""
    low, high = (f"{row[f'index_{end}']:,.0f}" for end in ("lower", "upper"))
    if row["index_level"] == "estimated":
        return f"≥ {low}" if row["index_lower"] else "open"
    return low if low == high else f"{low} to {high}"


def networks(scale: Scale, link: Link) -> Iterator[dict[str, Any]]:
    """How each network grokked, and which pair is deepest on its plateau."""
    for words, (study, case) in NETWORKS.items():
        runs = scale.runs(study, case=case)
        if runs.empty:
            continue
        plateau = on_plateau(scale, study, case).reset_index()
        pairs = plateau[plateau["block"].isin(PAIRS)]
        lowest = pairs.pivot_table(index="seed", columns="block", values="lowest")
        deepest = lowest.idxmin(axis=1).value_counts()
        there = {"study": study, "case": case, "analysis": plateau["analysis"].iloc[0]}
        over = np.log(lowest["E,mlp_in"] / lowest["mlp_in,mlp_out"]).tolist()
        ratio, is_open = times(over), crosses(over)
        counts = {pair: link("curvature", str(count), **there, block=pair) for pair, count in deepest.items()}
        order = Markup("; ").join(Markup("{} {}").format(pair, count) for pair, count in counts.items())
        share = number(100 * float((pairs["lowest"].abs() / pairs["highest"]).max()))
        # Where a residual reaches past 0, Ritz values order no pairs.
        if bool((pairs["lowest_residual"] > pairs["lowest"].abs()).any()):
            none = link("curvature", f"none found deeper than {share} % of its λ_max", **there)
            ratio, order, is_open = "not determined", none, True
        yield {
            "words": words,
            **how_soon(runs, link, study=study, case=case),
            **waits(runs, link, study=study, case=case),
            "measured": link("curvature", str(len(lowest)), **there),
            "ratio": link("curvature", ratio, **there, block="E,mlp_in"),
            "deepest": order,
            "is_open": is_open,
        }


def rates(scale: Scale, link: Link) -> Iterator[dict[str, Any]]:
    """How soon the network groks with each rate of E over that of all else."""
    runs = scale.tables["runs"]
    fixed = ((runs["study"] == "curvature") & runs["case"].isin(["c1", "c10"])) | (runs["study"] == "rates")
    # Beside policies in the table numbers are text, whose order is another.
    for c, rows in sorted(runs[fixed].groupby("lr_ratio"), key=lambda of: float(str(of[0]))):
        yield {"c": f"{float(str(c)):g}", **how_soon(rows, link, study=rows["study"].iloc[0], lr_ratio=c)}
    policy = scale.runs("policy")
    if len(policy):
        yield {"c": "by Proposition 4.1", **how_soon(policy, link, study="policy")}


def how_soon(runs: pd.DataFrame, link: Link, **known: object) -> dict[str, Any]:
    """How many runs grokked, and their median step, in which never is latest."""
    middle = runs["grokked"].fillna(np.inf).median()
    texts = {"grokked": f"{runs['grokked'].notna().sum()} of {len(runs)}", "step": step(float(middle))}
    return {name: link("runs", text, **known) for name, text in texts.items()}


def waits(runs: pd.DataFrame, link: Link, **known: object) -> dict[str, Markup]:
    """How many runs memorised, and the median delay, with the least and the largest, of those that grokked as well."""
    delay = runs["delay"].dropna()
    middle, least, most = (f"{x:,.0f}".replace("-", "−") for x in (delay.median(), delay.min(), delay.max()))
    # Brackets are intervals.
    text = f"{middle} ({least} to {most})"
    texts = {"memorised": f"{runs['memorised'].notna().sum()} of {len(runs)}", "delay": text if len(delay) else "–"}
    return {name: link("runs", text, **known) for name, text in texts.items()}


def step(at: float) -> str:
    """A step of training; ∞ where it never came."""
    return number(at) if np.isinf(at) else f"{at:,.0f}"
