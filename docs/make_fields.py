"""Print docs/fields.md with its tables of datasets, which are made from the schemas in the package."""

from __future__ import annotations

import re
from pathlib import Path

from landscape.files import schema
from landscape.measure.fields import (
    GEOMETRY,
    NUMBERS,
    ROOT,
    critical_table,
    density_table,
    settled_table,
    spectrum_table,
    vectors_table,
)
from landscape.models.embedding_mlp.blocks import PARAMETERS
from landscape.training.tables import TABLES

PAGE = Path(__file__).with_name("fields.md")
PLACE = re.compile(r"<!-- made: (\S+) -->")
ONLY = {"E": "only with `--model embedding`", "b1": "not with `--no-bias`", "b2": "not with `--no-bias`"}
POINTS = (critical_table(PARAMETERS), settled_table(PARAMETERS))
HEAD = ("dataset", "axes", "type", "units", "meaning", "formula")


def generate(page: str) -> str:
    """The page with a table in each place `<!-- made: NAME -->`. Raises ValueError unless every table has one."""
    made = {"geometry" if table is GEOMETRY else table.group: markdown(table) for table in tables()}
    places = sorted(PLACE.findall(page))
    if places != sorted(made):
        raise ValueError(f"docs/fields.md has places for {places}, not for {sorted(made)}")
    return PLACE.sub(lambda place: made[place[1]], page)


def tables() -> tuple[schema.Table, ...]:
    """The tables of all files but the state for resuming; BLOCK stands for any block's name."""
    of_run = [table for table in TABLES if table.group != "resume"]
    by_block = [make(("BLOCK",)) for make in (spectrum_table, density_table, vectors_table)]
    return (*of_run, ROOT, *by_block, *POINTS, GEOMETRY, NUMBERS)


def markdown(table: schema.Table) -> str:
    """One line a dataset."""
    precision = "f8" if table in POINTS else "f4 or f8"
    lines = [HEAD, ("---",) * len(HEAD), *(cells(field, table.row, precision) for field in table.fields)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cells(field: schema.Field, row: str, precision: str) -> tuple[str, ...]:
    """A dataset's cells; flags are spelt out, and so is what a run must have for the dataset to exist."""
    flags = zip(field.attrs.get("flag_values", ()), str(field.attrs.get("flag_meanings", "")).split(), strict=True)
    codes = ", ".join(f"{value} {text}" for value, text in flags)
    meaning = [field.long_name, codes, ONLY.get(field.needs, "")]
    return (
        f"`{field.name}`",
        ", ".join(filter(None, (row, *field.dims))),
        precision if field.dtype == schema.PARAM else field.dtype,
        field.units,
        escaped("; ".join(filter(None, meaning))),
        escaped(field.formula and f"`{field.formula}`"),
    )


def escaped(text: str) -> str:
    """Text for a cell, where a bar would end it."""
    return text.replace("|", r"\|")


if __name__ == "__main__":
    print(generate(PAGE.read_text(encoding="utf-8")))
