"""A grid of panels with curves, as SVG for the trial's page."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from markupsafe import Markup, escape

WIDTH, HEIGHT, GAP, LEFT, TOP = 840, 130, 14, 68, 24
"""Of the grid, of a panel, between panels, and of the room for labels."""
TICKS = (1, 10, 100)
Row = Mapping[str, "Sequence[Curve]"]
"""Curves by column."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """Positive numbers y at x; NaN: none there."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    stroke: str
    dashed: bool = False


def panels(rows: Mapping[str, Row], axis: str, least: Mapping[str, float], alt: str) -> Markup:
    """A row a quantity with a log scale of its own, a column a setting.

    axis: what x is, from 1 on. least: by quantity, the number below which a curve runs along the edge.
    """
    columns = list(next(iter(rows.values())))
    each = (WIDTH - LEFT) / len(columns)
    last = max(x for row in rows.values() for curves in row.values() for curve in curves for x in curve.x)
    across = lambda x: (each - GAP) * math.log(x) / math.log(last)  # noqa: E731
    marks = []
    for j, column in enumerate(columns):
        middle = LEFT + each * j + (each - GAP) / 2
        bottom = TOP + len(rows) * (HEIGHT + GAP)
        marks.append(f'<text x="{middle:.0f}" y="12" text-anchor="middle">{escape(column)}</text>')
        marks.append(f'<text x="{middle:.0f}" y="{bottom + 20}" text-anchor="middle">{axis}</text>')
        for x in TICKS:
            at = LEFT + each * j + across(x)
            marks.append(f'<text x="{at:.1f}" y="{bottom + 4}" text-anchor="middle">{x}</text>')
    for i, (quantity, row) in enumerate(rows.items()):
        inside = "".join(_row(quantity, row, least[quantity], each, across))
        marks.append(f'<g transform="translate(0 {TOP + i * (HEIGHT + GAP)})">{inside}</g>')
    height = TOP + len(rows) * (HEIGHT + GAP) + 26
    inside = "".join(marks)
    return Markup(f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(alt)}">{inside}</svg>')


def _row(quantity: str, row: Row, least: float, each: float, across: Callable[[float], float]) -> Iterator[str]:
    """The panels of a quantity."""
    seen = [y for curves in row.values() for curve in curves for y in curve.y if y >= least]
    low, high = math.log10(min(seen)), math.log10(max(seen))
    # Room above and below.
    low, high = low - 0.05 * (high - low + 0.1), high + 0.05 * (high - low + 0.1)
    up = lambda y: HEIGHT * (1 - (max(math.log10(y), low) - low) / (high - low)) if y > 0 else HEIGHT  # noqa: E731
    # Of each decade: one tick, or three where there are few decades.
    within = (1, 2, 5) if high - low < 2 else (1,)
    every = [m * 10.0**power for power in range(math.floor(low), math.ceil(high)) for m in within]
    ticks = [tick for tick in every if low <= math.log10(tick) <= high]
    turned = f'transform="rotate(-90 12 {HEIGHT // 2})"'
    yield f'<text x="12" y="{HEIGHT // 2}" {turned} text-anchor="middle">{escape(quantity)}</text>'
    for j, (column, curves) in enumerate(row.items()):
        left = LEFT + each * j
        for tick in ticks:
            y = f"{up(tick):.1f}"
            yield f'<line x1="{left:.1f}" x2="{left + each - GAP:.1f}" y1="{y}" y2="{y}" class="grid"/>'
            if j == 0:
                yield f'<text x="{LEFT - 6}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for curve in curves:
            known = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y)]
            if not known:
                continue
            path = "M" + "L".join(f"{left + across(x):.1f} {up(y):.1f}" for x, y in known)
            # A curve of one point is a dot.
            path += "h.1" if len(known) == 1 else ""
            style = f'fill="none" stroke="{curve.stroke}" stroke-width="2" stroke-linecap="round"'
            style += ' stroke-dasharray="5 4"' if curve.dashed else ""
            title = escape(f"{column}, {curve.label}")
            yield f'<path d="{path}" {style}><title>{title}</title></path>'
