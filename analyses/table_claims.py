"""Verdicts on every claim

Each cell has the verdict, the median effect with the interval that holds it at 97.9 %, and Holm's p. Supported and not
supported: p below 5 % and the median x above or below 0, so that *not supported* says that the opposite was found;
undecided: neither. An effect of ≥ or ≤ is a bound: in the median of seeds a run never got there. C2 is not tested at
any size, C6 not at `mid` and `paper` (the table of checks says why).
"""

import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from claims import BEST, CLAIMS
from tables import SCALES, Scale, bound, main, number, scales

SENSITIVITY = {
    "S1": ("random", "aware"),
    "I1": ("E-double", "E-half"),
    "I2": ("W-double", "W-half"),
}


def compared(scale: Scale, claim: str) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """The runs of which the effect of a claim is the ratio of steps."""
    if claim in SENSITIVITY:
        return tuple(scale.runs("sensitivity", case=case) for case in SENSITIVITY[claim])  # type: ignore[return-value]
    if claim == "C1":
        return scale.runs("delay", case="embedding"), scale.runs("delay", case="onehot")
    if claim == "D2":
        return scale.runs("tables", case="l2"), scale.runs("tables", case="nuclear")
    if claim in ("A1", "A2"):
        rates = ("1.0", "auto") if claim == "A1" else ("auto", BEST[scale.name])
        return scale.runs("auto", lr_ratio=rates[0]), scale.runs("auto", lr_ratio=rates[1])
    return None


def effect(scale: Scale, row: Mapping[str, object]) -> str:
    """The effect of a claim with its interval, or its bound."""
    name, x = str(row["claim"]), [float(str(row[part])) for part in ("median", "low", "high")]
    pair = compared(scale, name) if math.isinf(x[0]) else None
    bounded = bound(*pair, "delay" if name == "C1" else "grokked") if pair else None
    return f"× {bounded}" if bounded else CLAIMS[name].shown(*x)


def table(root: Path) -> pd.DataFrame:
    cells: dict[str, dict[str, str]] = {}
    for scale in scales(root, SCALES):
        verdicts = pd.concat([scale.tables[name] for name in ("verdicts", "beyond") if name in scale.tables])
        for row in verdicts.to_dict("records"):
            text = f"{row['verdict']}: {effect(scale, row)}, p = {number(row['holm'])}"
            cells.setdefault(row["claim"], {})[scale.name] = text
    rows = [
        {"claim": name, "statement": claim.statement, "effect": claim.measure} | cells[name]
        for name, claim in CLAIMS.items()
        if name in cells
    ]
    frame = pd.DataFrame(rows)
    return frame[["claim", "statement", "effect", *(name for name in SCALES if name in frame)]].fillna("–")


if __name__ == "__main__":
    main(table)
