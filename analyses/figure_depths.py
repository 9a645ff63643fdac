"""Depth on the plateau by block

−λ_min, a point a seed; a dash is ‖∂L/∂b₁‖, which bounds E,W where every sample holds `op` and `=`. Of text, at step
100.
"""

from pathlib import Path

import seaborn as sns
from claims import four_tokens
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from table_pairs import PAIRS
from tables import COLOURS, PLAIN, Scale, main, scales, which

FIRST = ("E,W", "E[operands],W", "W,V")


def figure(root: Path) -> Figure:
    shown = [(scale, four_tokens(scale), "plateau", FIRST) for scale in scales(root)]
    shown.append((Scale(root / "transformer"), PLAIN, "plateau", PAIRS))
    shown.append((Scale(root / "text"), {"study": "curvature"}, "middle", ("E,W", "W,V")))
    figure, axes = plt.subplots(1, len(shown), figsize=(13, 3), layout="constrained")
    for axis, (scale, known, analysis, blocks) in zip(axes, shown, strict=True):
        rows = which(scale.tables["curvature"], **known, analysis=analysis)
        rows = rows.assign(depth=-rows["lowest"])[rows["block"].isin(blocks)]
        palette = {block: COLOURS.get(block, "0.4") for block in blocks}
        sns.stripplot(
            rows, x="block", y="depth", hue="block", order=blocks, palette=palette, legend=False, jitter=False, ax=axis
        )
        bound = rows[rows["block"] == "E,W"]["saddle_bound_constants"]
        if "E[operands],W" in blocks:
            axis.scatter([0] * len(bound), bound, marker="_", color="black", s=120, lw=1)
        axis.set(yscale="log", title=scale.name, xlabel="", ylabel="−λ_min" if axis is axes[0] else "")
        axis.tick_params("x", rotation=30)
    return figure


if __name__ == "__main__":
    main(figure)
