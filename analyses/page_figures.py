"""Figures of the trial's page as SVG: effects with intervals, depths on the plateau, who grokked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from exact import survival
from landscape.report.film import assembled, known, smoothed
from markupsafe import Markup, escape
from matplotlib.colors import to_hex
from matplotlib.ticker import MaxNLocator

from landscape.report.style import colour

SCALES = {"quick": "#de8f05", "mid": "#0173b2", "paper": "#029e73"}
"""The scales of the trial, smallest first, with their colours in figures that compare them."""
TRANSFORMER, TEXT, READER = "transformer", "text", "text-transformer"
"""The scales beyond the paper."""
COLOURS = {TRANSFORMER: "#cc78bc", **SCALES}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 250, 52, 10, 12, 38
FOOT = 18
"""Height of the lines of events of several cases."""
PAIRS = ("E,W", "E[operands],W", "W,V")
LONG_NAME = 8
"""Letters of a block's name from which it does not fit below a sixth of a figure."""
INDEX = ("index", "index_lower", "index_upper")
FARTHEST = math.log(16)
"""x beyond which the figure of all effects shows an arrow."""


def _share(x: float) -> float:
    """Where x stands in the figure of all effects, in per cent of its width."""
    return 50 + 46 * max(-1.0, min(1.0, x / FARTHEST))


def effects(rows: Mapping[str, Mapping[str, Any]], shown: Mapping[str, str]) -> Markup:
    """One claim's medians and intervals on the axis of x, a line a scale. shown: the effects in words, by scale."""
    lines = []
    for i, (scale, row) in enumerate(rows.items()):
        y, style = 10 + 16 * i, f'stroke="{COLOURS[scale]}"'
        low, high = (row["low"], row["high"])
        if not math.isnan(low):
            ends = f'x1="{_share(low):.2f}%" x2="{_share(high):.2f}%"'
            lines.append(f'<line {ends} y1="{y}" y2="{y}" stroke-width="3" {style}/>')
        text = f"{scale}: {shown[scale]}, {row['verdict']}"
        mark = f'<circle cx="{_share(row["median"]):.2f}%" cy="{y}" r="5" fill="{COLOURS[scale]}"/>'
        if abs(row["median"]) > FARTHEST:
            arrow, anchor, at = ("▶", "end", 100) if row["median"] > 0 else ("◀", "start", 0)
            mark = f'<text x="{at}%" y="{y + 5}" text-anchor="{anchor}" style="fill:{COLOURS[scale]}">{arrow}</text>'
        lines.append(f"<g><title>{escape(text)}</title>{mark}</g>")
    height = 4 + 16 * max(len(rows), 1)
    zero = f'<line x1="50%" x2="50%" y1="0" y2="{height}" class="axis"/>'
    label = "; ".join(f"{scale}: {text}" for scale, text in shown.items()) or "pending"
    inside = "".join(lines)
    return Markup(f'<svg width="100%" height="{height}" role="img" aria-label="{escape(label)}">{zero}{inside}</svg>')


def depths(at: pd.DataFrame, alt: str, pairs: Sequence[str] = PAIRS) -> Markup:
    """-λ_min on the plateau, one point a seed and block; a dash is the gradient norm of the bias, where it is a bound.

    at: rows of curvature.csv. Log axis.
    """
    at = at[at["block"].isin(pairs) & (at["lowest"] < 0)]
    blocks = [block for block in pairs if (at["block"] == block).any()]
    depth = -at["lowest"].to_numpy()
    low, high = math.floor(math.log10(depth.min())), math.ceil(math.log10(depth.max()))
    scale = lambda value: TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(value)) / max(high - low, 1)  # noqa: E731
    marks = [_tick_y(scale(10.0**power), f"10{_superscript(power)}") for power in range(low, high + 1)]
    step = (WIDTH - LEFT - RIGHT) / len(blocks)
    for i, block in enumerate(blocks):
        middle, rows = LEFT + step * (i + 0.5), at[at["block"] == block].sort_values("seed")
        # Long names have a line for each matrix.
        lines = block.split(",") if len(block) > LONG_NAME and len(blocks) > len(PAIRS) else [block]
        for line, name in enumerate(lines):
            y = HEIGHT - 20 + 14 * line if len(lines) > 1 else HEIGHT - 14
            text = name + ("," if name is not lines[-1] else "")
            marks.append(f'<text x="{middle:.0f}" y="{y}" text-anchor="middle">{escape(text)}</text>')
        for j, row in enumerate(rows.itertuples()):
            x = middle + (j - (len(rows) - 1) / 2) * min(9, step / 2 / len(rows))
            title = f"seed {row.seed}, step {row.step}: λ_min = {row.lowest:.3g}"
            y = scale(-row.lowest)
            point = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{to_hex(colour(block))}"/>'
            marks.append(f"<g><title>{escape(title)}</title>{point}</g>")
            if block == "E,W" and row.saddle_bound_constants > 0:
                y = scale(row.saddle_bound_constants)
                marks.append(f'<path d="M{x - 6:.1f} {y:.1f}h12" class="bound"/>')
    return _figure("".join(marks), alt)


def training(curvature: pd.DataFrame, events: Mapping[str, float | None], alt: str) -> Markup:
    """-λ_min of three pairs over the analysed steps of a run, beside the gradient norm of the bias that bounds E,W.

    curvature: rows of curvature.csv. events: steps by name. Log axes; only what is negative is shown.
    """
    bound = curvature[curvature["block"] == "E,W"].set_index("step")["saddle_bound_constants"]
    curves = {block: -curvature[curvature["block"] == block].set_index("step")["lowest"] for block in PAIRS}
    shown = {block: curve[curve > 0].sort_index() for block, curve in curves.items()}
    sizes = np.log10(np.concatenate([*(curve.to_numpy() for curve in shown.values()), bound.to_numpy()]))
    low, high = max(math.floor(sizes.min()), math.ceil(sizes.max()) - 5), math.ceil(sizes.max())
    scale = lambda value: TOP + (HEIGHT - TOP - BOTTOM) * min(1, (high - math.log10(value)) / (high - low))  # noqa: E731
    place, marks = _steps(0.0, float(curvature["step"].max()))
    marks += [_tick_y(scale(10.0**power), f"10{_superscript(power)}") for power in range(low, high + 1)]
    for line, (event, step) in enumerate(events.items()):
        if step is not None:
            x = place(step)
            marks.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" class="axis" stroke-dasharray="4 3"/>')
            marks.append(f'<text x="{x - 4:.1f}" y="{TOP + 10 + 14 * line}" text-anchor="end">{event}</text>')
    for block, curve in shown.items():
        points = [(place(step), scale(value)) for step, value in curve.items()]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        stroke = to_hex(colour(block))
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{stroke}"/>' for x, y in points)
        line = f'<path d="{path}" fill="none" stroke="{stroke}" stroke-width="2"/>'
        marks.append(f"<g><title>{escape(block)}</title>{line}{dots}</g>")
    marks += [
        f'<path d="M{place(step) - 6:.1f} {scale(value):.1f}h12" class="bound"/>' for step, value in bound.items()
    ]
    return _figure("".join(marks), alt)


def tops(curvature: pd.DataFrame, events: Mapping[str, float], alt: str) -> Markup:
    """λ_max of blocks over the analysed steps, a line a seed and block.

    events: steps by name. Log axes.
    """
    place, marks = _steps(0.0, float(curvature["step"].max()))
    low, high = (edge(math.log10(of(curvature["highest"]))) for edge, of in ((math.floor, min), (math.ceil, max)))
    scale = lambda value: TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(value)) / (high - low)  # noqa: E731
    marks += [_tick_y(scale(10.0**power), f"10{_superscript(power)}") for power in range(low, high + 1)]
    for line, (event, step) in enumerate(events.items()):
        x = place(step)
        marks.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" class="axis" stroke-dasharray="4 3"/>')
        marks.append(f'<text x="{x - 4:.1f}" y="{TOP + 10 + 14 * line}" text-anchor="end">{event}</text>')
    for (block, seed), rows in curvature.sort_values("step").groupby(["block", "seed"]):
        points = zip(rows["step"], rows["highest"], strict=True)
        path = "M" + "L".join(f"{place(step):.1f} {scale(value):.1f}" for step, value in points)
        style = f'fill="none" stroke="{to_hex(colour(block))}" stroke-width="1.5" stroke-opacity="0.6"'
        marks.append(f'<path d="{path}" {style}><title>{escape(f"{block}, seed {seed}")}</title></path>')
    return _figure("".join(marks), alt)


def shares(cases: Mapping[str, tuple[pd.DataFrame, str]], alt: str) -> Markup:
    """Kaplan-Meier: the share of runs that have grokked, over steps. cases: rows of runs.csv and colour, by label."""
    last = max(float(rows["watched"].max()) for rows, _ in cases.values())
    place, marks = _steps(50.0, last)
    # The labels stand above the curves, which may be anywhere.
    top = TOP + 15 * len(cases)
    scale = lambda share: top + (HEIGHT - top - BOTTOM) * (1 - share)  # noqa: E731
    marks += [_tick_y(scale(share), f"{share:.0%}") for share in (0, 0.5, 1)]
    for i, (label, (rows, stroke)) in enumerate(cases.items()):
        curve = survival(rows["grokked"], rows["watched"])
        grokked = np.isin(curve.quantiles, rows["grokked"].dropna())
        path, share = f"M{LEFT} {scale(0):.1f}", 0.0
        for step, left in zip(curve.quantiles[grokked], curve.probabilities[grokked], strict=True):
            path += f"H{place(step):.1f}V{scale(1 - left):.1f}"
            share = 1 - left
        path += f"H{place(last):.1f}"
        text = f"{label}: {share:.0%} of {len(rows)}"
        marks.append(f'<path d="{path}" fill="none" stroke="{stroke}" stroke-width="2.5"><title>{text}</title></path>')
        marks += _events(rows, label, stroke, place, last)
        marks.append(f'<text x="{LEFT + 6}" y="{TOP + 3 + 15 * i}" style="fill:{stroke}">{escape(text)}</text>')
    return _figure("".join(marks), alt)


def curves(cases: Mapping[str, tuple[pd.Series, pd.DataFrame, str]], alt: str) -> Markup:
    """A quantity over steps. cases: its values by step, rows of runs.csv and a colour, by label."""
    last = max(float(values.index.max()) for values, _, _ in cases.values())
    place, marks = _steps(50.0, last)
    top = TOP + 15 * len(cases)
    low = min(0.0, *(float(values.min()) for values, _, _ in cases.values()))
    high = max(float(values.max()) for values, _, _ in cases.values())
    scale = lambda y: top + (HEIGHT - top - BOTTOM) * (high - y) / (high - low)  # noqa: E731
    marks += [_tick_y(scale(y), f"{y:g}".replace("-", "−")) for y in round_ticks(low, high)]
    for i, (label, (values, rows, stroke)) in enumerate(cases.items()):
        points = [(place(step), scale(y)) for step, y in values.items() if step >= 50]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        marks.append(
            f'<path d="{path}" fill="none" stroke="{stroke}" stroke-width="2"><title>{escape(label)}</title></path>'
        )
        marks += _events(rows, label, stroke, place, last)
        marks.append(f'<text x="{LEFT + 6}" y="{TOP + 3 + 15 * i}" style="fill:{stroke}">{escape(label)}</text>')
    return _figure("".join(marks), alt)


def _events(runs: pd.DataFrame, label: str, stroke: str, place: Callable[[float], float], last: float) -> Iterator[str]:
    """Lines at the foot of a figure at the median steps of memorising, dotted, and of grokking, dashed.

    None at an event that half of the runs lack, or that comes after the last step shown.
    """
    for event, dashes in (("memorised", "2 2"), ("grokked", "5 3")):
        middle = runs[event].fillna(math.inf).median()
        if middle <= last:
            line = f'd="M{place(middle):.1f} {HEIGHT - BOTTOM}v-{FOOT}" stroke="{stroke}" stroke-dasharray="{dashes}"'
            title = escape(f"{label}: {event} at step {middle:,.0f} in the median")
            yield f'<path {line} stroke-width="2"><title>{title}</title></path>'


def heat(
    panels: Mapping[str, Mapping[tuple[float, float], float]],
    axes: tuple[str, str],
    alt: str,
    infinite: Mapping[str, str],
) -> Markup:
    """Maps side by side of positive numbers by two quantities; larger is darker, in logarithms.

    axes: across, up. infinite: by panel, what stands in a cell for ∞.
    """
    width, top, left = 840, TOP + 14, LEFT + 16
    marks = []
    each = width / len(panels)
    for i, (title, cells) in enumerate(panels.items()):
        across, up = (sorted({at[axis] for at in cells}) for axis in (0, 1))
        size = (each - left - RIGHT) / len(across), (HEIGHT - top - BOTTOM) / len(up)
        finite = [math.log(value) for value in cells.values() if math.isfinite(value)] or [0.0]
        low, span = min(finite), max(max(finite) - min(finite), 1e-9)
        x0 = each * i + left
        marks.append(f'<text x="{x0 + (each - left) / 2:.0f}" y="{TOP}" text-anchor="middle">{escape(title)}</text>')
        for (a, b), value in cells.items():
            x, y = x0 + size[0] * across.index(a), top + size[1] * (len(up) - 1 - up.index(b))
            share = (math.log(value) - low) / span if math.isfinite(value) else 1.0
            text = f"{value:,.0f}" if value < math.inf else infinite[title]
            place = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{size[0] - 2:.1f}" height="{size[1] - 2:.1f}"'
            marks.append(f'<rect {place} fill="#0173b2" fill-opacity="{0.06 + 0.5 * share:.2f}"/>')
            middle = f'x="{x + size[0] / 2:.1f}" y="{y + size[1] / 2 + 4:.1f}" text-anchor="middle"'
            marks.append(f"<text {middle}>{escape(text)}</text>")
        for j, value in enumerate(across):
            x = x0 + size[0] * (j + 0.5)
            marks.append(f'<text x="{x:.1f}" y="{HEIGHT - 22}" text-anchor="middle">{value:g}</text>')
        for j, value in enumerate(up):
            y = top + size[1] * (len(up) - 0.5 - j) + 4
            marks.append(f'<text x="{x0 - 6:.1f}" y="{y:.1f}" text-anchor="end">{value:g}</text>')
        marks.append(f'<text x="{x0 + (each - left) / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">{axes[0]}</text>')
        x, y = each * i + 12, top + (HEIGHT - top - BOTTOM) / 2
        turned = f'transform="rotate(-90 {x:.0f} {y:.0f})" text-anchor="middle"'
        marks.append(f'<text x="{x:.0f}" y="{y:.0f}" {turned}>{axes[1]}</text>')
    inside = "".join(marks)
    return Markup(f'<svg viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{escape(alt)}">{inside}</svg>')


def _steps(first: float, last: float) -> tuple[Callable[[float], float], list[str]]:
    """Where a step stands on a log axis from `first` to `last`, of step + 1 from 0 on, and the marks of that axis."""
    of = lambda step: math.log(max(step, first)) if first else math.log1p(step)  # noqa: E731
    place = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * (of(step) - of(first)) / (of(last) - of(first))  # noqa: E731
    marks = [f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle">step</text>']
    for step in (100, 300, 1000, 3000, 10_000) if first else (0, 1, 10, 100, 1000, 10_000):
        if step <= last:
            x = place(step)
            anchor = "end" if x > WIDTH - 3 * RIGHT else "middle"
            marks.append(f'<text x="{x:.0f}" y="{HEIGHT - 20}" text-anchor="{anchor}">{step:,}</text>')
    return place, marks


def round_ticks(low: float, high: float) -> list[float]:
    """About four round numbers between two numbers, ends included."""
    found = MaxNLocator(nbins=4, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [tick for tick in map(float, found) if low <= tick <= high]


def _tick_y(y: float, text: str) -> str:
    line = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
    return f'{line}<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _superscript(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _figure(inside: str, alt: str) -> Markup:
    return Markup(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(alt)}">{inside}</svg>')


def alone(figure: Markup) -> str:
    """A figure of the page as a file of its own, on white whatever the colours of the page that shows it."""
    style = """<style>svg { font: 12px system-ui, sans-serif; background: #fff; } text { fill: #1c1e21; }
.axis { stroke: #5b626b; } .grid { stroke: #d5d9de; }
.bound { stroke: #1c1e21; stroke-width: 2; fill: none; }</style>"""
    whole = str(figure).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return whole.replace(">", ">" + style, 1) + "\n"


NO_ROWS = pd.DataFrame(columns=["step", "block", "eigenvalue"])


def film(
    curvature: pd.DataFrame,
    metrics: pd.DataFrame,
    place: str,
    spectra: pd.DataFrame = NO_ROWS,
    densities: pd.DataFrame = NO_ROWS,
) -> dict[str, Any]:
    """What the slider shows of one run: its blocks by step, and its accuracies.

    curvature: rows of the curvature.csv at `place`; spectra, densities: those of the files of these names.
    """
    by_step = {}
    columns = ["eigenvalue", "density", "standard_error"]
    density = {
        of: smoothed(rows["width"].iloc[0], *(rows[name] for name in columns))
        for of, rows in densities.groupby(["step", "block"])
    }
    spectrum = {of: [*map(known, values)] for of, values in spectra.groupby(["step", "block"])["eigenvalue"]}
    for step, rows in curvature.groupby("step"):
        blocks = {}
        last = rows.drop_duplicates("block", keep="last")
        for at, row in zip(last.index, last.to_dict("records"), strict=True):
            ratios = [row[name] for name in rows.filter(like="kappa_") if math.isfinite(row[name])]
            index = {name: None if math.isnan(row[name]) else row[name] for name in INDEX}
            ends = {name: known(row[name]) for name in ("lowest", "highest")}
            there = {"row": f"{place}#L{at + 2}", "title": f"{place}, row {row['block']} {step} {row['file']}"}
            found = {**ends, **index, "level": row["index_level"], "kappa": ratios, **there}
            of = step, row["block"]
            blocks[row["block"]] = found | {"spectrum": spectrum.get(of, []), "density": density.get(of)}
        by_step[int(step)] = blocks
    accuracy = {name: metrics[name].tolist() for name in ("step", "train_accuracy", "test_accuracy")}
    return assembled(by_step, accuracy) | {"largest": float(spectra["eigenvalue"].abs().max()) if len(spectra) else 0}
