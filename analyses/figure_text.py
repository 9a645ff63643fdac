"""On natural text the pair with E is the shallower one, and Proposition 4.1's rate ends at a higher loss

Left: λ_min of the pair with E over that of the next pair, at step 100, a dot a seed. Middle and right: median test
loss by the rate c of E over that of all else; bands: least and most over ten seeds.
"""

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import Scale, main

PAIRS = {"text": ("E,W", "W,V"), "text-transformer": ("E,mlp_in", "mlp_in,mlp_out")}
RATES = {
    "text": {"c = 1": ("words", "decay"), "c = 10": ("rates", "c10"), "Proposition 4.1": ("rates", "prop41")},
    "text-transformer": {
        "c = 1": ("rates", "c1"),
        "c = 10": ("rates", "c10"),
        "Proposition 4.1": ("rates", "prop41"),
    },
}
TITLES = {"text": "MLP", "text-transformer": "Transformer"}
COLOURS = {"c = 1": "#0173b2", "c = 10": "#de8f05", "Proposition 4.1": "#d55e00"}


def figure(root: Path) -> Figure:
    figure, axes = plt.subplots(1, 3, figsize=(10, 3), width_ratios=(1, 1.5, 1.5), layout="constrained")
    for i, (name, (first, second)) in enumerate(PAIRS.items()):
        scale = Scale(root / name)
        lowest = scale.pivot("lowest", study="curvature", analysis="middle")
        ratios = lowest[first] / lowest[second]
        axes[0].plot([i] * len(ratios), ratios, "o", ms=4, color="#0173b2", alpha=0.6)
        axes[0].hlines(ratios.median(), i - 0.2, i + 0.2, color="black", lw=1.5, zorder=3)
        axis = axes[1 + i]
        for words, (study, case) in RATES[name].items():
            losses = scale.rows("losses", study=study, case=case).groupby("step")["test_loss"]
            middle = losses.median()
            axis.plot(middle[middle.index > 0], color=COLOURS[words], label=words)
            axis.fill_between(middle.index, losses.min(), losses.max(), color=COLOURS[words], alpha=0.15, lw=0)
        axis.set(title=TITLES[name], xlabel="step", ylim=(3.9, 5.2), xlim=(0, None))
    axes[0].axhline(1, color="0.4", lw=1)
    axes[0].set(yscale="log", xticks=range(2), xticklabels=[f"{a}\nover\n{b}" for a, b in PAIRS.values()])
    axes[0].set(ylabel="ratio of λ_min", xlim=(-0.5, 1.5), ylim=(0.1, 2))
    axes[0].set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
    axes[0].set_yticks(np.array([]), minor=True)
    axes[1].set_ylabel("test loss")
    axes[1].legend(fontsize="x-small")
    return figure


if __name__ == "__main__":
    main(figure)
