"""A file checked against its declared layout: its attributes, tables and arrays."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import h5py

from landscape.files import schema
from landscape.files.creating import add_attributes
from landscape.files.guard import Guard, Stored
from landscape.files.layout import parse
from landscape.files.table import ArraysReader, TableReader, crc32

Parsed = TypeVar("Parsed")

STATUS = ("running", "complete", "interrupted", "diverged")
ROWS = 1 << 20
"""Most rows of a table that readers accept, so that reading stays fast."""

_MADE_BY: dict[str, type[str] | type[int]] = {
    **dict.fromkeys(
        ("schema", "schema_version", "layout", "config", "created", "landscape_version", "git_commit"), str
    ),
    **dict.fromkeys(("python_version", "torch_version", "numpy_version", "h5py_version", "hdf5_version"), str),
    **dict.fromkeys(("device", "hostname", "argv"), str),
    "git_dirty": int,
}
REPEATED = ("seed", "objective", "method")
"""Attributes that repeat values of the config."""
EVENTS = ("memorise_step", "grok_step")
ATTRIBUTES: dict[str, dict[str, type[str] | type[int]]] = {
    schema.RUN: {**_MADE_BY, "run_id": str, "seed": int},
    schema.HESSIAN: {
        **_MADE_BY,
        **dict.fromkeys(("parent_run_id", "parent_sha256", "parent_config", "objective", "dtype", "method"), str),
        **dict.fromkeys(EVENTS, int),
    },
    schema.GEOMETRY: {**_MADE_BY, **dict.fromkeys(("parent_run_id", "parent_sha256", "parent_config"), str)},
}
"""The root attributes that `attrs_crc32` covers; beside them stands `status`, which a finished file changes."""
OPTIONAL: dict[str, dict[str, type[str] | type[int]]] = {
    schema.RUN: {},
    schema.HESSIAN: {"problem": str, "problem_sha256": str, "problem_checksum": str, "world_size": int, "backend": str},
    schema.GEOMETRY: {},
}
"""Those that it covers where a file has them: the user's own problem and the SHA-256 of its source, and the ranks."""


def crc32_of_attributes(attrs: Mapping[str, Any]) -> int:
    """CRC-32 of the lines `name=value` of attributes in alphabetical order."""
    lines = "".join(f"{name}={attrs[name]}\n" for name in sorted(attrs))
    return crc32(lines.encode("utf-8", "surrogateescape"))


def write_attributes(file: h5py.File, kind: str, attrs: Mapping[str, Any], layout: str) -> None:
    """Give a new file its schema, its attributes and their checksum."""
    attrs = {**attrs, "schema": kind, "schema_version": schema.VERSION, "layout": layout}
    covered = [*ATTRIBUTES[kind], *(name for name in OPTIONAL[kind] if name in attrs)]
    add_attributes(file.id, {**attrs, "attrs_crc32": crc32_of_attributes({name: attrs[name] for name in covered})})


def known_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Root attributes with None for the steps of events that never came, and for a seed that is not known."""
    marked = (*EVENTS, "seed")
    return {n: None if n in marked and value == schema.UNKNOWN else value for n, value in attrs.items()}


class Contents:
    """An open file whose objects all passed their checks.

    kind: its schema; attrs: root attributes but the layout; config: the JSON among them; layout: what it declares, by
    group; tables and arrays: what can be read, by group; scales: labels of all axes but the rows'.
    """

    def __init__(self, guard: Guard, kind: str) -> None:
        """Raises FileError, before any array is read, for anything that `landscape` would not write."""
        self._guard, self.kind = guard, kind
        names = dict(ATTRIBUTES[kind])
        names |= {n: of for n, of in OPTIONAL[kind].items() if guard.attribute(n, of) is not None}
        self.attrs = self._attributes(names)
        self.config = self._parsed("config", lambda: _object(self.attrs["config"]))
        for name in REPEATED:
            if name in self.attrs and self.attrs[name] != self.config.get(name):
                raise guard.refuse(f"its {name} is {self.attrs[name]!r}, but {self.config.get(name)!r} in its config")
        declared = self.attrs.pop("layout")
        layout = self._parsed("layout", lambda: parse(declared))
        self.layout = {table.group: table for table in layout.tables}
        lengths = {axis: len(labels) for axis, labels in layout.labels.items()}
        self.tables: dict[str, TableReader] = {}
        self.arrays: dict[str, ArraysReader] = {}
        for table in layout.tables:
            group, place = guard.group(table.group), "" if table.group == "/" else f"{table.group}/"
            rows = (schema.Field(table.row, (), "i8", ""), *table.fields, schema.COMMIT) if table.row else table.fields
            own = {**lengths}
            stored = {f.name: guard.dataset(group, f"{place}{f.name}", table.axes(f), f.dtype, own) for f in rows}
            lengths |= {axis: n for axis, n in own.items() if axis != table.row}
            if table.row:
                self.tables[table.group] = self._table(table, stored, own[table.row])
            else:
                self.arrays[table.group] = ArraysReader(
                    guard.path, table, stored, int(guard.require("crc32", int, group))
                )
        main = self.tables.get(schema.MAIN[kind])
        if main is None or main.table.row != schema.STEP or main.table.newest:
            raise guard.refuse(f"it has no table {schema.MAIN[kind]} of rows by step")
        self.scales: schema.Scales = {axis: layout.labels.get(axis, range(n)) for axis, n in lengths.items()}

    @property
    def by_step(self) -> dict[str, TableReader]:
        """The tables with a row a step, by group."""
        return {group: table for group, table in self.tables.items() if table.table.row == schema.STEP}

    def require_described(self) -> None:
        """Raise FileError where attributes, scales and labels say something else than the layout, which has a checksum.

        Other programs go by these alone, our own readers by the layout. Copies may lack some.
        """
        for table in self.layout.values():
            group, place = self._guard.group(table.group), f"{table.group}/".removeprefix("//")
            reader = self.tables.get(table.group) or self.arrays[table.group]
            for field in table.fields:
                where, id_ = f"{place}{field.name}", reader.stored[field.name].id
                self._guard.require_described(group, where, id_, table.axes(field), field.description)
            for axis in {axis for field in table.fields for axis in field.dims}:
                if isinstance(labels := self.scales[axis], list):
                    self._guard.require_labels(group, f"{place}{axis}", labels)

    def close(self) -> None:
        """Close the file."""
        self._guard.close()

    def _attributes(self, names: Mapping[str, type[str] | type[int]]) -> dict[str, Any]:
        found: dict[str, Any] = {name: self._guard.require(name, of) for name, of in names.items()}
        if self._guard.require("attrs_crc32", int) != crc32_of_attributes(found):
            raise self._guard.refuse("its attributes fail their checksum")
        status = self._guard.require("status", str)
        if status not in STATUS:
            raise self._guard.refuse(f"its status is {status!r}, none of {', '.join(STATUS)}")
        found["status"] = status
        # What the writer's machine calls its files need not be UTF-8; what is served is.
        text = {n: v.encode("utf-8", "surrogateescape") for n, v in found.items() if isinstance(v, str)}
        return found | {name: raw.decode("utf-8", "replace") for name, raw in text.items()}

    def _parsed(self, name: str, parse: Callable[[], Parsed]) -> Parsed:
        """What is made of text from the file."""
        try:
            return parse()
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise self._guard.refuse(f"its {name} cannot be: {str(error)[:200]}") from error

    def _table(self, table: schema.Table, stored: Mapping[str, Stored], rows: int) -> TableReader:
        if rows > ROWS:
            raise self._guard.refuse(f"{table.group} has {rows:,} rows; at most {ROWS:,} are read")
        named = self._guard.require("fields", str, stored["crc32"].id)
        if str(named).split() != [f.name for f in table.fields]:
            where = f"{table.group}/crc32".removeprefix("//")
            raise self._guard.refuse(f"{where} covers {str(named)[:200]!r}, not the datasets of its table")
        return TableReader(self._guard.path, table, stored, self.attrs["status"] == "running")


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError("no JSON object")
    return found
