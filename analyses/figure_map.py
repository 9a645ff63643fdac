"""Grokking and rest of embeddings by weight decay and skew of tokens, batches of 32 at `quick`

Median steps over ten seeds. ∞: half of the runs never grokked; >: half of them were still moving in the last fifth of
the steps. A token rests from the first stored step from which its norm stays within 10 % of the last.
"""

import math
from pathlib import Path

import numpy as np
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import Scale, main

PANELS = {
    "grokked": "step of grokking",
    "rest_rare": "step at which rare tokens rest",
    "rest_frequent": "step at which frequent tokens rest",
}


def figure(root: Path) -> Figure:
    table = Scale(root / "quick").tables["map"]
    watched = table["watched"].max()
    figure, axes = plt.subplots(1, 3, figsize=(11, 3), layout="constrained")
    for axis, (name, title) in zip(axes, PANELS.items(), strict=True):
        last = watched if name == "grokked" else 0.8 * watched
        steps = table[name].where(table[name] <= last, math.inf)
        medians = steps.groupby([table["weight_decay"], table["skew"]]).median().unstack().iloc[::-1]
        never = "∞" if name == "grokked" else f"> {last:,.0f}"
        words = medians.map(lambda step, never=never: never if math.isinf(step) else f"{step:,.0f}")
        shade = np.log(medians.clip(upper=last))
        sns.heatmap(shade, annot=words, fmt="", cmap="Blues", cbar=False, ax=axis, alpha=0.6)
        axis.set(title=title, ylabel="weight decay" if axis is axes[0] else "")
    return figure


if __name__ == "__main__":
    main(figure)
