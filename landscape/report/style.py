"""The one style of all figures, and how they are saved."""

from __future__ import annotations

import dataclasses
import io
import re
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from landscape.errors import ConfigError
from landscape.models.embedding_mlp.blocks import COLOURS as OF_MLP
from landscape.models.transformer.blocks import COLOURS as OF_TRANSFORMER
from landscape.text import printable, write_csv

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

WIDTH, NARROW, HEIGHT = 7.0, 4.0, 2.9
"""Inches of a figure of one row, legible at half size; a single panel is narrow, and is legible on a phone."""
FORMATS = ("pdf", "png")
"""What a figure can be saved as, besides SVG."""
INK, DARK_INK = "#1c1e21", "#e6e8eb"
"""Text and axes on a light and on a dark ground; a page has its own."""
GREY = "#808080"
"""Lines to compare with, legible on both grounds."""
SPLITS = {"train": 0, "test": 1, "val": 2}
"""Palette colour of each split of the data."""
COLOURS = OF_MLP | OF_TRANSFORMER | SPLITS
"""Palette colour by name."""
_UNDATED: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
"""Without a date the same data give the same bytes."""


@contextmanager
def style() -> Iterator[None]:
    """seaborn's settings of every figure."""
    import matplotlib
    import seaborn as sns

    settings = sns.axes_style("ticks") | sns.plotting_context("paper", font_scale=1.05)
    settings |= {
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": "medium",
        "font.sans-serif": ["DejaVu Sans"],
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "landscape",
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # Readers of an SVG have fonts of their own.
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from")
        yield


def palette(names: Iterable[str]) -> dict[str, Any]:
    """A colour for each name from seaborn's colour-blind palette: a block has the same one in every figure.

    Blocks of a user's own have the colours that the fewest of the names have, in the order of the names.
    """
    import seaborn as sns

    colours = sns.color_palette("colorblind", 10)
    # Yellow and light pink, which are faint on a light ground, come last.
    order = (0, 1, 2, 3, 4, 5, 7, 9, 6, 8)
    known = dict.fromkeys(names)
    used = [COLOURS[name] for name in known if name in COLOURS]
    by_name = {}
    for name in known:
        if name not in COLOURS:
            used.append(min(order, key=used.count))
        by_name[name] = colours[COLOURS.get(name, used[-1])]
    return by_name


def shades() -> Colormap:
    """Colours of ordered numbers: viridis without its ends, which a dark or a light ground swallows."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["viridis"](np.linspace(0.35, 0.85, 256)))


def markers(names: Iterable[str]) -> dict[str, str]:
    """A filled marker for each name, which tells coinciding lines and similar colours apart."""
    shapes = "osD^vPX<>ph*d"
    return {name: shapes[i % len(shapes)] for i, name in enumerate(dict.fromkeys(names))}


def chosen_formats(names: str) -> list[str]:
    """Formats from a list with commas. Raises ConfigError for others."""
    formats = [name.strip() for name in names.split(",") if name.strip()]
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(f"unknown format of figures: {name!r}", f"choose from {', '.join(FORMATS)}")
    return formats


def save_figure(
    figure: Figure, data: pd.DataFrame, folder: Path, name: str, formats: Collection[str] = ()
) -> dict[str, Path]:
    """Write NAME.svg, NAME.csv with the data drawn, and NAME in further formats; returns the paths by format."""
    folder.mkdir(parents=True, exist_ok=True)
    if engine := figure.get_layout_engine():
        # Once for all formats.
        engine.execute(figure)
        figure.set_layout_engine(None)
    paths = {}
    # The last one leaves all parts where `pieces` looks for them.
    for form in (*formats, "svg"):
        # What draws may hide a full disk behind an error of its own.
        drawn = io.BytesIO()
        dpi = 150 if form == "png" else "figure"
        figure.savefig(drawn, format=form, metadata=_UNDATED[form], dpi=dpi, transparent=form == "svg")
        paths[form] = folder / f"{name}.{form}"
        content = drawn.getvalue()
        paths[form].write_bytes(_following_the_scheme(content.decode()).encode() if form == "svg" else content)
    paths["csv"] = folder / f"{name}.csv"
    write_csv(data, paths["csv"])
    return paths


def _following_the_scheme(svg: str) -> str:
    """An SVG file whose ink is that of a light or a dark ground, as its reader prefers."""
    svg = svg.replace(INK, "currentColor").replace("<svg ", f'<svg color="{INK}" ', 1)
    dark = (
        f":root {{ color-scheme: light dark }} @media (prefers-color-scheme: dark) {{ :root {{ color: {DARK_INK} }} }}"
    )
    return svg.replace("*{stroke", f"{dark} *{{stroke", 1)


@dataclasses.dataclass(frozen=True)
class Piece:
    """A panel or an entry of the legend: where it lies in its figure, in points from the upper left corner."""

    label: str
    left: float
    top: float
    width: float
    height: float


def pieces(figure: Figure) -> tuple[list[Piece], list[Piece]]:
    """The panels and the legend entries of a figure saved as SVG, which a narrow page shows one below the other."""
    from matplotlib.transforms import Bbox

    def piece(label: str, box: Bbox) -> Piece:
        box = box.padded(3)
        left, top, width, height = (round(x, 1) for x in (box.x0, figure.bbox.height - box.y1, box.width, box.height))
        return Piece(label, left, top, width, height)

    bars = {part.colorbar.ax: axis for axis in figure.axes for part in axis.collections if part.colorbar}
    panels, entries = [], []
    for axis in figure.axes:
        if axis.axison and axis not in bars:
            parts = [axis, *(bar for bar, of in bars.items() if of is axis)]
            label = next(filter(None, (axis.get_title(), *(part.get_ylabel() for part in parts))), "")
            panels.append(piece(label, Bbox.union([box for part in parts if (box := part.get_tightbbox())])))
    for legend in figure.legends:
        for text in (legend.get_title(), *legend.get_texts()):
            if text.get_text():
                # A line's sample is left of its label.
                sample = (legend.handlelength + legend.handletextpad) * float(text.get_fontsize())
                left, *others = text.get_window_extent().extents
                entries.append(piece(text.get_text(), Bbox.from_extents(left - sample, *others)))
    return panels, entries


def inline(svg: str, name: str, title: str) -> str:
    """An SVG figure as a part of a page: as wide as there is room, in its ink, with names of its own."""
    from markupsafe import escape

    body = svg[svg.index("<svg") :]
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', body).groups()  # type: ignore[union-attr]
    opening = f'<svg class="whole" role="img" aria-label="{escape(printable(title))}" viewBox="0 0 {width} {height}"'
    opening += f' style="--width: {width}px" xmlns:xlink="http://www.w3.org/1999/xlink">'
    body = opening + body[body.index(">") + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|:root.*(?=\*\{)", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|"#|url\(#)', rf"\g<1>{name}-", body)
    return body.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
