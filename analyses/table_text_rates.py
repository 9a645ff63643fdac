"""Test loss on natural text by the rate of E

Medians over seeds, and in how many of them it is below that at c = 1 with the same weight decay; the last c that was
set. N3 and N6 test the lowest loss within 800 steps.
"""

from pathlib import Path

import pandas as pd
from tables import main, number, scales

RATES = {
    "text": {
        "c = 1": ("words", "decay"),
        "c = 3": ("rates", "c3"),
        "c = 10": ("rates", "c10"),
        "Proposition 4.1": ("rates", "prop41"),
        "c = 1, no weight decay": ("words", "none"),
        "c = 10, no weight decay": ("runaway", "c10"),
        "Proposition 4.1, no weight decay": ("runaway", "prop41"),
    },
    "text-transformer": {
        "c = 1": ("rates", "c1"),
        "c = 3": ("rates", "c3"),
        "c = 10": ("rates", "c10"),
        "Proposition 4.1": ("rates", "prop41"),
    },
}
"""Study and case by scale and the rate of E over that of W, or of all else in a Transformer."""


def table(root: Path) -> pd.DataFrame:
    rows = []
    for scale in scales(root, tuple(RATES), "losses"):
        base: dict[bool, pd.DataFrame] = {}
        for words, (study, case) in RATES[scale.name].items():
            of = scale.rows("losses", study=study, case=case)
            by_step = of.reset_index().pivot(index="seed", columns="step", values="test_loss")
            losses = by_step[[100, 400, 800]].assign(lowest=by_step.min(axis=1))
            # The first of those with the same weight decay.
            plain = base.setdefault("no weight decay" in words, losses)
            below = (losses < plain.loc[losses.index]).sum()
            row = {"scale": scale.name, "rate": words, "seeds": len(losses)}
            for name in losses:
                more = "" if plain is losses else f" ({below[name]} of {len(losses)} lower)"
                row[name if name == "lowest" else f"step {name}"] = f"{number(losses[name].median())}{more}"
            last = of.sort_values("step").groupby(level="seed")["c"].last().median()
            rows.append(row | {"last c": number(last)})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main(table)
