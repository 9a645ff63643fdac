"""Without LayerNorm a Transformer's pair of E and MLP is among the shallow ones

Left: −λ_min of the data loss by pair on the plateau of a one-layer Transformer (p = 59); right: of one that
learns natural text, at step 100. A dot a seed, a bar the median; orange: E with MLP. V here: values, O: output of
attention, U: unembedding.
"""

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import Scale, main

PAIRS = ("E,mlp_in", "mlp_in,mlp_out", "Q,K", "V,O", "E,U", "E,Q,K")
SHOWN = (
    ("transformer", {"study": "curvature", "case": "c1", "analysis": "plateau"}, "modular addition"),
    ("text-transformer", {"study": "curvature", "analysis": "middle"}, "natural text"),
)


def figure(root: Path) -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
    for axis, (name, known, title) in zip(axes, SHOWN, strict=True):
        lowest = Scale(root / name).pivot("lowest", **known)
        pairs = [pair for pair in PAIRS if pair in lowest]
        for i, pair in enumerate(pairs):
            depths = -lowest[pair].dropna()
            colour = "#d55e00" if pair == "E,mlp_in" else "0.5"
            axis.plot([i] * len(depths), depths, "o", ms=4, color=colour, alpha=0.6)
            axis.hlines(depths.median(), i - 0.2, i + 0.2, color="black", lw=1.5, zorder=3)
        axis.set(yscale="log", title=title, xticks=range(len(pairs)))
        axis.set_xticklabels(pairs, rotation=20, ha="right", rotation_mode="anchor")
        axis.yaxis.set_minor_formatter("")
    axes[0].set_ylabel("−λ_min")
    return figure


if __name__ == "__main__":
    main(figure)
