"""Where searches for critical points ended, and what that says of saddles, by activation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from exact import share_interval
from markupsafe import Markup
from page_claims import number
from page_links import Link
from scale import POINTS

ENOUGH = 8
"""Critical points of an activation from which on there is a verdict."""
SHOWN = 3
"""Smallest gradient norms that are named where there are too few."""
START = {"plateau": "from the plateau", "end": "from the end of training"}
"""Analyses, by where their searches started."""
NAMES = {"relu": "ReLU", "gelu": "GELU"}
"""Activations whose name is not their word in the files."""


def ended(found: pd.DataFrame, curvature: pd.DataFrame, link: Link) -> Iterator[dict[str, Any]]:
    """One row an activation and start: how many searches ended at a critical point, and what the blocks are there."""
    for (activation, start), group in found.groupby(["activation", "analysis"], sort=False):
        known = {"activation": activation, "analysis": start}
        critical = group[group["status"] == "critical"]
        smallest = group.sort_values("grad_norm").iloc[0]
        cells = {
            "critical": link("points", f"{len(critical)} of {len(group)}", **known),
            "grad_norm": link("points", number(smallest["grad_norm"]), **known, seed=smallest["seed"]),
            "median": link("points", number(group["grad_norm"].median()), **known),
        }
        cells |= {block: _negative(block, critical, curvature, link) for block in ("E,W", "W,V")}
        yield {"activation": NAMES.get(activation, activation), "start": start, "cells": cells}


def _negative(block: str, critical: pd.DataFrame, curvature: pd.DataFrame, link: Link) -> Markup:
    """At how many of these points a block has a negative eigenvalue, of those where its index is certified."""
    sure = _certified(critical, curvature, block)
    if sure.empty:
        return Markup("–")
    known = {**sure.iloc[0][["study", "case", "analysis"]], "block": block}
    return link("curvature", f"{(sure['index'] > 0).sum()} of {len(sure)}", **known)


def _certified(critical: pd.DataFrame, curvature: pd.DataFrame, block: str) -> pd.DataFrame:
    """The rows of curvature.csv of a block at these points, where its index is certified."""
    point = ["study", "case", "seed", "analysis"]
    rows = curvature[curvature["block"] == block].merge(critical[point], on=point)
    return rows[rows["index_level"] == "certified"]


def judged(found: pd.DataFrame, curvature: pd.DataFrame, link: Link) -> dict[str, Markup]:
    """By activation what its critical points say of E,W, or that they are too few, with the smallest gradient norms."""
    return {
        NAMES.get(activation, activation): _said(activation, group, curvature, link)
        for activation, group in found.groupby("activation", sort=False)
    }


def _said(activation: str, group: pd.DataFrame, curvature: pd.DataFrame, link: Link) -> Markup:
    critical = group[group["status"] == "critical"]
    known = {"activation": activation}
    reached = link("points", f"{len(critical)} of {len(group)}", **known)
    sure = _certified(critical, curvature, "E,W")
    if len(sure) < ENOUGH:
        smallest = group.sort_values("grad_norm").head(SHOWN)
        norms = Markup(", ").join(
            link("points", number(row.grad_norm), **known, analysis=row.analysis, seed=row.seed)
            for row in smallest.itertuples()
        )
        few = link("points", str(len(critical)), **known)
        words = "too few for a verdict: {} ({} searches). Smallest gradient norms: {}."
        return Markup(words).format(few, reached, norms)
    saddles = int((sure["index"] > 0).sum())
    low, high = share_interval(saddles, len(sure))
    verdict = "mostly saddles of E,W" if low > 0.5 else "mostly no saddles of E,W" if high < 0.5 else "undecided"
    first = {**sure.iloc[0][["study", "case", "analysis"]], "block": "E,W"}
    share = link("curvature", f"{saddles} of {len(sure)}", **first)
    interval = link("curvature", f"{low:.0%} to {high:.0%}", **first)
    words = "{} ({} searches): E,W has a negative eigenvalue at {}, of all such points at {} (95 %)."
    return Markup(words).format(verdict, reached, share, interval)


def grokked(runs: pd.DataFrame, link: Link) -> Markup:
    """How many of the networks that searches began in had grokked, by activation."""
    told = []
    for activation, rows in runs[runs["study"].isin(POINTS)].groupby("activation", sort=False):
        text = f"{rows['grokked'].notna().sum()} of {len(rows)}"
        known = {"study": rows["study"].iloc[0], "activation": activation}
        told.append(Markup("{} {}").format(NAMES.get(activation, activation), link("runs", text, **known)))
    return Markup(", ").join(told)


def from_where(found: pd.DataFrame, link: Link) -> Markup:
    """How many searches reached a critical point by where they started, as a heading."""
    counts = {}
    for start, group in found.groupby("analysis", sort=False):
        reached = f"{(group['status'] == 'critical').sum()} of {len(group)}"
        counts[START[start]] = link("points", reached, analysis=start)
    # The plateau, which the claims are about, comes first.
    ordered = sorted(counts.items(), key=lambda one: one[0] != START["plateau"])
    parts = [Markup("{} searches {}").format(count, words) for words, count in ordered]
    return Markup("{} reached a critical point").format(Markup(", ").join(parts))
