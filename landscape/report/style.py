"""The style of all figures, and how they are saved."""

from __future__ import annotations

import io
import re
import warnings
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from landscape.errors import note
from landscape.models.embedding_mlp.blocks import LOOKS as OF_MLP
from landscape.models.transformer.blocks import LOOKS as OF_TRANSFORMER
from landscape.text import write_csv

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 7.0, 2.9
"""Inches of a one-row figure; legible at half size."""
FORMATS = ("png", "pdf", "svg")
LAYOUT: Literal["constrained"] | None = "constrained"
Colour = tuple[float, float, float]


_TEXT, _SMALL = 10.08, 9.24
"""Points of titles and labels, of ticks and legends."""
_DARK = "0.15"
# seaborn's style "ticks" in its context "paper", font_scale 1.05: importing seaborn takes longer than three figures.
SETTINGS: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": _DARK,
    "axes.labelcolor": _DARK,
    "axes.labelsize": _TEXT,
    "axes.linewidth": 1.0,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "figure.dpi": 110,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["Arial", "DejaVu Sans", "Liberation Sans", "Bitstream Vera Sans", "sans-serif"],
    "font.size": _TEXT,
    "grid.color": "0.8",
    "legend.fontsize": _SMALL,
    "legend.edgecolor": "none",
    "legend.framealpha": 0.8,
    "legend.title_fontsize": _TEXT,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.8,
    "lines.solid_capstyle": "round",
    "patch.edgecolor": "w",
    "patch.force_edgecolor": True,
    "patch.linewidth": 0.8,
    "svg.hashsalt": "landscape",
    "text.color": _DARK,
    **{
        f"{axis}.{name}": value
        for axis in ("xtick", "ytick")
        for name, value in {
            "color": _DARK,
            "labelsize": _SMALL,
            "major.size": 4.8,
            "major.width": 1.0,
            "minor.size": 3.2,
            "minor.width": 0.8,
        }.items()
    },
}
_PALETTE = ["0173b2", "de8f05", "029e73", "d55e00", "cc78bc", "ca9161", "fbafe4", "949494", "ece133", "56b4e9"]
"""seaborn's colour-blind palette."""


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib settings of every figure."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def palette(count: int) -> list[Colour]:
    """The first colours of seaborn's colour-blind palette, again from the first after ten."""
    from matplotlib.colors import to_rgb

    return [to_rgb(f"#{_PALETTE[i % len(_PALETTE)]}") for i in range(count)]


def distinct(count: int) -> list[Colour]:
    """A colour for each of so many things: of the palette, or shades where it has too few."""
    return palette(count) if count <= len(_PALETTE) else shades(count)


def shades(count: int) -> list[Colour]:
    """Colours of an ordered quantity, dark to bright."""
    from matplotlib import colormaps

    return [colormaps["viridis"](i / (count + 1))[:3] for i in range(1, count + 1)]


def new_figure(columns: int, height: float = HEIGHT, rows: int = 1) -> Figure:
    """An empty figure of the standard width; call inside `style()`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height * rows), layout=LAYOUT)
    figure.subplots(rows, columns, squeeze=False)
    return figure


def colour(block: str) -> Colour:
    """The colour of a block in every figure."""
    return palette(len(_PALETTE))[_look(block)[0]]


def marker(block: str) -> dict[str, Any]:
    """The marker of a block, which distinguishes coinciding lines and similar colours."""
    _, shape, size = _look(block)
    # Circles are drawn as outlines, so that markers inside them stay visible.
    return {"marker": shape, "markersize": size, "markerfacecolor": "none" if shape == "o" else None}


def _look(block: str) -> tuple[int, str, float]:
    """Colour, shape and size: as the problem declares, else derived from the name of the block."""
    number = zlib.crc32(block.encode())
    return LOOKS.get(block, (number % 10, _SHAPES[number % len(_SHAPES)], 3.0))


LOOKS = OF_MLP | OF_TRANSFORMER
_SHAPES = "sv^D<>pP"


def plain_powers(figure: Figure) -> None:
    """Write powers of ten in plain letters: typesetting them takes more time than the rest of a figure."""
    from matplotlib.ticker import LogFormatterMathtext, LogFormatterSciNotation

    class Plain(LogFormatterSciNotation):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return plain_power(super().__call__(x, pos))

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_formatter(), LogFormatterMathtext):
                axis.set_major_formatter(Plain())
            if isinstance(axis.get_minor_formatter(), LogFormatterMathtext):
                axis.set_minor_formatter(Plain(labelOnlyBase=False))


def plain_power(label: str) -> str:
    """Matplotlib's label of a tick on a log axis, such as $\\mathdefault{2\\times10^{3}}$, in plain letters: 2×10³."""
    inner = re.sub(r"\$\\mathdefault\{(.*)\}\$", r"\1", label).replace(r"\times", "×").replace("-", "−")
    return re.sub(r"\^\{(−?\d+)\}", lambda power: power[1].translate(_RAISED), inner)


_RAISED = str.maketrans("0123456789−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@contextmanager
def collecting_boxes() -> Iterator[set[str]]:
    """The characters that none of the fonts has, which are drawn as boxes; Matplotlib would warn of each many times."""
    missing: set[str] = set()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def collect(message: Warning | str, *args: Any, **more: Any) -> None:
            if found := re.match(_GLYPH, str(message)):
                missing.add(chr(int(found[1])))
            else:
                show(message, *args, **more)

        warnings.filterwarnings("always", _GLYPH)
        warnings.showwarning = collect
        yield missing


_GLYPH = r"Glyph (\d+) .*missing from"


def tell_of_boxes(missing: Collection[str]) -> None:
    """Say which characters are drawn as boxes, if there are any."""
    if missing:
        note(f"figures show boxes for {''.join(sorted(missing))}, which none of their fonts has")


def save_figure(figure: Figure, data: pd.DataFrame, folder: Path, name: str) -> list[Path]:
    """Write NAME.png, .pdf, .svg, and the data drawn as .csv; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    plain_powers(figure)
    if engine := figure.get_layout_engine():
        # Once for all formats: with an engine, each format would be drawn twice.
        engine.execute(figure)
        figure.set_layout_engine(None)
    paths = []
    for form in FORMATS:
        path = folder / f"{name}.{form}"
        # Without a date the same data give the same bytes.
        undated = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[form]
        # What draws may hide a full disk behind an error of its own.
        drawn = io.BytesIO()
        figure.savefig(drawn, format=form, metadata=undated)
        path.write_bytes(drawn.getbuffer())
        paths.append(path)
    csv = folder / f"{name}.csv"
    write_csv(data, csv)
    return [*paths, csv]
