"""Verdicts from another training of the same seeds, with other rounding

Runs are other ones where rounding differs. C1, C2, C3, O3, D1 and D2 are those of the table of claims.
"""

from pathlib import Path

import pandas as pd
from claims import CLAIMS
from tables import main, number, scales


def table(root: Path) -> pd.DataFrame:
    rows = []
    for scale in scales(root, table="again"):
        first = scale.tables["verdicts"].set_index("claim")["verdict"]
        for row in scale.tables["again"].itertuples():
            shown = CLAIMS[row.claim].shown(row.median, row.low, row.high)
            rows.append([scale.name, row.claim, first[row.claim], row.verdict, shown, number(row.holm)])
    return pd.DataFrame(rows, columns=["scale", "claim", "verdict", "trained again", "effect", "p"])


if __name__ == "__main__":
    main(table)
