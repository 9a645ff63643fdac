"""Judge one scale: `python analyses/verdicts.py reports/reference/quick` writes its verdicts, and x of every seed.

verdicts.csv has the tests of the scale alone, beyond.csv those that several scales have; seeds.csv and
beyond-seeds.csv have x. The rules are those of studies/PROTOCOL.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from claims import CLAIMS, FAMILIES, Family, Numbers
from exact import ALPHA, holm, median_interval, seeds_to_decide, signed_rank_p
from tables import Scale


def measured(scale: Scale, family: Family) -> dict[str, Numbers]:
    """x of every seed of the family's tests. Exits for a seed without one: a primary test leaves no seed out."""
    numbers = {name: CLAIMS[name].x(scale) for name in family.claims}
    for name, x in numbers.items():
        if missing := [seed for seed in family.seeds if math.isnan(x.get(seed, math.nan))]:
            sys.exit(
                f"error: {name} at {scale.name} has no number for seed {missing[0]}: a run or an analysis is missing, "
                "or the run never memorised\nhint: `make studies` makes what is missing"
            )
    return {name: {seed: x[seed] for seed in family.seeds} for name, x in numbers.items()}


def judge(family: Mapping[str, Numbers]) -> pd.DataFrame:
    """One row a test: the median of x with its interval, p, Holm's p, the verdict, and how many seeds would decide."""
    x = {name: np.array(list(of.values())) for name, of in family.items()}
    p = {name: signed_rank_p(values) for name, values in x.items()}
    corrected, rows = holm(p), []
    for name, values in x.items():
        median, low, high = median_interval(values)
        decided = corrected[name] < ALPHA and median != 0
        verdict = "undecided" if not decided else "supported" if median > 0 else "not supported"
        rows.append(
            {
                "claim": name,
                "statement": CLAIMS[name].statement,
                "verdict": verdict,
                "seeds": len(values),
                "median": median,
                "low": low,
                "high": high,
                "p": p[name],
                "holm": corrected[name],
                "seeds_to_decide": math.nan if decided else float(seeds_to_decide(x, name) or math.nan),
            }
        )
    return pd.DataFrame(rows)


def decide(scale: Scale, families: list[Family]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The verdicts of families of tests, each corrected by itself, and x of every seed."""
    x = [measured(scale, family) for family in families]
    each = [{"claim": name, "seed": seed, "x": by[seed]} for of in x for name, by in of.items() for seed in by]
    return pd.concat([judge(of) for of in x], ignore_index=True), pd.DataFrame(each)


def main() -> None:
    """Write the tables of the scale that the command line names."""
    scale = Scale(Path(sys.argv[1]))
    for files, alone in ((("verdicts", "seeds"), True), (("beyond", "beyond-seeds"), False)):
        families = [one for one in FAMILIES if bool(one.scales) == alone and one.is_of(scale)]
        for file, table in zip(files, decide(scale, families) if families else (), strict=False):
            table.to_csv(scale.folder / f"{file}.csv", index=False)
            print(scale.folder / f"{file}.csv")


if __name__ == "__main__":
    main()
