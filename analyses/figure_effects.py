"""Effects of the paper's claims and of D1, D2, O2 and O3

The median of x with its interval, by size; right of 0 the claim holds. Arrows stand where runs never grokked. x is a
logarithm, so that ±1 is a factor of 2.7, but for C2, where it is a difference.
"""

from pathlib import Path

import numpy as np
from claims import CLAIMS
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tables import BY_SCALE, main, scales

FARTHEST = 4.0
"""Beyond which an arrow stands."""


def figure(root: Path) -> Figure:
    all_scales = scales(root, table="verdicts")
    claims = all_scales[0].tables["verdicts"]["claim"].tolist()
    figure, axis = plt.subplots(figsize=(7, 0.45 * len(claims) + 0.5))
    for offset, scale in zip((-0.25, 0, 0.25), all_scales, strict=False):
        rows = scale.tables["verdicts"].set_index("claim").loc[claims]
        y, x = np.arange(len(claims)) + offset, rows["median"].clip(-FARTHEST, FARTHEST)
        axis.hlines(
            y, rows["low"].clip(-FARTHEST, FARTHEST), rows["high"].clip(-FARTHEST, FARTHEST), BY_SCALE[scale.name]
        )
        for marker, shown in (("o", x.abs() < FARTHEST), ("<", x <= -FARTHEST), (">", x >= FARTHEST)):
            axis.plot(
                x[shown],
                y[shown],
                marker,
                color=BY_SCALE[scale.name],
                ms=5,
                label=scale.name if marker == "o" else None,
            )
    axis.axvline(0, color="0.4", lw=1)
    axis.set(yticks=range(len(claims)), xlabel="x", ylim=(len(claims) - 0.5, -0.5))
    axis.set_yticklabels([f"{name}  {CLAIMS[name].statement}" for name in claims])
    axis.legend()
    return figure


if __name__ == "__main__":
    main(figure)
