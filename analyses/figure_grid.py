"""Whether an embedding helps or hurts turns with the setting and the threshold

Steps from memorising; a dot a seed, a bar the median, at the edge where one of the two never came.
"""

import itertools
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from primary import SETTINGS
from table_grid import waits
from tables import BY_SCALE, log_ratios, main, scales

FARTHEST = 60.0


def figure(root: Path) -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for (axis, (event, words)), (shift, scale) in itertools.product(
        zip(axes, (("half", "50 %"), ("grokked", "95 %")), strict=True),
        zip((-0.15, 0.15), scales(root, ("quick", "mid")), strict=True),
    ):
        for i, setting in enumerate(SETTINGS):
            pair = [waits(scale, model, event, *setting) for model in ("embedding", "onehot")]
            both = pair[0].notna() | pair[1].notna()
            with np.errstate(over="ignore"):
                ratios = np.exp(log_ratios(*(of[both] for of in pair)))
            shown = np.clip(ratios, 1 / FARTHEST, FARTHEST)
            axis.plot([i + shift] * len(shown), shown, "o", ms=3.5, color=BY_SCALE[scale.name], alpha=0.6)
            if len(shown):
                axis.hlines(np.median(shown), i + shift - 0.12, i + shift + 0.12, color="black", lw=1.5, zorder=3)
        axis.plot([], [], "o", color=BY_SCALE[scale.name], ms=4, label=scale.name)
        axis.axhline(1, color="0.4", lw=1)
        axis.set(yscale="log", title=f"to {words} test accuracy", xticks=range(len(SETTINGS)))
        axis.set_xticklabels([f"{lr:g}\n{decay:g}" for lr, decay in SETTINGS])
    axes[0].set_ylabel("wait, embedding over one-hot")
    axes[0].legend(fontsize="x-small")
    figure.supxlabel("learning rate, weight decay", fontsize="medium")
    return figure


if __name__ == "__main__":
    main(figure)
