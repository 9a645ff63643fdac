"""What changes with the size of the network

`quick` with four tokens, one quantity changed at a time; a dot a seed, lines join medians. Above 1 a coupling is
deeper than W,V; C7's constant is 1 where Proposition 4.1 is exact. p = 31 trains on 60 % of its pairs, all others on
40 %.
"""

from pathlib import Path

from depths import ratios
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from table_sizes import MEASURES, VARIED, varied
from tables import main, scales

ROWS = (0, 0, 1, 2)
"""Panel of each measure."""
LABELS = ("depth over that of W,V", "gauge's share of E,W's index", "constant of C7")
COLOURS = ("#d55e00", "#0173b2", "#d55e00", "0.5")


def figure(root: Path) -> Figure:
    (scale,) = (one for one in scales(root) if len(one.runs("sizes")))
    all_runs = ratios(scale)
    figure, axes = plt.subplots(3, len(VARIED), figsize=(11, 7), sharey="row", sharex="col", layout="constrained")
    for column, quantity in zip(axes.T, VARIED, strict=True):
        for row, measure, colour in zip(ROWS, MEASURES, COLOURS, strict=True):
            runs = varied(all_runs, measure, quantity)
            axis, median = column[row], runs.groupby("value")["y"].median()
            axis.plot(median.index, median, color=colour, label=measure)
            axis.plot(runs["value"], runs["y"], "o", color=colour, alpha=0.4, ms=4)
            axis.set(xscale="log")
            if row != 1:
                axis.set(yscale="log")
                axis.axhline(1, color="0.4", lw=1)
        values = sorted(set(varied(all_runs, "constant of C7", quantity)["value"]))
        column[-1].set(xticks=values, xticklabels=values, xlabel=quantity)
        column[-1].minorticks_off()
    for axis, label in zip(axes[:, 0], LABELS, strict=True):
        axis.set_ylabel(label)
    axes[0, 0].legend(fontsize="x-small")
    return figure


if __name__ == "__main__":
    main(figure)
