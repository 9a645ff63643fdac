"""Runs side by side: the options that differ, their events and key numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from landscape.errors import LandscapeError
from landscape.models.embedding_mlp.blocks import CLAIM
from landscape.report.numbers import STABLE, BlockNumbers, Numbers, numbers
from landscape.report.sources import Source, leaving_out, option, varied


@dataclasses.dataclass(frozen=True)
class Compared:
    """A source beside others."""

    run: str
    files: dict[str, str]
    """Paths by kind."""
    options: dict[str, str]
    """The options that differ between the runs, as text."""
    numbers: Numbers


def compared(sources: Sequence[Source], broken: list[LandscapeError] | None = None) -> list[Compared]:
    """The sources with what differs between them; errors go to `broken` as in `open_sources`."""
    names = varied(sources) + ["model", "num_parameters"] * any(source.is_recorded for source in sources)
    rows = []
    for source in sources:
        with leaving_out(broken):
            files = {kind: str(path) for kind, path in source.files.items()}
            options = {name.replace("_", " "): option(source, name) for name in dict.fromkeys(names)}
            rows.append(Compared(source.label, files, options, numbers(source)))
    return rows


def side_by_side(rows: Sequence[Compared]) -> list[list[str]]:
    """A line a source, after the titles; empty where nothing was measured. A column without any cell is left out."""
    pairs = list(dict.fromkeys(pair for row in rows for pair in row.numbers.pairs))[:2]
    blocks = [] if CLAIM in pairs else list(dict.fromkeys(row.numbers.block.block for row in rows if row.numbers.block))
    lines = []
    for row in rows:
        known = row.numbers
        line = {"run": row.run, **row.options}
        line |= {
            "99 % of train at step": _event(known, known.memorised),
            "95 % of test at step": _event(known, known.grokked),
        }
        line |= {
            "test accuracy": _text(known.test_accuracy),
            "analysed step": "" if known.step is None else str(known.step),
        }
        line |= {name: _text(value) for name, (_, value) in known.recorded.items()}
        for block in blocks:
            is_here = known.block is not None and known.block.block == block
            line |= {
                f"{title} {block}": tell(known.block) for title, tell in _OF_BLOCKS.items() if is_here and known.block
            }
        for pair in pairs:
            line |= {
                f"{title} {pair}": tell(known.pairs[pair]) for title, tell in _OF_PAIRS.items() if pair in known.pairs
            }
        line["Prop. 4.1, first to last"] = _text(*known.prop41)
        line |= {
            f"{name} / {limit:.0f}": _text(known.sharpness.get(name, math.nan) / limit)
            for name, limit in STABLE.items()
        }
        lines.append(line)
    names = dict.fromkeys(name for line in lines for name in line)
    kept = [name for name in names if any(line.get(name) for line in lines)]
    return [kept, *([line.get(name, "") for name in kept] for line in lines)]


def document(rows: Sequence[Compared]) -> dict[str, Any]:
    """The same for JSON; NaN where a number was not measured."""
    return {"runs": [dataclasses.asdict(row) for row in rows]}


def _index(one: BlockNumbers) -> str:
    if math.isnan(one.lower):
        return ""
    bounds = f"{one.lower:.0f}" if one.lower == one.upper else f"{one.lower:.0f} to {one.upper:.0f}"
    return f"{bounds} ({one.level})"


_OF_BLOCKS: dict[str, Callable[[BlockNumbers], str]] = {
    "lambda_max": lambda one: _text(one.highest),
    "lambda_min": lambda one: _text(one.lowest),
    "index": _index,
    "trace": lambda one: _text(one.trace),
}
_OF_PAIRS: dict[str, Callable[[BlockNumbers], str]] = {
    "lambda_min": lambda one: f"{'<= ' * one.are_bounds}{_text(one.lowest)}",
    "index": _index,
    "tolerance": lambda one: _text(one.tolerance),
    "kappa_1": lambda one: f"{'>= ' * one.is_kappa_bound}{_text(one.kappa)}",
}


def _event(known: Numbers, step: int | None) -> str:
    """The step of an event; never where accuracies are recorded."""
    if step is not None:
        return str(step)
    return "never" * math.isfinite(known.test_accuracy)


def _text(*values: float) -> str:
    """Numbers as a span, or nothing where they are not known."""
    return " to ".join(f"{value:.4g}" for value in values if math.isfinite(value))
