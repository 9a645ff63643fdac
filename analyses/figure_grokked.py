"""Share of runs that have grokked, with and without the coupling of E and W

Kaplan–Meier, ten seeds an arm; the second row has the width d of E.
"""

from pathlib import Path

import numpy as np
import seaborn as sns
from arms import arms
from exact import survival
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import main, scales


def figure(root: Path) -> Figure:
    all_scales = scales(root)
    figure, axes = plt.subplots(2, len(all_scales), figsize=(11, 6), sharey=True, layout="constrained")
    for column, scale in zip(axes.T, all_scales, strict=True):
        every = arms(scale)
        by_d = {words: known for words, known in every.items() if ", d = " in words}
        others = {words: known for words, known in every.items() if words not in by_d}
        for axis, cases, palette in zip(column, (others, by_d), ("colorblind", "viridis"), strict=True):
            for (words, known), colour in zip(cases.items(), sns.color_palette(palette, len(cases)), strict=True):
                runs = scale.runs(**known)
                left = survival(runs["grokked"], runs["watched"])
                steps, shares = np.r_[50, left.quantiles], np.r_[0, 1 - left.probabilities]
                axis.step(steps, shares, where="post", color=colour, label=words)
            axis.set(xscale="log", xlabel="step", title=scale.name)
            axis.legend(fontsize="x-small")
    axes[0, 0].set_ylabel("share that grokked")
    axes[1, 0].set_ylabel("share that grokked")
    return figure


if __name__ == "__main__":
    main(figure)
