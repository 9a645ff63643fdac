"""What the trial's page says of samplers, starts and rare tokens, each tested on seeds that nobody had seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from exact import median_interval
from markupsafe import Markup
from page_beside import middle
from page_claims import BEYOND, Row, headline
from page_figures import curves
from page_links import Linked
from page_transformers import judged
from primary import frequency_and_norm
from rare_late import RARE_LATE
from scale import which

ASKED = ("R1", "R2", "S1", "S2", "I1", "I2")
RARE = ASKED[:2]
"""Those of rare tokens, which Transformers have, too."""
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
        if rows:
            there = {one.name: next(judged(one, one.link, "beyond", [name])) for one in scales if one.name in rows}
            found[name] = {"sentence": headline(name, rows), "measure": BEYOND[name].measure, "at": there}
    return found


def verdict(scale: Linked, name: str) -> Row | None:
    """Its row of beyond.csv; None where it was not asked."""
    table = scale.tables.get("beyond", pd.DataFrame({"claim": []}))
    rows = table[table["claim"] == name].to_dict("records")
    return rows[0] if rows else None


def rare_tokens(scales: Sequence[Linked]) -> dict[str, dict[str, Any]]:
    """By scale the verdicts on rare tokens, and how norms follow frequency over training."""
    return {one.name: _rare(one) for one in scales if "rare_late" in one.tables}


def _rare(scale: Linked) -> dict[str, Any]:
    tokens = which(scale.tables["tokens"], study=RARE_LATE)
    last = {case: frequency_and_norm(which(tokens, case=case).set_index("seed")) for case in CASES}
    rows = scale.tables["rare_late"]
    over = {case: which(rows, case=case).groupby("step")["correlation"].median() for case in CASES}
    told = {case: middle(of.tolist()) for case, of in last.items()}
    alt = "; ".join(f"{words}, at the last step {told[case]}" for case, (words, _) in CASES.items())
    return {
        "claims": list(judged(scale, scale.link, "beyond", RARE)),
        "last": {CASES[case][0]: scale.link("rare_late", text, case=case) for case, text in told.items()},
        "grokked": {CASES[case][0]: _grokked(scale, case) for case in CASES},
        "apart": _grokked_in(scale, "full") > 0 == _grokked_in(scale, "small"),
        "flat": _holds_zero(last["small"]),
        "figure": curves(
            {words: (over[case], colour) for case, (words, colour) in CASES.items()},
            f"Rank correlation of frequency and norm over steps at {scale.name}: {alt}",
        ),
        "caption": scale.caption("rare_late", {"study": RARE_LATE}),
    }


def _grokked(scale: Linked, case: str) -> Markup:
    """How many runs of a case of that study have grokked by their last step."""
    of = len(scale.runs(RARE_LATE, case=case))
    return scale.link("runs", f"{_grokked_in(scale, case)} of {of}", study=RARE_LATE, case=case)


def _grokked_in(scale: Linked, case: str) -> int:
    return int(scale.runs(RARE_LATE, case=case)["grokked"].notna().sum())


def _holds_zero(values: pd.Series) -> bool:
    """Whether the interval of the median reaches from one side of 0 to the other."""
    _, low, high = median_interval(values.tolist())
    return low <= 0 <= high
