"""How norms follow frequency over training

Rank correlation of an operand token's places in training pairs with ‖e_i‖: medians of ten seeds. Dotted: memorised,
dashed: grokked, at their median steps.
"""

import math
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from table_rare import CASES
from tables import SIZES, main, scales, which

COLOURS = {"small": "#d55e00", "full": "#0173b2", "nodecay": "#949494"}


def figure(root: Path) -> Figure:
    all_scales = scales(root, ("transformer", *SIZES), "rare_late")
    figure, axes = plt.subplots(1, len(all_scales), figsize=(13, 3), sharey=True, layout="constrained")
    for axis, scale in zip(axes, all_scales, strict=True):
        for case, words in CASES.items():
            rows = which(scale.tables["rare_late"], case=case)
            median = rows[rows["step"] > 0].groupby("step")["correlation"].median()
            axis.plot(median.index, median, color=COLOURS[case], label=words)
            for event, style in (("memorised", ":"), ("grokked", "--")):
                at = scale.runs("rare-late", case=case)[event].fillna(math.inf).median()
                if math.isfinite(at):
                    axis.axvline(at, color=COLOURS[case], ls=style, lw=1)
        axis.set(xscale="log", xlabel="step", title=scale.name)
    axes[0].set_ylabel("rank correlation")
    axes[0].legend(fontsize="x-small")
    return figure


if __name__ == "__main__":
    main(figure)
