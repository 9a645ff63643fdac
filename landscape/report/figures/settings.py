"""Runs by setting: the options in which they differ, apart from the seed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from landscape.report.figures.captions import option, symbol, varied
from landscape.report.figures.numbers import span, spread
from landscape.report.figures.sources import NOT_KNOWN, Source

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
    recorded = {source.run_id: source for source in reversed(sources) if source.is_recorded}
    # Runs of another training loop are repetitions of each other only if all that is known of them is the seed.
    repeated = Counter((_model(one), one.seed) for one in recorded.values())
    apart = {model for (model, seed), count in repeated.items() if count > 1 or (seed == NOT_KNOWN)}
    found: dict[str, list[Source]] = {}
    for source in sources:
        label = _label(source, names)
        if source.is_recorded:
            label = recorded[source.run_id].label if _model(source) in apart and len(recorded) > 1 else _model(source)
        found.setdefault(label, []).append(source)
    return [Setting(label, tuple(group)) for label, group in found.items()]


def spread_over(sources: Sequence[Source]) -> Callable[..., str]:
    """How numbers of these runs are told: with their median if the runs differ in nothing but their seed."""
    return spread if len(settings(sources)) < 2 else span


def by_setting(groups: Sequence[Setting], tell: Callable[[Sequence[Source]], str]) -> str:
    """What is told of each setting, with its name if there are several; empty where nothing is."""
    told = [(group.label, text) for group in groups if (text := tell(group.sources))]
    if len(groups) == 1:
        return told[0][1] if told else ""
    said = "; ".join(f"{label}: {text}" for label, text in told[:_MOST])
    return said + f"; and so on in {len(told)} settings" * (len(told) > _MOST)


_MOST = 6
"""Settings that are told of."""


def _model(source: Source) -> str:
    return f"{source.config['model']} with {source.config['num_parameters']:,} parameters"


def _label(source: Source, names: Sequence[str]) -> str:
    known = {symbol(name): option(source, name) for name in names}
    return ", ".join(f"{name} {value}" for name, value in known.items() if value) or "the same options"
