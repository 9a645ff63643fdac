"""How weight decay and loss pull at words, by ranks

Exploratory, medians over words and seeds: decay ‖e_i‖ over ‖∂L/∂e_i‖, then the cosine of −e_i and ∂L/∂e_i; of AdamW,
whose decay is no part of the loss, the cosine alone.
"""

import math
from pathlib import Path

import pandas as pd
from table_words import ranks
from tables import main, number, scales


def table(root: Path) -> pd.DataFrame:
    rows = []
    for scale in scales(root, ("text", "text-transformer"), "ranges"):
        # What follows gradients learns no word.
        kept = scale.tables["ranges"].query("weight_decay > 0 and sampler != 'frequency_aware'")
        for (sampler, size, decay), of in kept.groupby(["sampler", "batch_size", "weight_decay"]):
            row = {"scale": scale.name, "setting": f"{sampler} batches of {size}, weight decay {decay:g}"}
            for (first, last), at in of.groupby(["first", "last"])[["balance", "opposed"]].median().iterrows():
                row[ranks(first, last)] = "; ".join(number(x) for x in at if not math.isnan(x))
            rows.append(row)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(table)
