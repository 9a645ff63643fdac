"""Measurements as text tables: one row per step and block, and one per step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray

from landscape.choices.optimizers import coupled_decay
from landscape.errors import in_file
from landscape.files.schema import STEP, UNKNOWN
from landscape.files.views import File
from landscape.measure.quantities import QUANTITIES
from landscape.measure.quantities.directions import PARTS_SHOWN
from landscape.measure.quantities.quantity import Column, Quantity, Row

Table = list[list[str]]
"""Lines of cells; the first line has the titles."""
BOUND = ">= matrix-free: a lower bound without a known upper one (see coupling_ratio_error)"


def rows(file: File, group: str = "/") -> dict[int, Row]:
    """What a group of a Hessian file has at each step, as arrays; unknown counts are -1."""
    data = file.datasets[group].load()
    return {int(step): {str(n): _plain(x.sel({STEP: step})) for n, x in data.items()} for step in data[STEP].values}


def unconverged(file: File) -> dict[int, set[str]]:
    """The blocks of which not every eigenvalue that was sought converged, by step."""
    # Without `certify` those further in are found on the way, and their residuals say how well.
    sought = slice(None if file.config.get("certify") else 1)
    at = {
        step: (row["converged"] == 0)[:, :, sought] & ~np.isnan(row["eigenvalues"])[:, :, sought]
        for step, row in rows(file).items()
    }
    return {step: {b for b, wrong in zip(file.blocks, all_, strict=True) if wrong.any()} for step, all_ in at.items()}


def by_block(file: File) -> Table:
    """The quantities of blocks, without blocks that are not measured yet."""
    columns = [column for quantity in _measured(file) if quantity.scope == "block" for column in quantity.columns]
    lines = [["step", "block", *(_title(column.title, file) for column in columns)]]
    with in_file(file.path, "parent_config"):
        decay = coupled_decay(json.loads(file.attrs["parent_config"]))
    for step, row in rows(file).items():
        for i, block in enumerate(file.blocks):
            if not np.isnan(row["operator_norm"][i]):
                cells = _of_block(row, i) | {"weight_decay": decay}
                lines.append([str(step), block, *(column.cell(cells) for column in columns)])
    return lines


def by_step(file: File) -> Table:
    """The quantities of checkpoints, and those of the pair that `pair_shown` chooses."""
    chosen = [quantity for quantity in _measured(file) if quantity.scope != "block"]
    columns = [column for quantity in chosen for column in quantity.columns]
    lines = [["step", *(_title(column.title, file) for column in columns)]]
    of_pairs = {name for quantity in chosen if quantity.scope == "pair" for name in quantity.names}
    shown = file.pairs.index(pair_shown(file)) if file.pairs else None
    joint = file.blocks.index(file.pairs[0]) if file.pairs and file.pairs[0] in file.blocks else None
    starred = unconverged(file)
    for step, row in rows(file).items():
        cells = {n: value for n, value in row.items() if n not in of_pairs}
        cells |= {n: row[n][shown] for n in of_pairs} if shown is not None else {}
        cells |= {"unconverged": starred[step], "joint": None if joint is None else _of_block(row, joint)}
        if cells["joint"] and np.isnan(cells["joint"]["operator_norm"]):
            cells["joint"] = None
        lines.append([str(step), *(_cell(column, cells) for column in columns)])
    return lines


def filled(lines: Table) -> Table:
    """A table without the columns that have a dash in every line, as many have for a model of the user's own."""
    kept = [column for column in zip(*lines, strict=True) if set(column[1:]) != {"-"}]
    return list(map(list, zip(*kept, strict=True)))


def pair_shown(file: File) -> str:
    """The first pair whose joint block is analysed; the first of all if there is none."""
    return next((pair for pair in file.pairs if pair in file.blocks), file.pairs[0])


def has_bounds(file: File) -> bool:
    """Whether there is a cell that `BOUND` explains."""
    return any(cell.startswith(">=") for line in (*by_block(file), *by_step(file)) for cell in line)


def notes(file: File) -> Iterator[str]:
    """Notes that readers of the tables need."""
    # The search for a critical point says itself how near it came to one.
    belongs = "" if "critical_point" in file.groups else "; an index belongs to a critical point: see |grad|"
    yield f"objective: {file.attrs['objective']}{belongs}"
    if len(file.pairs) > 1 and pair_shown(file) in file.blocks:
        yield f"kappa, excess index and coupling are those of {pair_shown(file)}"
    if has_bounds(file):
        yield BOUND
    chances = [chance for row in rows(file).values() for chance in row["hidden_failure_probability"]]
    # NaN where a block is not measured yet.
    if chance := np.nanmax([0.0, *chances]):
        yield f"hidden/|H|: no eigenvalue is missed further out than this, except with probability {chance:.0e} per end"
    if any(unconverged(file).values()):
        yield "* not converged (see residual_norm in the file)"


def _measured(file: File) -> list[Quantity]:
    """The quantities that a file has."""
    return [quantity for quantity in QUANTITIES if set(quantity.names) <= set(file.datasets["/"])]


def _cell(column: Column, row: Row) -> str:
    """The text of a cell; a dash where there is no pair."""
    try:
        return column.cell(row)
    except KeyError:
        return "-"


def _of_block(row: Row, i: int) -> Row:
    return {n: row[n][i] for q in QUANTITIES if q.scope == "block" for n in q.names if n in row}


def _plain(values: xarray.DataArray) -> Any:
    """Stored numbers: counts that xarray has masked are integers again."""
    array = values.values
    return np.where(np.isnan(array), UNKNOWN, array).astype(np.int64) if "_FillValue" in values.encoding else array


def _title(title: str, file: File) -> str:
    data = file.datasets["/"]
    parts = data["part"].values.tolist() if "part" in data else []
    rest = ["..."] if len(parts) > PARTS_SHOWN else []
    parts = "/".join([*parts[:PARTS_SHOWN], *rest])
    return title.format(pair=file.pairs[0] if file.pairs else "-", parts=parts)
