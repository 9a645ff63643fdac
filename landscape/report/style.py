"""The style of all figures, and how they are saved."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from landscape.problems.embedding_mlp.blocks import LOOKS as OF_MLP
from landscape.problems.transformer.looks import LOOKS as OF_TRANSFORMER
from landscape.text import write_csv

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 7.0, 2.9
"""Inches of a one-row figure; legible at half size."""
FORMATS = ("png", "pdf", "svg")


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib and seaborn settings of every figure."""
    import matplotlib
    import seaborn as sns

    settings = {
        **sns.axes_style("ticks"),
        **sns.plotting_context("paper", font_scale=1.05),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": "medium",
        "lines.linewidth": 1.6,
        "legend.frameon": False,
        "svg.hashsalt": "landscape",
        "figure.dpi": 110,
    }
    with matplotlib.rc_context(settings):
        yield


def new_figure(columns: int, height: float = HEIGHT, rows: int = 1) -> Figure:
    """An empty figure of the standard width; call inside `style()`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height * rows), layout="constrained")
    figure.subplots(rows, columns, squeeze=False)
    return figure


def colour(block: str) -> tuple[float, float, float]:
    """The colour of a block in every figure, from seaborn's colour-blind palette."""
    import seaborn as sns

    found: tuple[float, float, float] = sns.color_palette("colorblind", 10)[_look(block)[0]]
    return found


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


def save_figure(figure: Figure, data: pd.DataFrame, folder: Path, name: str) -> list[Path]:
    """Write NAME.png, .pdf, .svg, and the data drawn as .csv; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for form in FORMATS:
        path = folder / f"{name}.{form}"
        # Without a date the same data give the same bytes.
        undated = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[form]
        figure.savefig(path, metadata=undated)
        paths.append(path)
    csv = folder / f"{name}.csv"
    write_csv(data, csv)
    return [*paths, csv]
