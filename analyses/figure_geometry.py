"""The main frequency of the embedding is there before the network generalises

Steps of other events over that at which it appears, a dot a seed, a bar the median. What never came is not drawn.
"""

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import SIZES, main, scales

EVENTS = {
    "memorised": "99 % training accuracy",
    "loss_peak": "test loss is highest",
    "half": "50 % test accuracy",
    "grokked": "95 % test accuracy",
}


def figure(root: Path) -> Figure:
    all_scales = scales(root, ("transformer", *SIZES), "lags")
    figure, axes = plt.subplots(1, len(all_scales), figsize=(9.5, 2.4), sharey=True, sharex=True, layout="constrained")
    for axis, scale in zip(axes, all_scales, strict=True):
        steps = scale.tables["lags"].pivot(index="seed", columns="event", values="step").clip(lower=1)
        for i, event in enumerate(EVENTS):
            ratios = (steps[event] / steps["frequency"]).dropna()
            axis.plot(ratios, [i] * len(ratios), "o", ms=4, color="#0173b2", alpha=0.6)
            axis.plot(ratios.median(), i, "|", color="black", ms=14, mew=1.5)
        axis.axvline(1, color="0.4", lw=1)
        axis.set(xscale="log", title=scale.name)
        axis.set_yticks(np.arange(len(EVENTS)), EVENTS.values())
        axis.margins(y=0.15)
    figure.supxlabel("step over that of the main frequency", fontsize="medium")
    return figure


if __name__ == "__main__":
    main(figure)
