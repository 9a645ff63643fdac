"""The embedding becomes circles

One run a size: the numbers in the plane of the largest frequency of E at four steps, coloured by number, with the
share of that frequency in the variance and R² of its circle; then the shares of all frequencies in use at the end, and
in grey that which chance reaches.
"""

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import SIZES, main, scales


def figure(root: Path) -> Figure:
    all_scales = scales(root, ("transformer", *SIZES), "circles")
    figure, axes = plt.subplots(
        len(all_scales), 5, figsize=(12, 2.5 * len(all_scales)), layout="constrained", squeeze=False
    )
    for row, scale in zip(axes, all_scales, strict=True):
        places, shares = scale.tables["circles"], scale.tables["frequencies"]
        steps = places["step"].unique()
        for axis, step in zip(row, steps[np.linspace(0, len(steps) - 1, 4).round().astype(int)], strict=False):
            of = places[places["step"] == step]
            first = of.iloc[0]
            axis.scatter(of["x"], of["y"], c=of["number"], cmap="viridis", s=10)
            axis.set(
                xticks=[],
                yticks=[],
                aspect="equal",
                xlabel=f"k = {first['frequency']}, {first['share']:.0%}, R² {first['r2']:.2f}",
            )
            axis.set_title(f"step {step:,}", fontsize="small")
        for _, of in shares.groupby("frequency"):
            row[4].plot(of["step"] + 1, of["share"], lw=1)
        chance = shares.drop_duplicates("step")
        row[4].plot(chance["step"] + 1, chance["chance"], color="0.5", ls="--")
        row[4].set(xscale="log", xlabel="step + 1", title="shares")
        row[0].set_ylabel(scale.name)
    return figure


if __name__ == "__main__":
    main(figure)
