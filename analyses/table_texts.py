"""What weight decay and small batches do to rare words, by text and number of words

Changes of the rank correlation of a word's places with its norm: weight decay 0.001 minus none, and batches of 64
minus batches of 512. Medians over seeds with the least and the largest; N1 and N2 test the first row.
"""

from pathlib import Path

import pandas as pd
from tables import Scale, main, span

TEXTS = {"bible": "King James Bible", "jargon": "Jargon File"}


def table(root: Path) -> pd.DataFrame:
    scale = Scale(root / "text")
    changes = {(TEXTS["bible"], 500): [scale.rows("seeds", claim=name)["x"] for name in ("N1", "N2")]}
    for (text, count), rows in scale.tables["zipf"].groupby(["text", "words"]):
        of = rows.set_index(["weight_decay", "batch_size", "seed"])["correlation"].unstack("seed")
        changes[TEXTS[text], count] = [of.loc[0.001, 64] - of.loc[0.0, 64], of.loc[0.001, 64] - of.loc[0.001, 512]]
    rows = [
        {"text": text, "words": f"{count:,}", "seeds": len(of[0]), "weight decay": span(of[0]), "batches": span(of[1])}
        for (text, count), of in changes.items()
    ]
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(table)
