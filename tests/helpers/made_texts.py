"""Tables of a text that say what a test wants, and the sizes of tiny runs of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import beyond
import numpy as np
import pandas as pd
import primary
from helpers.made_tables import NETWORK, made
from page_words import RATES, RATES_OF_READER

TINY: dict[str, Any] = {
    "vocabulary": 60,
    "samples": 300,
    "embed_dim": 4,
    "hidden": 8,
    "batch_size": 16,
    "steps": 100,
    "metrics_every": 10,
    "device": "cpu",
}
TESTS, OF_READER = beyond.TESTS["text"], beyond.TESTS["text-transformer"]


def write_text(folder: Path, x: float) -> None:
    """Tables of a text whose claims all have this x; runs that follow gradients update no word."""
    numbers = {name: {seed + 200: value for seed, value in made(x).items()} for name in TESTS}
    each = [{"claim": name, "seed": seed, "x": value} for name, by in numbers.items() for seed, value in by.items()]
    known = {"gradient": 2.0, "balance": 0.5, "opposed": 0.25, "rest": 300.0, "places": 9.0}
    ranges = [
        {"study": "words", "case": "decay", "seed": 300, "sampler": sampler, "batch_size": size, "weight_decay": decay}
        | {"first": first, "last": last, "norm": norm, "updated": 0.0 if sampler == "frequency_aware" else 0.5}
        | {"learned": np.nan if sampler == "frequency_aware" else 70.0, **known}
        for sampler in ("random", "frequency_aware")
        for size in (64, 512)
        for decay in (0.0, 0.001)
        for first, last, norm in ((1, 1, 3.25), (2, 59, 1e-9))
    ]
    losses = [
        {"study": study, "case": case, "seed": 300, "step": step, "test_loss": loss, "c": 1.5}
        for study, case in RATES.values()
        for step, loss in ((0, 6.0), (100, 5.5), (400, 4.25), (800, 4.75))
    ]
    curvature = [
        {"study": study, "case": "base", "seed": 300, "analysis": analysis, "step": step, "block": block}
        | {"lowest": lowest, "index": 7.0, "kappa_1": 2.5, "saddle_bound_constants": np.nan, "saddle_bound": 0.02}
        for study, analysis, steps in (("curvature", "middle", (100,)), ("index", "over-training", (0, 316)))
        for step in steps
        for block, lowest in (("E,W", -0.015), ("W,V", -0.045))
    ]
    zipf = [
        {"study": "texts", "case": "jargon", "seed": seed, "text": text, "words": 2000, "weight_decay": decay}
        | {
            "batch_size": size,
            "correlation": 0.5 * (decay > 0) + 0.125 * (size == 512) + (seed - 300) / 16 * (decay > 0),
        }
        for text in ("jargon",)
        for seed in (300, 301, 302)
        for decay in (0.0, 0.001)
        for size in (64, 512)
    ]
    runs = [{"study": study, "seed": 300, **NETWORK, "task": "text"} for study in ("words", "curvature")]
    # The last word is in no training context.
    words = [
        {
            "study": "words",
            "case": "decay",
            "seed": 300 + seed,
            "token": token,
            "count": 840 / (token + 1) ** (1 + seed),
        }
        for seed in range(3)
        for token in range(20)
    ] + [{"study": "words", "case": "decay", "seed": 300, "token": 20, "count": 0}]
    folder.mkdir()
    tables = {
        "words": words,
        "zipf": zipf,
        "seeds": each,
        "ranges": ranges,
        "losses": losses,
        "curvature": curvature,
        "runs": runs,
    }
    for name, table in {**tables, "verdicts": primary.judge(numbers, TESTS)}.items():
        pd.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)


def write_reader(folder: Path, x: float) -> None:
    """Tables of a Transformer on a text whose claims have this x."""
    numbers = {name: {seed + 200: value for seed, value in made(x).items()} for name in OF_READER}
    each = [{"claim": name, "seed": seed, "x": value} for name, by in numbers.items() for seed, value in by.items()]
    losses = [
        {"study": study, "case": case, "seed": 300, "step": step, "test_loss": loss, "c": 1.5}
        for study, case in RATES_OF_READER.values()
        for step, loss in ((0, 6.0), (100, 5.5), (400, 4.25), (800, 4.75))
    ]
    curvature = [
        {"study": "curvature", "seed": 300 + seed, "analysis": analysis, "step": step, "block": block}
        | {"lowest": -depth * (1 + seed / 10)}
        for seed in range(3)
        for analysis, steps in (("middle", (100,)), ("over-training", (0, 100)))
        for step in steps
        for block, depth in (("E,mlp_in", 0.2 if analysis == "middle" else 0.3), ("mlp_in,mlp_out", 0.5))
    ]
    ranges = [
        {"study": "words", "case": "base", "seed": 300, "sampler": sampler, "batch_size": size, "weight_decay": decay}
        | {"first": first, "last": last, "norm": norm, "updated": 0.5, "learned": 70.0, "gradient": 2.0}
        | {"balance": np.nan, "opposed": 0.375 - first / 16 + decay, "rest": 300.0, "places": 9.0}
        for sampler in ("random", "frequency_aware")
        for size in (64, 512)
        for decay in (0.0, 0.5)
        for first, last, norm in ((1, 1, 3.75), (2, 59, 0.5))
    ]
    runs = [{"study": study, "seed": 300, **NETWORK, "task": "text"} for study in ("words", "rates", "curvature")]
    folder.mkdir()
    tables = {"seeds": each, "losses": losses, "curvature": curvature, "runs": runs, "ranges": ranges}
    for name, table in {**tables, "verdicts": primary.judge(numbers, OF_READER)}.items():
        pd.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)
