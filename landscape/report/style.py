"""The one style of all figures, and how they are saved."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from landscape.errors import ConfigError
from landscape.models.embedding_mlp.blocks import LOOKS as OF_MLP
from landscape.models.transformer.blocks import LOOKS as OF_TRANSFORMER
from landscape.text import printable, write_csv

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 7.0, 2.9
"""Inches of a figure of one row; legible at half size."""
FORMATS = ("pdf", "png")
"""What a figure can be saved as, besides SVG."""
INK = "#262626"
"""Text and axes; pages draw them in their own colour."""
LOOKS = OF_MLP | OF_TRANSFORMER
"""Palette colour, marker and its size by block, as the models declare."""
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
        "savefig.transparent": True,
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
    known = dict.fromkeys(names)
    used = [LOOKS[name][0] for name in known if name in LOOKS]
    by_name = {}
    for name in known:
        if name not in LOOKS:
            used.append(min(range(len(colours)), key=used.count))
        by_name[name] = colours[LOOKS[name][0] if name in LOOKS else used[-1]]
    return by_name


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
    for form in ("svg", *formats):
        # What draws may hide a full disk behind an error of its own.
        drawn = io.BytesIO()
        figure.savefig(drawn, format=form, metadata=_UNDATED[form], dpi=150 if form == "png" else "figure")
        paths[form] = folder / f"{name}.{form}"
        paths[form].write_bytes(drawn.getbuffer())
    paths["csv"] = folder / f"{name}.csv"
    write_csv(data, paths["csv"])
    return paths


def inline(svg: str, name: str, title: str) -> str:
    """An SVG figure as a part of a page: as wide as there is room, in its ink, with names of its own."""
    from markupsafe import escape

    body = svg[svg.index("<svg") :]
    box = re.search(r'viewBox="[^"]*"', body)
    opening = f'<svg role="img" aria-label="{escape(printable(title))}" {box[0] if box else ""} xmlns:xlink="http://www.w3.org/1999/xlink">'
    body = opening + body[body.index(">") + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|"#|url\(#)', rf"\g<1>{name}-", body)
    body = body.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    return body.replace(INK, "currentColor")
