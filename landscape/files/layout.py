"""The layout that a file declares: its tables, their datasets in order, and the labels of its axes.

It is JSON in a root attribute covered by `attrs_crc32`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from landscape.files.schema import COMMIT, MARKED, TYPES, Field, Scales, Table

Kind = TypeVar("Kind")

FIELDS = 1 << 13
"""Most datasets of a file: each takes time to open."""
NAME = 255
"""Longest name."""
_KEYS = ("name", "dims", "dtype", "long_name", "units", "formula", "attrs")
_DEFAULTS = Field("", (), "", "")


@dataclasses.dataclass(frozen=True)
class Layout:
    """Tables in order; labels: those of the axes with names."""

    tables: tuple[Table, ...]
    labels: dict[str, list[str]]


def to_json(tables: Iterable[Table], labels: Mapping[str, list[str]]) -> str:
    """The layout as JSON that `parse` reads; empty values are left out."""
    entries = [{**vars(table), "fields": [_entry(field) for field in table.fields]} for table in tables]
    return json.dumps({"tables": entries, "labels": dict(labels)})


# Programs open a file several times, to judge, read and extend it.
@functools.lru_cache(maxsize=8)
def parse(text: str) -> Layout:
    """The layout in a file's attribute. Raises ValueError, TypeError, LookupError or RecursionError for any other."""
    found = json.loads(text)
    tables = tuple(_table(**entry) for entry in _a(list, found["tables"]))
    if sum(len(table.fields) for table in tables) > FIELDS:
        raise ValueError(f"more than {FIELDS:,} datasets")
    _distinct([table.group for table in tables])
    rows = {table.row for table in tables}
    if rows & {dim for table in tables for field in table.fields for dim in field.dims}:
        raise ValueError("an axis of rows is also another axis")
    labels = {_name(axis): [_text(label) for label in _a(list, names)] for axis, names in found["labels"].items()}
    for names in labels.values():
        _distinct(names)
    return Layout(tables, labels)


def _entry(field: Field) -> dict[str, Any]:
    return {key: value for key in _KEYS if (value := getattr(field, key)) != getattr(_DEFAULTS, key) or key == "dims"}


def _table(group: str, row: str, fields: list[dict[str, Any]], newest: str) -> Table:
    found = Table(group if group == "/" else _name(group), _text(row), tuple(_field(**f) for f in _a(list, fields)))
    names, axes = [field.name for field in found.fields], {dim for field in found.fields for dim in field.dims}
    if row:
        names += [_name(row), COMMIT.name]
    elif newest or not all(field.dims for field in found.fields):
        raise ValueError(f"{group} has neither rows nor whole arrays")
    # Datasets and the labels of axes share their group.
    _distinct([*names, *axes])
    if newest and not any((field.name, field.dims, field.dtype) == (newest, (), "i8") for field in found.fields):
        raise ValueError(f"{group} has no number {str(newest)[:60]!r} by which the newer slot is known")
    return dataclasses.replace(found, newest=newest)


def _field(
    name: str, dims: list[str], dtype: str, long_name: str, units: str = "1", formula: str = "", attrs: Any = None
) -> Field:
    found = Field(_name(name), tuple(map(_name, _a(list, dims))), dtype, _text(long_name), _text(units), _text(formula))
    _distinct(found.dims)
    if dtype not in TYPES:
        raise ValueError(f"{name} is of type {str(dtype)[:60]!r}, none of {' '.join(TYPES)}")
    return dataclasses.replace(found, attrs=_codes(found, _a(dict, attrs or {})))


def _codes(field: Field, attrs: dict[str, Any]) -> dict[str, object]:
    """What says which values are no numbers: a mark for what is not known, or codes with their meanings."""
    if attrs == MARKED and field.dtype.startswith("i"):
        return MARKED
    if attrs:
        values, meanings = _a(list, attrs.pop("flag_values")), _text(attrs.pop("flag_meanings")).split()
        if attrs or len(values) != len(meanings) or any(type(v) is not int or abs(v) > 127 for v in values):
            raise ValueError(f"{field.name} has codes without a meaning")
        return {"flag_values": values, "flag_meanings": " ".join(meanings)}
    return {}


def _name(text: str) -> str:
    """A name that is not a path in HDF5, and contains no space."""
    if not 0 < len(_text(text)) <= NAME or text in (".", "..") or {"/", " "} & set(text):
        raise ValueError(f"{text[:60]!r} is no name")
    return text


def _text(text: str) -> str:
    if not _a(str, text).isprintable():
        raise ValueError(f"{text[:60]!r} is not printable")
    return text


def _a(kind: type[Kind], value: Any) -> Kind:
    if not isinstance(value, kind):
        raise TypeError(f"{str(value)[:60]!r} is no {kind.__name__}")
    return value


def _distinct(names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"{name!r} stands twice")


def misfit(
    found: Mapping[str, Table],
    scales: Scales,
    wanted: Iterable[Table],
    lengths: Mapping[str, int],
    may_lack: bool = False,
) -> str:
    """How a file differs from `wanted` tables with axes of these lengths; empty if it does not.

    found and scales: the declarations of the file. With `may_lack` it may lack datasets.
    """
    for table in wanted:
        held = {field.name: field for field in found[table.group].fields} if table.group in found else {}
        for field in table.fields:
            where, other = f"{table.group}/{field.name}".removeprefix("//"), held.get(field.name)
            if other is None:
                if not may_lack:
                    return f"{where} is missing"
            elif (other.dims, other.dtype) != (field.dims, field.dtype):
                form = " ".join([*other.dims, other.dtype])
                return f"{where} is {form}, not {' '.join([*field.dims, field.dtype])}"
            else:
                for dim in field.dims:
                    if lengths.get(dim, len(scales[dim])) != len(scales[dim]):
                        return f"{where} has {len(scales[dim])} along {dim}, not {lengths[dim]}"
    return ""
