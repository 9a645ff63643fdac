"""Spectral densities of E, W and E,W over training

One run a size, at its first, a middle and its last analysed step, smoothed; scaled by a symmetric logarithm, so that
the negative eigenvalues of E,W are seen.
"""

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import COLOURS, main, scales


def figure(root: Path) -> Figure:
    all_scales = scales(root, table="densities")
    figure, axes = plt.subplots(
        len(all_scales), 3, figsize=(11, 2.5 * len(all_scales)), layout="constrained", squeeze=False
    )
    for row, scale in zip(axes, all_scales, strict=True):
        table = scale.tables["densities"]
        steps = sorted(table["step"].unique())
        for axis, step in zip(row, (steps[0], steps[len(steps) // 2], steps[-1]), strict=True):
            for block, width in (("E,W", 3), ("W", 1.5), ("E", 1.5)):
                of = table[(table["step"] == step) & (table["block"] == block)].sort_values("eigenvalue")
                axis.plot(of["eigenvalue"], of["density"].clip(lower=1e-6), color=COLOURS[block], label=block, lw=width)
            smoothed = table[table["step"] == step]["width"].min()
            axis.set(yscale="log", title=f"{scale.name}, step {step:,}", xlabel="eigenvalue", ylim=(1e-6, None))
            axis.set_xscale("symlog", linthresh=smoothed)
        row[0].set_ylabel("density")
    axes[0, 0].legend()
    return figure


if __name__ == "__main__":
    main(figure)
