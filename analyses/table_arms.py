"""Grokking without the coupling of E and W

Medians of ten seeds; intervals of shares are Clopper and Pearson's. Tables are E W_kᵀ trained directly, with no E and
no W. Ranks and norms are those of the tables where training stopped. Depths are −λ_min on the plateau of E,W, or of
the tables' own block, and of W,V. An index whose upper bound is more than twice the lower one is not determined.
"""

from pathlib import Path

import pandas as pd
from arms import arms, case_of, stopped
from exact import share_interval
from tables import Scale, Setting, count, main, number, scales, step


def arm(scale: Scale, known: Setting) -> dict[str, str]:
    runs = scale.runs(**known)
    low, high = share_interval(int(runs["grokked"].notna().sum()), len(runs))
    ends = scale.runs(**stopped(scale, known))[["effective_rank", "nuclear_norm"]].median()
    return {
        "grokked": count(runs["grokked"]),
        "of all such runs, 95 %": f"{low:.0%} to {high:.0%}",
        "memorised": count(runs["memorised"]),
        "memorised at": step(runs["memorised"]),
        "grokked at": step(runs["grokked"]),
        "delay": step(runs["delay"]),
        "effective rank": number(ends["effective_rank"]),
        "nuclear norm": f"{ends['nuclear_norm']:,.0f}",
    }


def inside(scale: Scale, known: Setting) -> dict[str, str]:
    """Depth and index of an arm's first block on the plateau, and the depth of W,V."""
    blocks = scale.rows("curvature", study="arms", case=case_of(known))
    if blocks[blocks["block"].isin(["E,W", "W", "W,V"])].empty:
        blocks = scale.rows("curvature", **known, analysis="plateau")
    blocks = blocks[blocks["block"].isin(["E,W", "W", "W,V"])]
    if blocks.empty:
        return {}
    control = blocks[blocks["block"] == "W,V"]
    # Where both others were analysed, E,W is the arm's.
    first = blocks[blocks["block"] == min(blocks["block"])]
    low, high = (float(first[f"index_{end}"].median()) for end in ("lower", "upper"))
    index = f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
    return {
        "depth": depth(first),
        "index": index if high <= 2 * low else "not determined",
        "depth of W,V": depth(control) if len(control) else "–",
    }


def depth(rows: pd.DataFrame) -> str:
    """The median of −λ_min, 0 within rounding."""
    median = -float(rows["lowest"].median())
    return number(median) if median > 1e-12 else "0"


def table(root: Path) -> pd.DataFrame:
    rows = [
        {"scale": scale.name, "arm": words} | arm(scale, known) | inside(scale, known)
        for scale in scales(root)
        for words, known in arms(scale).items()
    ]
    return pd.DataFrame(rows).fillna("–")


if __name__ == "__main__":
    main(table)
