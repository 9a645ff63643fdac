"""Runs side by side: the options that differ, their events and key numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from landscape.errors import LandscapeError
from landscape.models.embedding_mlp.blocks import CLAIM
from landscape.report.figures.captions import option, symbol, varied
from landscape.report.figures.numbers import STABLE, BlockNumbers, Numbers, PairNumbers, bracket, numbers
from landscape.report.figures.sources import Source, leaving_out


@dataclasses.dataclass(frozen=True)
class Compared:
    """A source beside others."""

    run: str
    file: Path | None
    hessian: Path | None
    options: dict[str, str]
    """The options that differ between the runs, as text; empty where one has no part."""
    numbers: Numbers


def compared(sources: Sequence[Source], broken: list[LandscapeError] | None = None) -> list[Compared]:
    """The sources with what differs between them.

    With `broken`, those whose numbers cannot be read are left out, and their errors put there.
    """
    known: list[tuple[Source, Numbers]] = []
    for source in sources:
        with leaving_out(broken):
            known.append((source, numbers(source)))
    kept = [source for source, _ in known]
    recorded = ("model", "num_parameters") if any(source.is_recorded for source in kept) else ()
    names = dict.fromkeys((*varied(kept), *recorded))
    return [
        Compared(one.label, one.run, one.hessian, {symbol(name): option(one, name) for name in names}, found)
        for one, found in known
    ]


def side_by_side(rows: Sequence[Compared]) -> list[list[str]]:
    """A line a source, after the titles; empty where nothing was measured. A column without any cell is left out."""
    pairs = list(dict.fromkeys(pair for row in rows for pair in row.numbers.pairs))
    shown = [pair for pair in pairs if pair == CLAIM or CLAIM in pairs][:2] or pairs[:2]
    columns: dict[str, Callable[[Compared], str]] = {"run": lambda row: row.run}
    for name in rows[0].options:
        columns[name] = lambda row, name=name: row.options[name]  # type: ignore[misc]
    columns |= {
        "99 % of train at step": lambda row: _step(row.numbers, row.numbers.memorised, row.numbers.is_memorised_bound),
        "95 % of test at step": lambda row: _step(row.numbers, row.numbers.grokked, row.numbers.is_grokked_bound),
        "test accuracy": lambda row: _text(row.numbers.test_accuracy),
        "analysed step": lambda row: "" if row.numbers.step is None else str(row.numbers.step),
    }
    for name in dict.fromkeys(name for row in rows for name in row.numbers.recorded):
        columns[name] = lambda row, name=name: _text(row.numbers.recorded.get(name, (0, math.nan))[1])  # type: ignore[misc]
    for block in [] if CLAIM in pairs else dict.fromkeys(row.numbers.block.block for row in rows if row.numbers.block):
        for title, tell_block in _OF_BLOCKS.items():
            columns[f"{title} {block}"] = lambda row, block=block, tell=tell_block: (  # type: ignore[misc]
                tell(one) if (one := row.numbers.block) and one.block == block else ""
            )
    for pair in shown:
        for title, tell in _OF_PAIRS.items():
            columns[f"{title} {pair}"] = lambda row, pair=pair, tell=tell: (  # type: ignore[misc]
                tell(row.numbers.pairs[pair]) if pair in row.numbers.pairs else ""
            )
    columns["Prop. 4.1, first to last"] = lambda row: _text(*row.numbers.prop41)
    for name, limit in STABLE.items():
        columns[f"{name} / {limit:.0f}"] = lambda row, name=name, limit=limit: (  # type: ignore[misc]
            _text(row.numbers.sharpness.get(name, math.nan) / limit)
        )
    lines = [list(columns), *([tell(row) for tell in columns.values()] for row in rows)]
    kept = [i for i in range(len(columns)) if any(line[i] for line in lines[1:])]
    return [[line[i] for i in kept] for line in lines]


def document(rows: Sequence[Compared]) -> dict[str, Any]:
    """The same for JSON; NaN where a number was not measured."""
    return {"runs": [dataclasses.asdict(row) for row in rows]}


_OF_BLOCKS: dict[str, Callable[[BlockNumbers], str]] = {
    "lambda_max": lambda one: _text(one.highest),
    "lambda_min": lambda one: _text(one.lowest),
    "index": lambda one: f"{bracket(one.lower, one.upper)} ({one.level})" * math.isfinite(one.lower),
    "trace": lambda one: _text(one.trace),
}
_OF_PAIRS: dict[str, Callable[[PairNumbers], str]] = {
    "depth": lambda one: f"{'>=' * one.is_depth_bound}{_text(one.depth)}",
    "index": lambda one: f"{bracket(one.lower, one.upper)} ({one.level})",
    "tolerance": lambda one: f"{one.tolerance:.2g}",
    "kappa_1": lambda one: f"{'>=' * one.is_kappa_bound}{_text(one.kappa)}",
}


def _step(of: Numbers, event: int | None, is_bound: bool) -> str:
    """The step of an event, as a bound where it may be earlier; never where accuracies are recorded."""
    if event is not None:
        return f"{'<=' * is_bound}{event}"
    return ("not seen" if is_bound else "never") * (of.last_step is not None)


def _text(*values: float) -> str:
    """Numbers as a span, or nothing where they are not known."""
    return " to ".join(f"{value:.4g}" for value in values if math.isfinite(value))
