"""The registry of figure families: functions from sources to a figure with its data, caption and key numbers."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path

from landscape.report.figures.sources import Drawn, Source

Family = Callable[[Sequence[Source]], Drawn]
_PLACED: dict[str, tuple[int, Family]] = {}


def family(place: int) -> Callable[[Family], Family]:
    """Register a function as a family under its own name; place: sort key of its position in a report.

    Registration raises ValueError for a name that is taken.
    """

    def register(draw: Family) -> Family:
        if draw.__name__ in _PLACED:
            raise ValueError(f"figure {draw.__name__!r} is registered twice")
        _PLACED[draw.__name__] = place, draw
        return draw

    return register


def families() -> dict[str, Family]:
    """All families of the modules in this folder by name, in report order."""
    for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{found.name}")
    return {name: draw for name, (_, draw) in sorted(_PLACED.items(), key=lambda entry: entry[1][0])}
