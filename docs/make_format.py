"""The tables of docs/format.md, made from the schemas in the package; the prose around them is written by hand."""

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
    search_table,
    spectrum_table,
    vectors_table,
)
from landscape.models.embedding_mlp.blocks import PARAMETERS
from landscape.training.tables import TABLES

PAGE = Path(__file__).with_name("format.md")
MADE = re.compile(r"(<!-- made: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
ONLY = {"E": "only with `--model embedding`", "b1": "not with `--no-bias`", "b2": "not with `--no-bias`"}
CRITICAL, SEARCH = critical_table(PARAMETERS), search_table(PARAMETERS)
HEAD = ("dataset", "axes", "type", "units", "meaning", "formula")


def generate(page: str) -> str:
    """The page with what stands between `made: NAME` and `end` made anew; each part must have its one place."""
    parts = {"version": f"Schema version {schema.VERSION}.\n", "crc32": f"{schema.COMMIT.formula}\n"}
    named = {id(SEARCH): "search", id(GEOMETRY): "geometry"}
    parts |= {named.get(id(table), table.group): markdown(table) for table in tables()}
    places = sorted(name for _, name, _ in MADE.findall(page))
    if places != sorted(parts):
        raise ValueError(f"docs/format.md has places for {places}, not for {sorted(parts)}")
    return MADE.sub(lambda place: f"{place[1]}\n{parts[place[2]]}\n{place[3]}", page)


def tables() -> tuple[schema.Table, ...]:
    """The tables of all files; BLOCK stands for any block's name."""
    by_block = [make(("BLOCK",)) for make in (spectrum_table, density_table, vectors_table)]
    return (*TABLES, ROOT, *by_block, CRITICAL, SEARCH, GEOMETRY, NUMBERS)


def markdown(table: schema.Table) -> str:
    """One line a dataset."""
    precision = "f8" if table in (CRITICAL, SEARCH) else "f4 or f8"
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
    PAGE.write_text(generate(PAGE.read_text()))
