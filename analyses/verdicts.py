"""Judge the trial: `python analyses/verdicts.py [FOLDER]` writes its verdicts, and x of every seed.

verdicts.csv and seeds.csv of a size have the paper's claims, which are corrected size by size; tables/primary.csv and
tables/primary-seeds.csv the primary tests, which are corrected together. The rules are those of studies/PROTOCOL.md.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Mapping
from pathlib import Path

import pandas as pd
from claims import CLAIMS, SEEDS, Numbers
from exact import ALPHA, Name, holm, median_interval, signed_rank_p
from primary import PRIMARY, measured
from tables import Scale, root_of, scales


def judge(x: Mapping[Name, Mapping[Hashable, float]]) -> dict[Name, dict[str, object]]:
    """Of each test of a family: the verdict, the median of x with its interval, p, and Holm's p."""
    p = {name: signed_rank_p(list(of.values())) for name, of in x.items()}
    corrected, judged = holm(p), {}
    for name, of in x.items():
        median, low, high = median_interval(list(of.values()))
        is_decided = corrected[name] < ALPHA and median != 0
        verdict = "inconclusive" if not is_decided else "supported" if median > 0 else "contradicted"
        ends = {"median": median, "low": low, "high": high}
        judged[name] = {"verdict": verdict, "seeds": len(of), **ends, "p": p[name], "holm": corrected[name]}
    return judged


def claims(scale: Scale) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Verdicts on the paper's claims at a size, and x of every seed. Exits for a seed without one."""
    x: dict[str, Numbers] = {}
    for name, test in CLAIMS.items():
        of = test.x(scale)
        if missing := [seed for seed in SEEDS if math.isnan(of.get(seed, math.nan))]:
            sys.exit(
                f"error: {name} at {scale.name} has no number for seed {missing[0]}: a run or an analysis is missing, "
                "or the run never memorised\nhint: `make studies-claims` makes what is missing"
            )
        x[name] = {seed: of[seed] for seed in SEEDS}
    rows = [{"claim": name, "statement": CLAIMS[name].asked, **row} for name, row in judge(x).items()]
    each = [{"claim": name, "seed": seed, "x": value} for name, of in x.items() for seed, value in of.items()]
    return pd.DataFrame(rows), pd.DataFrame(each)


def primary(root: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Verdicts on the primary tests with their effects, and x of every seed."""
    x, rows = measured(root), []
    for (name, size), row in judge(x).items():
        test = PRIMARY[name]
        effect, *ends = (test.effect(float(str(row[part]))) for part in ("median", "low", "high"))
        shown = {"effect": effect, "low": min(ends), "high": max(ends)}
        agree = sum(value > 0 for value in x[name, size].values())
        named = {"test": name, "size": size, "asked": test.asked, "verdict": row["verdict"], "measure": test.measure}
        rows.append(named | shown | {"agree": agree} | {part: row[part] for part in ("seeds", "p", "holm")})
    each = [{"test": t, "size": s, "seed": seed, "x": v} for (t, _), of in x.items() for (s, seed), v in of.items()]
    return pd.DataFrame(rows), pd.DataFrame(each)


def main() -> None:
    """Write the tables below a folder, by default reports/reference."""
    root = root_of(str(__doc__))
    made = {root / "tables": (("primary", "primary-seeds"), primary(root))}
    made |= {scale.folder: (("verdicts", "seeds"), claims(scale)) for scale in scales(root)}
    for folder, (names, tables) in made.items():
        folder.mkdir(exist_ok=True)
        for name, table in zip(names, tables, strict=True):
            table.to_csv(folder / f"{name}.csv", index=False)
            print(folder / f"{name}.csv")


if __name__ == "__main__":
    main()
