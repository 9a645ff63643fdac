"""Without E, the penalty on the first layer moves or prevents grokking

Share of runs that have grokked (Kaplan–Meier), ten seeds an arm. Crossed: each penalty with the weight decay of V
that the other has.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from exact import survival
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import PLAIN, Setting, main, scales

ARMS: Mapping[str, tuple[Setting, str]] = {
    "E and W, L2": (PLAIN, "-"),
    "E and W, E frozen after memorising": ({"study": "tables", "case": "frozen"}, "-"),
    "tables, nuclear norm": ({"study": "tables", "case": "nuclear"}, "-"),
    "tables, L2": ({"study": "tables", "case": "l2"}, "-"),
    "tables, nuclear norm, crossed": ({"study": "crossed", "case": "nuclear-V"}, "--"),
    "tables, L2, crossed": ({"study": "crossed", "case": "l2-V"}, "--"),
}
COLOURS = dict(zip(ARMS, ("#0173b2", "0.2", "#029e73", "#d55e00", "#029e73", "#d55e00"), strict=True))


def figure(root: Path) -> Figure:
    all_scales = scales(root)
    figure, axes = plt.subplots(1, len(all_scales), figsize=(10, 2.8), sharey=True, layout="constrained")
    for axis, scale in zip(axes, all_scales, strict=True):
        for words, (known, dashes) in ARMS.items():
            runs = scale.runs(**known)
            if len(runs):
                left = survival(runs["grokked"], runs["watched"])
                steps = np.r_[50, left.quantiles, runs["watched"].max()]
                shares = np.r_[0, 1 - left.probabilities, runs["grokked"].notna().mean()]
                axis.step(steps, shares, dashes, where="post", color=COLOURS[words])
        axis.set(xscale="log", xlabel="step", title=scale.name)
    for words, (_, dashes) in ARMS.items():
        axes[0].plot([], [], dashes, color=COLOURS[words], label=words)
    axes[0].set_ylabel("share that grokked")
    figure.legend(fontsize="small", frameon=False, loc="outside right center")
    return figure


if __name__ == "__main__":
    main(figure)
