"""Words by rank on natural text: norm, share of steps that update them, and step at which they are learned

Medians over words and seeds, by sampler and weight decay; dashes: batches of 512. The sampler `frequency_aware` draws
one kind of place alone, and learns no range of words.
"""

from pathlib import Path

import numpy as np
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import main, scales

QUANTITIES = {"norm": "‖e_i‖", "updated": "steps that update it", "learned": "step learned"}


def figure(root: Path) -> Figure:
    panels = [
        (scale, sampler)
        for scale in scales(root, ("text", "text-transformer"), "ranges")
        for sampler in scale.tables["ranges"]["sampler"].unique()
    ]
    figure, axes = plt.subplots(3, len(panels), figsize=(3 * len(panels), 8), sharex=True, layout="constrained")
    for column, (scale, sampler) in zip(axes.T, panels, strict=True):
        ranges = scale.tables["ranges"]
        decays = sorted(ranges["weight_decay"].unique())
        colours = dict(zip(decays, sns.color_palette("colorblind", len(decays)), strict=True))
        for (decay, size), of in ranges[ranges["sampler"] == sampler].groupby(["weight_decay", "batch_size"]):
            for axis, (name, words) in zip(column, QUANTITIES.items(), strict=True):
                median = of.groupby(["first", "last"])[name].median().reset_index()
                rank = np.sqrt(median["first"] * median["last"])
                label = f"weight decay {decay:g}" if size != 512 else None
                axis.plot(rank, median[name], color=colours[decay], ls="--" if size == 512 else "-", label=label)
                if (median[name] > 0).any():
                    axis.set(xscale="log", yscale="log")
                axis.set_ylabel(words)
        column[0].set_title(f"{scale.name}, {sampler}", fontsize="small")
        column[0].legend(fontsize="x-small")
        column[1].set_ylim(bottom=0.01)
        column[-1].set_xlabel("rank")
    return figure


if __name__ == "__main__":
    main(figure)
