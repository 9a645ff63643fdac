"""The primary tests

Word, median effect with its interval, seeds in which what is asked is so, and Holm's p over all of them. P6 and P7
are over the seeds of both sizes. ∞ and 0: one of the two never came.
"""

from pathlib import Path

import pandas as pd
from primary import PRIMARY
from tables import main, number


def effect(row: pd.Series) -> str:
    sign = "" if row["test"] in ("P2", "P6") else "× "
    return f"{sign}{number(row['effect'])} [{number(row['low'])}, {number(row['high'])}]"


def cell(row: pd.Series) -> str:
    return f"{row['verdict']}: {effect(row)}, {row['agree']} of {row['seeds']}, p = {number(row['holm'])}"


def table(root: Path) -> pd.DataFrame:
    judged = pd.read_csv(root / "tables/primary.csv")
    rows = []
    for name, test in PRIMARY.items():
        cells = {row["size"]: cell(row) for _, row in judged[judged["test"] == name].iterrows()}
        rows.append({"test": f"{name}. {test.asked}", "effect": test.measure} | cells)
    frame = pd.DataFrame(rows).fillna("–")
    return frame[["test", "effect", "quick", "mid", "both"]]


if __name__ == "__main__":
    main(table)
