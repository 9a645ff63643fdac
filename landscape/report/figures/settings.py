"""Runs by setting: the options in which they differ, apart from the seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from landscape.report.figures.captions import option, symbol, varied
from landscape.report.figures.sources import Source

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class Setting:
    """Runs that differ in nothing but their seed."""

    label: str
    sources: tuple[Source, ...]

    def of(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of its runs."""
        return table[table["run"].isin([source.label for source in self.sources])]


def settings(sources: Sequence[Source]) -> list[Setting]:
    """The settings of the sources, in their order."""
    names = [name for name in varied(sources) if name != "seed"]
    found: dict[str, list[Source]] = {}
    for source in sources:
        found.setdefault(_label(source, names), []).append(source)
    return [Setting(label, tuple(group)) for label, group in found.items()]


def _label(source: Source, names: Sequence[str]) -> str:
    if source.is_recorded:
        return str(source.config["model"])
    known = {symbol(name): option(source, name) for name in names}
    return ", ".join(f"{name} {value}" for name, value in known.items() if value) or "the same options"
