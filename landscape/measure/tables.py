"""Measurements as text tables: one row per step and block, and one per step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from landscape.files.hessians import HessianReader
from landscape.measure.quantities import QUANTITIES
from landscape.measure.quantities.directions import PARTS_SHOWN
from landscape.measure.quantities.quantity import Column

Table = list[list[str]]
"""Lines of cells; the first line has the titles."""
BOUND = ">= matrix-free: a lower bound without a known upper one (see coupling_ratio_error)"


def by_block(result: HessianReader) -> Table:
    """The quantities of blocks, without blocks that are not measured yet."""
    columns = [column for quantity in QUANTITIES if quantity.scope == "block" for column in quantity.columns]
    lines = [["step", "block", *(_title(column.title, result) for column in columns)]]
    for step in result.steps:
        for block in result.measured(step):
            row = _of_block(result, step, result.blocks.index(block))
            lines.append([str(step), block, *(_cell(column, row) for column in columns)])
    return lines


def by_step(result: HessianReader) -> Table:
    """The quantities of checkpoints, and those of the pair that `pair_shown` chooses."""
    chosen = [quantity for quantity in QUANTITIES if quantity.scope != "block"]
    columns = [column for quantity in chosen for column in quantity.columns]
    lines = [["step", *(_title(column.title, result) for column in columns)]]
    of_pairs = {name for quantity in chosen if quantity.scope == "pair" for name in quantity.names}
    shown = result.pairs.index(pair_shown(result)) if result.pairs else 0
    for step in result.steps:
        held = result.row(step)
        row: dict[str, Any] = {n: v for n, v in held.items() if n not in of_pairs}
        row |= {n: held[n][shown] for n in of_pairs & held.keys() if result.pairs}
        pair = result.pairs[0] if result.pairs else ""
        row["unconverged"] = {block for i, block in enumerate(result.blocks) if not result.converged(step, i)}
        row["joint"] = _of_block(result, step, result.blocks.index(pair)) if pair in result.measured(step) else None
        lines.append([str(step), *(_cell(column, row) for column in columns)])
    return lines


def filled(lines: Table) -> Table:
    """A table without the columns that have a dash in every line, as many have for a model of the user's own."""
    kept = [column for column in zip(*lines, strict=True) if set(column[1:]) != {"-"}]
    return list(map(list, zip(*kept, strict=True)))


def pair_shown(result: HessianReader) -> str:
    """The first pair whose joint block is analysed; the first of all if there is none."""
    return next((pair for pair in result.pairs if pair in result.blocks), result.pairs[0])


def has_bounds(result: HessianReader) -> bool:
    """Whether there is a cell that `BOUND` explains."""
    return any(cell.startswith(">=") for line in (*by_block(result), *by_step(result)) for cell in line)


def notes(result: HessianReader) -> Iterator[str]:
    """Notes that readers of the tables need."""
    # The search for a critical point says itself how near it came to one.
    belongs = "" if result.is_refined else "; an index belongs to a critical point: see |grad|"
    yield f"objective: {result.attrs['objective']}{belongs}"
    if len(result.pairs) > 1 and pair_shown(result) in result.blocks:
        yield f"kappa, excess index and coupling are those of {pair_shown(result)}"
    if has_bounds(result):
        yield BOUND
    rows = [result.row(step) for step in result.steps]
    # NaN where a file of an earlier version was extended.
    chances = [chance for row in rows if "hidden" in row for chance in row["hidden_failure_probability"]]
    if chance := np.nanmax([0.0, *chances]):
        yield f"hidden/|H|: no eigenvalue is missed further out than this, except with probability {chance:.0e} per end"
    if not all(result.converged(step) for step in result.steps):
        yield "* not every eigenvalue converged (see converged in the file)"


def _cell(column: Column, row: dict[str, Any]) -> str:
    """The text of a cell; a dash where an older file lacks the quantity."""
    try:
        return column.cell(row)
    except KeyError:
        return "-"


def _of_block(result: HessianReader, step: int, i: int) -> dict[str, Any]:
    row = result.row(step)
    return {n: row[n][i] for quantity in QUANTITIES if quantity.scope == "block" for n in quantity.names if n in row}


def _title(title: str, result: HessianReader) -> str:
    rest = ["..."] if len(result.parts) > PARTS_SHOWN else []
    parts = "/".join([*result.parts[:PARTS_SHOWN], *rest])
    return title.format(pair=result.pairs[0] if result.pairs else "-", parts=parts)
