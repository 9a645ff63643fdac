"""Panels of dots with lines through their medians, as SVG for the trial's page: a row a measure, a column a setting."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup, escape

WIDTH, LEFT, TITLE, HEIGHT, GAP, BOTTOM, INSIDE = 840, 64, 34, 150, 18, 54, 18
"""Of the figure, of the room for ticks and for a row's title, of a panel, between panels, below, inside at sides."""
FONT, APART = 18, 36
"""Size of letters, which are legible at half the width, and the least distance of two ticks below a panel."""
HALVES = (0.0, 0.5, 1.0)
"""Ticks of shares."""


@dataclasses.dataclass(frozen=True)
class Series:
    """A number a seed by column and value of what was varied there, in a colour of its own."""

    label: str
    stroke: str
    columns: Mapping[str, Mapping[float, Sequence[float]]]


@dataclasses.dataclass(frozen=True)
class Row:
    """What the panels of a row show: shares from 0 to 1, or positive numbers on a log axis with a line at 1."""

    title: str
    series: Sequence[Series]
    is_share: bool = False

    def ticks(self) -> list[float]:
        """Round numbers, 1, 2 and 5 times powers of ten, of which the first and the last enclose all values."""
        if self.is_share:
            return list(HALVES)
        seen = [y for one in self.series for by in one.columns.values() for found in by.values() for y in found]
        low, high = min(seen), max(seen)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        every = [round_number * 10.0**power for power in powers for round_number in (1, 2, 5)]
        first, last = max(x for x in every if x <= low), min(x for x in every if x >= high)
        return [x for x in every if first <= x <= last]


def dots(rows: Sequence[Row], columns: Mapping[str, str], alt: str) -> Markup:
    """Each row's panels on one vertical axis, each column's on one log axis across. columns: their words by name."""
    each = (WIDTH - LEFT) / len(columns)
    marks = []
    for i, row in enumerate(rows):
        inside = "".join(_row(row, rows, list(columns), each))
        marks.append(f'<g transform="translate(0 {i * (TITLE + HEIGHT + GAP)})">{inside}</g>')
    bottom = len(rows) * (TITLE + HEIGHT + GAP) - GAP
    for j, (column, words) in enumerate(columns.items()):
        left, values = LEFT + each * j, _values(rows, column)
        shown: list[float] = []
        for value in sorted(values, key=_roundness):
            x = left + _across(value, values, each)
            if all(abs(x - other) >= APART for other in shown):
                marks.append(f'<text x="{x:.2f}" y="{bottom + FONT + 4}" text-anchor="middle">{value:g}</text>')
                shown.append(x)
        middle = left + (each - GAP) / 2
        marks.append(f'<text x="{middle:.1f}" y="{bottom + 2 * FONT + 8}" text-anchor="middle">{escape(words)}</text>')
    box = f'viewBox="0 0 {WIDTH} {bottom + BOTTOM}" style="font-size: {FONT}px"'
    return Markup(f'<svg {box} role="img" aria-label="{escape(alt)}">{"".join(marks)}</svg>')


def _roundness(value: float) -> tuple[float, float]:
    """Order of values for ticks where not all have room: powers of two first, the largest first."""
    power = int(value) & -int(value)
    return value / power, -value


def _values(rows: Sequence[Row], column: str) -> list[float]:
    """All values of what a column varies."""
    return sorted({value for row in rows for one in row.series for value in one.columns.get(column, ())})


def _across(value: float, values: Sequence[float], each: float) -> float:
    """Where a value stands in a column of this width, which has these values."""
    span = math.log(values[-1] / values[0]) or 1.0
    return INSIDE + (each - GAP - 2 * INSIDE) * math.log(value / values[0]) / span


def _row(row: Row, rows: Sequence[Row], columns: Sequence[str], each: float) -> Iterator[str]:
    """The title, ticks and panels of a row."""
    ticks = row.ticks()
    place = float if row.is_share else math.log
    low, high = place(ticks[0]), place(ticks[-1])
    up = lambda y: TITLE + HEIGHT * (1 - (place(y) - low) / (high - low))  # noqa: E731
    labels = "".join(
        f'<tspan dx="14" style="fill:{one.stroke}">● {escape(one.label)}</tspan>' for one in row.series if one.label
    )
    yield f'<text x="{LEFT}" y="{FONT + 2}"><tspan font-weight="600">{escape(row.title)}</tspan>{labels}</text>'
    for tick in ticks:
        text = f"{tick:.0%}" if row.is_share else f"{tick:g}"
        yield f'<text x="{LEFT - 8}" y="{up(tick) + FONT / 3:.1f}" text-anchor="end">{text}</text>'
    for j, column in enumerate(columns):
        left, values = LEFT + each * j, _values(rows, column)
        for tick in ticks:
            kind = "axis" if tick == 1 and not row.is_share else "grid"
            ends = f'x1="{left:.1f}" x2="{left + each - GAP:.1f}"'
            yield f'<line {ends} y1="{up(tick):.1f}" y2="{up(tick):.1f}" class="{kind}"/>'
        for one in row.series:
            by = dict(sorted(one.columns.get(column, {}).items()))
            if not by:
                continue
            at = {value: left + _across(value, values, each) for value in by}
            middles = {value: statistics.median(found) for value, found in by.items()}
            path = "M" + "L".join(f"{at[value]:.2f} {up(y):.1f}" for value, y in middles.items())
            told = ", ".join(f"{y:.3g} at {column} = {value:g}" for value, y in middles.items())
            name = f"{row.title} {one.label}".strip()
            title = f"<title>{escape(f'{name}: median {told}')}</title>"
            points = "".join(
                f'<circle cx="{at[value]:.2f}" cy="{up(y):.1f}" r="4" fill="{one.stroke}" fill-opacity="0.45"/>'
                for value, found in by.items()
                for y in found
            )
            yield f'<g>{title}{points}<path d="{path}" fill="none" stroke="{one.stroke}" stroke-width="2.5"/></g>'
