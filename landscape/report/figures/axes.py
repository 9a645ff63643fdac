"""What the panels of all figures share: step axes, legends, and a notice in empty panels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from landscape.report.figures.sources import Source
from landscape.report.style import palette
from landscape.storage.runs import GROK, MEMORISE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def step_axis(axis: Axes, last: int) -> None:
    """Steps on an axis that is linear up to 1 and logarithmic above, so that step 0 is seen."""
    axis.set_xscale("symlog", linthresh=1, linscale=0.4)
    axis.set(xlabel="step", xlim=(-0.1, max(last, 1) * 1.3))
    axis.set_xticks([0, *(10**i for i in range(1, len(str(last))))])


def scale_of(losses: NDArray[np.float64]) -> Literal["log", "linear"]:
    """The scale of an axis of losses, which is linear where a logarithmic one would leave some out."""
    finite = losses[np.isfinite(losses)]
    return "log" if (finite > 0).any() and not (finite < 0).any() else "linear"


def event_lines(axes: Iterable[Axes], source: Source) -> None:
    """Dotted lines at the memorise step, in the colour of training, and at the grok step, in that of the test set."""
    for event, colour in zip((MEMORISE, GROK), palette(2), strict=True):
        if (step := source.event(*event)) is not None:
            for axis in axes:
                axis.axvline(step, color=colour, linestyle=":", linewidth=1.2)


def last_step(sources: Sequence[Source]) -> int:
    """The last step that was measured in any of the sources."""
    return max(int(source.measured["step"].values[-1]) for source in sources)


def legend(axis: Axes, **options: Any) -> None:
    """A legend with each label once, if there is a label."""
    labels = _labels(axis)
    if labels:
        axis.legend(labels.values(), labels.keys(), **options)


def legend_below(axis: Axes) -> None:
    """A legend below a panel, with each label once; the figure grows with its rows."""
    from matplotlib.transforms import ScaledTranslation

    names, figure = _labels(axis), axis.get_figure(root=True)
    assert figure is not None
    columns = _columns(names, 3, 45)
    figure.set_figheight(max(figure.get_figheight(), 2.5 + 0.17 * -(-len(names) // columns)))
    # Inches below the axis, whose height depends on the legend.
    below = axis.transAxes + ScaledTranslation(0, -0.45, figure.dpi_scale_trans)
    legend(axis, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=below, ncols=columns)


def outside_legend(figure: Figure, axes: Iterable[Axes], **options: Any) -> None:
    """One legend below all panels, with each label of some of them once; the figure grows with its rows."""
    labels = _labels(*axes)
    most = len(labels) if len(labels) <= _IN_A_ROW else _IN_A_ROW - 2
    options = {"ncols": _columns(labels, most, 110), **options}
    figure.set_figheight(figure.get_figheight() + 0.17 * max(0, -(-len(labels) // options["ncols"]) - 2))
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", **options)


_IN_A_ROW = 7
"""Labels of a legend below all panels that fit beside each other."""


def _columns(labels: Iterable[str], most: int, letters: int) -> int:
    """Columns of a legend in which that many letters have room: blocks of a user's own may have long names."""
    names = list(labels)
    return max(1, min(most, len(names), letters // (5 + max(map(len, names), default=0))))


def _labels(*axes: Axes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    return found


def nothing(axis: Axes, why: str) -> None:
    """Say in an empty panel why nothing is drawn."""
    axis.text(0.5, 0.5, why, ha="center", va="center", transform=axis.transAxes, color="0.4")
    axis.set_axis_off()
