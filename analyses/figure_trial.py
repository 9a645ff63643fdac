"""Settling makes E,W shallower; steps along it cut no wait to 0.8; grokking follows both rates

**a** −λ_min of the data loss on the plateau over the weight decay λ, at Adam's checkpoint (hollow) and settled
(filled), a mark a seed, a bar the median (`paper`: E,W alone); dashes: λ. **b** Steps from the fork to grokking over
those of the run of the same seed that was moved at random; dashes: 0.8, the most that P4 allows. **c** Median step of
grokking over both learning rates at `mid`, white where most never grokked; dots: the best cell at each product with
three that grokked.
"""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
from figure_rates import surface
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from primary import waits
from tables import BY_SCALE, COLOURS, Scale, log_ratios, main, scales

TICKS = (0.8, 0.9, 1, 1.2, 1.4, 1.6)
BLOCKS = ("E,W", "E[operands],W", "W,V")
ARMS = {"EW": "along E,W", "WV": "along W,V", "held": "E,W held", "none": "left alone"}


def depths(scale: Scale, analysis: str) -> pd.DataFrame:
    """By seed and block, in units of the weight decay."""
    decay = scale.rows("settled", study="settled")["weight_decay"]
    return -scale.pivot("lowest", study="settled", analysis=analysis).div(decay, axis=0)


def draw_depths(axis: Axes, root: Path) -> None:
    at = scales(root, table="settled")
    for (i, scale), (analysis, shift) in itertools.product(enumerate(at), (("plateau", -0.06), ("settled", 0.06))):
        for block, of in depths(scale, analysis).items():
            x, face = i + 0.27 * (BLOCKS.index(block) - 1) + shift, COLOURS[block] if analysis == "settled" else "none"
            axis.plot([x] * len(of), of, "o", ms=3.5, mec=COLOURS[block], mfc=face, alpha=0.7)
            axis.hlines(of.median(), x - 0.05, x + 0.05, color="black", lw=1.5, zorder=3)
    for block in BLOCKS:
        axis.plot([], [], "o", color=COLOURS[block], ms=4, label=block)
    axis.axhline(1, color="0.4", lw=1, ls="--")
    axis.set(
        yscale="log",
        ylim=(0.9, 30),
        ylabel="−λ_min / λ",
        xticks=range(len(at)),
        xticklabels=[scale.name for scale in at],
    )
    axis.yaxis.set_major_formatter("{x:g}")
    axis.legend(fontsize="x-small", loc="upper right", ncols=3)


def draw_waits(axis: Axes, root: Path) -> None:
    for shift, scale in zip((-0.12, 0.12), scales(root, ("quick", "mid")), strict=True):
        for i, arm in enumerate(ARMS):
            ratios = np.exp(log_ratios(waits(scale, arm), waits(scale, "random")))
            axis.plot([i + shift] * len(ratios), ratios, "o", ms=3.5, color=BY_SCALE[scale.name], alpha=0.6)
            axis.hlines(np.median(ratios), i + shift - 0.1, i + shift + 0.1, color="black", lw=1.5, zorder=3)
        axis.plot([], [], "o", color=BY_SCALE[scale.name], ms=4, label=scale.name)
    axis.axhline(0.8, color="0.4", lw=1, ls="--")
    axis.set(yscale="log", ylabel="wait / wait with random kicks", xticks=range(len(ARMS)))
    axis.set_xticklabels(ARMS.values(), rotation=20, ha="right", rotation_mode="anchor")
    axis.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axis.set_yticks([], minor=True)
    axis.legend(fontsize="x-small")


def figure(root: Path) -> Figure:
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
    draw_depths(axes[0], root)
    draw_waits(axes[1], root)
    surface(axes[2], Scale(root / "mid"))
    axes[2].legend(fontsize="x-small", loc="upper right")
    for axis, letter in zip(axes, "abc", strict=True):
        axis.set_title(letter, loc="left", fontweight="bold")
    return figure


if __name__ == "__main__":
    main(figure)
