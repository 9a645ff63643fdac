"""What the trial's page says of when the geometry of the embedding appears."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from exact import ALPHA, later, median_interval, signed_rank_p
from lags import EVENTS, REFERENCE
from page_beside import spread
from page_claims import number
from page_figures import effects
from page_links import Link

CLAIM = "half"
"""Event of the primary test."""
SENTENCES = {
    "supported": "The circles of the embedding are there before the network generalises",
    "not supported": "The circles of the embedding come after the network generalises",
    "undecided": "Do the circles of the embedding come before the network generalises?",
}


def timing(tables: Mapping[str, pd.DataFrame], links: Mapping[str, Link]) -> dict[str, Any] | None:
    """The verdict on G1 at each scale, and every event's steps over that of the geometry; None of no tables.

    tables: lags.csv by scale, smallest first.
    """
    if not tables:
        return None
    steps = {scale: table.pivot(index="seed", columns="event", values="step") for scale, table in tables.items()}
    x = {scale: {event: _later(table, event) for event in EVENTS if event in table} for scale, table in steps.items()}
    verdicts = {scale: _verdict(of[CLAIM], links[scale]) for scale, of in x.items()}
    rows = []
    for event, words in EVENTS.items():
        known = {scale: of for scale, of in x.items() if event in of}
        shown = {scale: spread([math.exp(value) for value in of[event]]) for scale, of in known.items()}
        middles = {
            scale: dict(zip(("median", "low", "high"), median_interval(of[event]), strict=True))
            for scale, of in known.items()
        }
        named = {
            scale: {**one, "verdict": verdicts[scale]["verdict"] if event == CLAIM else "exploratory"}
            for scale, one in middles.items()
        }
        cells = dict.fromkeys(x, {"ratio": "–", "after": "–"})
        cells |= {
            scale: {
                "ratio": links[scale]("lags", shown[scale], event=event),
                "after": links[scale](
                    "lags", f"{sum(value > 0 for value in of[event])} of {len(of[event])}", event=event
                ),
            }
            for scale, of in known.items()
        }
        rows.append({"words": words, "cells": cells, "bars": effects(named, shown)})
    scale, last = list(verdicts.items())[-1]
    agree = len({found["verdict"] for found in verdicts.values()}) == 1
    sentence = SENTENCES[last["verdict"]] if agree else f"At {scale}: {SENTENCES[last['verdict']]}"
    return {"sentence": sentence, "verdicts": verdicts, "rows": rows}


def _later(steps: pd.DataFrame, event: str) -> list[float]:
    """By seed, ln of an event's step over that at which the frequencies appear; step 0 counts as 1."""
    at = steps.clip(lower=1)
    return list(map(later, at[event], at[REFERENCE]))


def _verdict(x: list[float], link: Link) -> dict[str, str]:
    """The verdict of the one test beyond the paper, with its p-value."""
    p = signed_rank_p(x)
    decided = "supported" if median_interval(x)[0] > 0 else "not supported"
    return {"verdict": decided if p < ALPHA else "undecided", "p": link("lags", number(p), event=CLAIM)}
