"""Depth of the couplings over training

−λ_min of one run a size; the dash is ‖∂L/∂b₁‖. Dotted: memorised, dashed: grokked.
"""

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import COLOURS, main, scales, which


def figure(root: Path) -> Figure:
    filmed = [scale for scale in scales(root) if len(scale.runs("film"))]
    figure, axes = plt.subplots(1, len(filmed), figsize=(10, 3), layout="constrained")
    for axis, scale in zip(axes, filmed, strict=True):
        run, rows = scale.runs("film").iloc[0], which(scale.tables["curvature"], study="film")
        for block in ("E,W", "E[operands],W", "W,V"):
            of = rows[(rows["block"] == block) & (rows["lowest"] < 0)].sort_values("step")
            axis.plot(of["step"] + 1, -of["lowest"], "o-", ms=3, color=COLOURS[block], label=block)
        bound = rows[rows["block"] == "E,W"]
        axis.plot(bound["step"] + 1, bound["saddle_bound_constants"], "_", color="black", ms=9, label="‖∂L/∂b₁‖")
        for event, style in (("memorised", ":"), ("grokked", "--")):
            axis.axvline(run[event] + 1, color="0.4", ls=style, lw=1)
        high = -rows["lowest"].min()
        axis.set(xscale="log", yscale="log", xlabel="step + 1", title=scale.name, ylim=(high * 1e-5, high * 2))
    axes[0].set_ylabel("−λ_min")
    axes[0].legend()
    return figure


if __name__ == "__main__":
    main(figure)
