"""What the panels of all figures share: step axes, legends, and a notice in empty panels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from landscape.files.runs import GROK, GROKKED, MEMORISE, MEMORISED
from landscape.report.figures.numbers import median_step
from landscape.report.figures.sources import Source
from landscape.report.style import Colour, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


EVENTS = (
    f"Dotted lines, at the steps shown: the first row of metrics with training accuracy ≥ {MEMORISED:.0%} (blue), with "
    f"test accuracy ≥ {GROKKED:.0%} (orange)."
)
"""What captions say of the lines of events in figures of one run."""
EVENTS_OF_RUNS = (
    f"Upright lines: median steps at which training accuracy reaches {MEMORISED:.0%} (dotted) and test accuracy "
    f"{GROKKED:.0%} (dashed)."
)
"""The same where colours are of settings or runs."""
DASHES = {MEMORISE: ":", GROK: "--"}
"""Line styles of events where colours are of settings."""
_FOOT = 0.12
"""Share of a panel's height that lines of events take where there are those of several settings."""


def step_axis(axis: Axes, last: int) -> None:
    """Steps on an axis that is linear up to 1 and logarithmic above, so that step 0 is seen."""
    axis.set_xscale("symlog", linthresh=1, linscale=0.4)
    axis.set(xlabel="step", xlim=(-0.1, max(last, 1) * 1.3))
    axis.set_xticks([0, *(10**i for i in range(1, len(str(last))))])


def scale_of(losses: NDArray[np.float64]) -> Literal["log", "linear"]:
    """The scale of an axis of losses, which is linear where a logarithmic one would leave some out."""
    finite = losses[np.isfinite(losses)]
    return "log" if (finite > 0).any() and not (finite < 0).any() else "linear"


def over_steps(axes: Iterable[Axes], sources: Sequence[Source], last: int | None = None) -> None:
    """Give panels the axis of steps and the lines of events, if the sources are of one run.

    last: step at the end of the axis; by default that of the Hessian files.
    """
    last = last_step(sources) if last is None else last
    for axis in axes:
        step_axis(axis, last)
        for event, colour in zip(DASHES, palette(2), strict=True):
            for step in events(sources, event):
                if step is not None:
                    axis.axvline(step, color=colour, linestyle=":", linewidth=1.2)


def lines_of_events(axis: Axes, sources: Sequence[Source], colour: Colour, is_alone: bool) -> None:
    """Lines at the median steps of events over the runs of a setting; none at an event that half of them lack.

    is_alone: no other setting is in the panel. Otherwise the lines are short.
    """
    for event, dashes in DASHES.items():
        if math.isfinite(step := median_step(events(sources, event) or [None])):
            top = 1 if is_alone else _FOOT
            axis.axvline(step, 0, top, color=colour, linestyle=dashes, linewidth=1.2)


def has_events(sources: Sequence[Source]) -> bool:
    """Whether half of the runs, of one setting, are seen to memorise or to grok."""
    return any(math.isfinite(median_step(events(sources, event) or [None])) for event in DASHES)


def events(sources: Sequence[Source], event: tuple[str, float]) -> list[int | None]:
    """The step of an event in each run whose file holds what it is seen in; None: never."""
    runs = {s.run_id: s for s in sources if event[0] in s.metrics and not s.is_recorded}
    return [source.event(*event) for source in runs.values()]


def last_step(sources: Sequence[Source]) -> int:
    """The last step that was measured in any of the sources."""
    return max(int(source.measured["step"].values[-1]) for source in sources)


def last_record(sources: Sequence[Source]) -> int:
    """The last step with metrics in any of the sources."""
    return max(int(source.metrics["metric_step"].values[-1]) for source in sources)


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
    lines = sum(1 + label.count("\n") for label in labels)
    figure.set_figheight(figure.get_figheight() + 0.17 * max(0, -(-lines // options["ncols"]) - 2))
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
    """Say in an empty panel why nothing is drawn, without lines of events."""
    for line in [*axis.lines]:
        line.remove()
    axis.text(0.5, 0.5, why, ha="center", va="center", transform=axis.transAxes, color="0.4")
    axis.set_axis_off()
