"""Links from the numbers of the trial's page to the rows behind them, and the last line of its captions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from markupsafe import Markup
from scale import Scale, which

Link = Callable[..., Markup]
"""A text that leads to the first row of a table with these values, as of `Linked.link`."""


@dataclasses.dataclass(frozen=True)
class Linked(Scale):
    """A scale whose numbers lead to their rows."""

    def link(self, table: str, text: str, /, **known: object) -> Markup:
        """Text that leads to the CSV of a table, at the first row with these values."""
        return linked(f"{self.name}/{table}.csv", self.tables[table], text, **known)

    def caption(self, table: str, of: Mapping[str, object]) -> Markup:
        """The last line of a caption: networks and seeds of the runs with these values, and where their rows are."""
        drawn = self.link(table, f"{table}.csv", **of)
        return Markup("{}; {}.").format(setup(which(self.tables["runs"], **of)), drawn)


def linked(place: str, rows: pd.DataFrame, text: str, /, **known: object) -> Markup:
    """Text that leads to the first row of a CSV with these values; its title says which, and how many there are.

    It names the file behind the row, where there is one row alone.
    """
    of = rows[np.logical_and.reduce([rows[name] == value for name, value in known.items()])]
    row, count = of.iloc[0], len(of)
    values = " ".join(map(str, [*known.values(), *([row["file"]] if "file" in rows and count == 1 else [])]))
    told = f"row {values}" if count == 1 else f"the {count} rows {values}"
    return Markup('<a class="n" href="{}#L{}" title="{}, {}">{}</a>').format(place, row.name + 2, place, told, text)


def setup(runs: pd.DataFrame) -> str:
    """The networks and seeds of runs, for the last line of a caption."""
    numbers = {"p": "p = {}", "tokens": "{} tokens", "embed_dim": "d = {}", "hidden": "h = {}"}
    said = [form.format(listed(runs[name])) for name, form in numbers.items()]
    # Of a text p and tokens are no numbers of its network.
    return ", ".join(
        [
            *(said[2:] if (runs["task"] == "text").all() else said),
            f"seed{'s' if runs['seed'].nunique() > 1 else ''} {listed(runs['seed'])}",
        ]
    )


def listed(values: pd.Series) -> str:
    """The values that occur; of more than two the least and the largest."""
    each = sorted(set(values))
    return f"{each[0]:g}" + (f" {'or' if len(each) == 2 else 'to'} {each[-1]:g}" if len(each) > 1 else "")
