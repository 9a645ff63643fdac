"""The most frequent word and the rarest ones

By scale and weight decay, in random batches of 64: medians over seeds, with the least and the largest of what
fluctuates with the last batches. Balance: decay ‖e_i‖ over ‖∂L/∂e_i‖; cosine: of −e_i and ∂L/∂e_i; both are 1 at the
equilibrium. A word rests from the first stored step from which its norm stays within 10 % of the last; > 640: it was
still moving. A range is learned when its test places have half of their largest gain over word frequencies alone.
"""

from pathlib import Path

import pandas as pd
from tables import main, number, scales, span

COLUMNS = {
    "norm": "‖e_i‖",
    "gradient": "accumulated gradient",
    "updated": "steps that update it",
    "balance": "balance",
    "opposed": "cosine",
    "rest": "rests from step",
    "learned": "learned at step",
}


def table(root: Path) -> pd.DataFrame:
    rows = []
    for scale in scales(root, ("text", "text-transformer"), "ranges"):
        ranges = scale.tables["ranges"].query("sampler == 'random' and batch_size != 512")
        for (decay, first), at in ranges.groupby(["weight_decay", "first"]):
            if first not in (ranges["first"].min(), ranges["first"].max()):
                continue
            row = {"scale": scale.name, "weight decay": f"{decay:g}", "ranks": ranks(first, at["last"].iloc[0])}
            for name, words in COLUMNS.items():
                if at[name].notna().any():
                    row[words] = span(at[name]) if name in ("balance", "opposed") else number(at[name].median())
            if at["rest"].median() > 640:
                row[COLUMNS["rest"]] = "> 640"
            rows.append(row)
    return pd.DataFrame(rows).fillna("–")


def ranks(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


if __name__ == "__main__":
    main(table)
