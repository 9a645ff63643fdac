"""When everything happens, over the step at which the main frequency of the embedding appears

A dot a seed, a bar the median; right of 1 the event comes later. What never came is not drawn.
"""

from pathlib import Path

import numpy as np
import seaborn as sns
from lags_of import EVENTS, all_lags
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import SIZES, main, scales


def figure(root: Path) -> Figure:
    all_scales = scales(root, ("transformer", *SIZES), "lags")
    figure, axes = plt.subplots(1, len(all_scales), figsize=(14, 4), sharey=True, layout="constrained")
    for axis, scale in zip(axes, all_scales, strict=True):
        lags = all_lags(scale).reindex(columns=list(EVENTS.values()))
        factors = np.exp(lags.where(np.isfinite(lags)))
        sns.stripplot(factors, orient="h", color="#0173b2", alpha=0.5, jitter=False, ax=axis)
        axis.plot(factors.median(), range(len(EVENTS)), "|", color="black", ms=12)
        axis.axvline(1, color="0.4", lw=1)
        axis.set(xscale="log", title=scale.name, xlabel="")
        axis.minorticks_off()
    figure.supxlabel("step over that of the main frequency", fontsize="medium")
    return figure


if __name__ == "__main__":
    main(figure)
