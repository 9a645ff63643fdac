"""The embedding at equal hyperparameters

Steps from memorising to 50 % and to 95 % test accuracy, embedding over one-hot input: medians over seeds with
intervals; and how many runs with each input memorised and grokked.
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from primary import BEST, RECORD, SETTINGS
from tables import Scale, count, factor, log_ratios, main, scales

Setting = tuple[float, float]
"""Learning rate and weight decay."""
MODELS = {"embedding": "embedding", "onehot": "one-hot", "scalar": "scalars"}


def waits(scale: Scale, model: str, event: str, lr: float, decay: float) -> pd.Series:
    """Steps from memorising to an event; NaN: never."""
    runs = scale.runs("grid", case=model, lr=lr, weight_decay=decay)
    # An event may come before memorising does.
    return (runs[event] - runs["memorised"]).clip(lower=RECORD)


def row(scale: Scale, settings: Mapping[str, Setting]) -> dict[str, str]:
    """Waits and events of one setting of each input."""
    cells = {}
    for event, words in (("half", "50 %"), ("grokked", "95 %")):
        pair = (waits(scale, model, event, *settings[model]) for model in ("embedding", "onehot"))
        cells[f"wait to {words}"] = factor(log_ratios(*pair))
    for model, (lr, decay) in settings.items():
        runs = scale.runs("grid", case=model, lr=lr, weight_decay=decay)
        cells[MODELS[model]] = f"{count(runs['memorised'])}; {count(runs['grokked'])}"
    return cells


def table(root: Path) -> pd.DataFrame:
    rows = []
    for scale in scales(root, ("quick", "mid")):
        for lr, decay in SETTINGS:
            known = {"size": scale.name, "learning rate": str(lr), "weight decay": str(decay)}
            rows.append(known | row(scale, dict.fromkeys(MODELS, (lr, decay))))
        known = {"size": scale.name, "learning rate": "each at its best", "weight decay": "each at its best"}
        rows.append(known | row(scale, BEST[scale.name]))
    return pd.DataFrame(rows).fillna("–")


if __name__ == "__main__":
    main(table)
