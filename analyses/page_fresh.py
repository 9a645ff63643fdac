"""What the trial's page says of samplers, starts and rare tokens, each tested on seeds that nobody had seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from decay_map import FIFTHS
from exact import median_interval
from markupsafe import Markup
from page_beside import middle
from page_claims import BEYOND, Row, headline, size
from page_figures import curves
from page_links import Linked
from page_transformers import judged
from primary import frequency_and_norm
from rare_late import RARE_LATE
from scale import which

ASKED = ("R1", "R2", "S1", "S2", "I1", "I2")
RARE = {"R1": ("small", "nodecay"), "R2": ("small", "full")}
"""The cases that each of those of rare tokens compares, which Transformers have, too."""
CASES = {
    "small": ("batches of 64", "#d55e00"),
    "full": ("full batches", "#0173b2"),
    "nodecay": ("batches of 64, no weight decay", "#949494"),
}
"""Words and colour by case of the study of rare tokens."""


def fresh(scales: Sequence[Linked]) -> dict[str, dict[str, Any]]:
    """By question what became of it: a sentence for all scales, and at each the verdict. scales: smallest first."""
    found = {}
    for name in ASKED:
        rows = {one.name: row for one in scales if (row := verdict(one, name)) is not None}
        if asked := [one for one in scales if one.name in rows]:
            where = {
                "one of the two cases alone has grokked": [one for one in asked if name in grokked_apart(one)],
                "the ranks of all seeds decide, though the interval includes no effect,": [
                    one for one in asked if _is_open(rows[one.name])
                ],
            }
            found[name] = {
                "sentence": headline(name, rows),
                "measure": BEYOND[name].measure,
                "at": {one.name: next(judged(one, one.link, "beyond", [name])) for one in asked},
                "cautions": "; ".join(
                    f"{words} {' and '.join(size(one.name) for one in at)}" for words, at in where.items() if at
                ),
            }
    return found


def _is_open(row: Row) -> bool:
    """Whether a verdict was reached although the interval of the median has 0 inside."""
    return bool(row["verdict"] != "undecided" and row["low"] < 0 < row["high"])


def verdict(scale: Linked, name: str) -> Row | None:
    """Its row of beyond.csv; None where it was not asked."""
    table = scale.tables.get("beyond", pd.DataFrame({"claim": []}))
    rows = table[table["claim"] == name].to_dict("records")
    return rows[0] if rows else None


def rare_tokens(scales: Sequence[Linked]) -> dict[str, dict[str, Any]]:
    """By scale the verdicts on rare tokens, and how norms follow frequency over training."""
    return {one.name: _rare(one) for one in scales if "rare_late" in one.tables and verdict(one, "R1") is not None}


def _rare(scale: Linked) -> dict[str, Any]:
    tokens = which(scale.tables["tokens"], study=RARE_LATE)
    last = {case: frequency_and_norm(which(tokens, case=case).set_index("seed")) for case in CASES}
    rows = scale.tables["rare_late"]
    over = {case: which(rows, case=case).groupby("step")["correlation"].median() for case in CASES}
    told = {case: middle(of.tolist()) for case, of in last.items()}
    sizes = {case: middle(_rare_over_frequent(which(tokens, case=case))) for case in CASES}
    reached = {
        event: {words: _shown(scale, event, case) for case, (words, _) in CASES.items()}
        for event in ("memorised", "grokked")
    }
    memorised = all(some == of for some, of in (_many(scale, "memorised", case) for case in CASES))
    alt = "; ".join(f"{words}, at the last step {told[case]}" for case, (words, _) in CASES.items())
    return {
        "claims": list(judged(scale, scale.link, "beyond", RARE)),
        "last": {CASES[case][0]: scale.link("rare_late", text, case=case) for case, text in told.items()},
        "sizes": {
            CASES[case][0]: scale.link("tokens", text, study=RARE_LATE, case=case) for case, text in sizes.items()
        },
        "grokked": reached["grokked"],
        "memorised": {} if memorised else reached["memorised"],
        "apart": grokked_apart(scale),
        "flat": median_interval(last["small"].tolist())[1] <= 0,
        "figure": curves(
            {words: (over[case], scale.runs(RARE_LATE, case=case), colour) for case, (words, colour) in CASES.items()},
            f"Rank correlation of frequency and norm over steps at {scale.name}: {alt}",
        ),
        "caption": scale.caption("rare_late", {"study": RARE_LATE}),
    }


def grokked_apart(scale: Linked) -> list[str]:
    """Those tests of rare tokens that compare networks of which some have grokked with networks of which none has."""
    many = {case: _many(scale, "grokked", case)[0] for case in CASES}
    return [name for name, cases in RARE.items() if sorted(many[case] > 0 for case in cases) == [False, True]]


def _rare_over_frequent(tokens: pd.DataFrame) -> list[float]:
    """By seed, the median norm of the rarest fifth of the tokens over that of the most frequent."""
    found = []
    for _, rows in tokens.groupby("seed"):
        norms = rows["norm"].values[np.argsort(rows["count"].values, kind="stable")]
        fifth = len(norms) // FIFTHS
        found.append(float(np.median(norms[:fifth]) / np.median(norms[-fifth:])))
    return found


def _shown(scale: Linked, event: str, case: str) -> Markup:
    some, of = _many(scale, event, case)
    return scale.link("runs", f"{some} of {of}", study=RARE_LATE, case=case)


def _many(scale: Linked, event: str, case: str) -> tuple[int, int]:
    """How many runs of a case of that study have come to an event by their last step, and of how many."""
    runs = scale.runs(RARE_LATE, case=case)
    return int(runs[event].notna().sum()), len(runs)
