"""What the ratio c of both learning rates changes

C8: step of grokking; of a run that never did, the steps that it was watched. C5: λ_max(W) over λ_max(E) on the
plateau. C7: the constant of Proposition 4.1. A dot a seed, lines join medians.
"""

from pathlib import Path

import pandas as pd
from claims import counted
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import PLAIN, Scale, Setting, main, scales

FIXED: dict[float, Setting] = {
    1: PLAIN,
    10: {"study": "curvature", "case": "c10"},
    **{c: {"study": "pace", "case": f"c{c}"} for c in (2, 4, 8, 16, 32, 64, 128)},
}


def quantities(scale: Scale) -> dict[str, dict[str, dict[float, pd.Series]]]:
    """Values by c, by colour, by panel."""
    runs = {c: scale.runs(**known) for c, known in FIXED.items()}
    gaps = {c: scale.rows("curvature", **FIXED[c], analysis="top-plateau", block="E") for c in (1, 10)}
    equal = scale.runs("pace", case="equal-c10")
    return {
        "C8: step of grokking": {"#d55e00": {c: counted(of) for c, of in runs.items()}, "0.5": {10: counted(equal)}},
        "C5: λ_max(W) over λ_max(E)": {
            "#d55e00": {c: rows["curvature_ratio"] for c, rows in gaps.items() if len(rows)}
        },
        "C7: constant of Proposition 4.1": {"#d55e00": {c: of["prop41_constant"].dropna() for c, of in runs.items()}},
    }


def figure(root: Path) -> Figure:
    all_scales = scales(root)
    figure, axes = plt.subplots(3, len(all_scales), figsize=(10, 7), sharey="row", layout="constrained")
    for column, scale in zip(axes.T, all_scales, strict=True):
        for axis, (title, colours) in zip(column, quantities(scale).items(), strict=True):
            for colour, by_c in colours.items():
                points = [(c, value) for c, values in by_c.items() for value in values]
                axis.plot(*zip(*points, strict=True), "o", color=colour, alpha=0.4, ms=4)
                medians = pd.Series({c: values.median() for c, values in by_c.items() if len(values)}).sort_index()
                label = {"0.5": "same product of both rates"}.get(colour, "W keeps its rate")
                axis.plot(medians.index, medians, color=colour, label=label)
            axis.set(xscale="log", yscale="log", ylabel=title if axis in axes[:, 0] else "")
        column[0].set_title(scale.name)
        column[-1].set_xlabel("c")
    axes[0, 0].legend(fontsize="x-small")
    return figure


if __name__ == "__main__":
    main(figure)
