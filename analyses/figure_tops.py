"""Top eigenvalues of E and W over training

λ_max, a line a seed; dotted: memorised, dashed: 50 % test accuracy, at their median steps. C6 asks which falls with
which.
"""

from pathlib import Path

import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import COLOURS, PLAIN, main, scales


def figure(root: Path) -> Figure:
    all_scales = scales(root)
    figure, axes = plt.subplots(1, len(all_scales), figsize=(11, 3), layout="constrained")
    for axis, scale in zip(axes, all_scales, strict=True):
        top = scale.rows("curvature", **PLAIN, analysis="top").reset_index().query("step > 0")
        sns.lineplot(
            top, x="step", y="highest", hue="block", units="seed", estimator=None, palette=COLOURS, lw=0.7, ax=axis
        )
        for event, style in (("memorised", ":"), ("half", "--")):
            axis.axvline(scale.runs(**PLAIN)[event].median(), color="0.4", ls=style, lw=1)
        axis.set(xscale="log", yscale="log", title=scale.name, ylabel="λ_max" if axis is axes[0] else "")
    return figure


if __name__ == "__main__":
    main(figure)
