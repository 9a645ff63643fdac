"""The tolerance decides how many eigenvalues count as negative, settled or not

Eigenvalues of a block below −τ, against τ in units of ‖H‖: medians over seeds, shaded over all intervals, which are
proven at `quick` and hold with 95 % confidence elsewhere.
"""

from pathlib import Path

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from tables import COLOURS, main, scales

STATES = {"plateau": ("--", "Adam's checkpoint"), "settled": ("-", "settled")}


def figure(root: Path) -> Figure:
    known = scales(root, table="index_curves")
    figure, axes = plt.subplots(
        1, len(known), figsize=(2.8 * len(known) + 1.5, 2.8), layout="constrained", squeeze=False
    )
    for axis, scale in zip(axes[0], known, strict=True):
        table = scale.rows("index_curves", study="settled").reset_index()
        for (block, analysis), rows in table.groupby(["block", "analysis"]):
            draw(axis, rows, COLOURS[block], STATES[analysis][0])
        axis.set(xscale="log", title=f"{scale.name}, {table['seed'].nunique()} seeds", xlabel="τ / ‖H‖", ylim=(0, None))
    axes[0, 0].set_ylabel("eigenvalues below −τ")
    blocks = dict.fromkeys(block for scale in known for block in scale.rows("index_curves", study="settled")["block"])
    lines = [Line2D([], [], color=COLOURS[block], label=block) for block in blocks]
    lines += [Line2D([], [], color="0.3", ls=dashes, label=words) for dashes, words in STATES.values()]
    figure.legend(handles=lines, frameon=False, loc="outside right center")
    return figure


def draw(axis: plt.Axes, rows: pd.DataFrame, colour: str, dashes: str) -> None:
    """The curve of a block over seeds."""
    middle = rows["estimate"].fillna((rows["lower"] + rows["upper"]) / 2)
    ends = {"least": rows["estimate_low"].fillna(rows["lower"]), "most": rows["estimate_high"].fillna(rows["upper"])}
    by = rows.assign(middle=middle, **ends).groupby("tau")
    axis.plot(by["middle"].median(), color=colour, ls=dashes)
    low, high = by["least"].min(), by["most"].max()
    axis.fill_between(low.index, low, high, color=colour, alpha=0.1, lw=0)


if __name__ == "__main__":
    main(figure)
