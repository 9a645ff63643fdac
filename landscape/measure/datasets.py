"""Measurements as xarray datasets by group of their file: made and put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray

from landscape.files.schema import STEP, UNKNOWN, Field, Scales, Table

Datasets = dict[str, xarray.Dataset]
"""One dataset a group; "/" is the root. Counts are integers, unmasked."""
Row = Mapping[str, Any]


def dataset(table: Table, scales: Scales, values: Row) -> xarray.Dataset:
    """One row of a table, without its row axis: values by the names of its fields; those without one are missing."""
    variables = {}
    for field in table.fields:
        value = np.asarray(values[field.name], field.dtype) if field.name in values else missing(field, scales)
        variables[field.name] = (field.dims, value, field.description)
    return xarray.Dataset(variables, _labels(table, scales))


def blank(tables: Sequence[Table], scales: Scales) -> Datasets:
    """All tables without any step."""
    return {t.group: dataset(t, scales, {}).expand_dims({STEP: np.array([], np.int64)}) for t in tables}


def missing(field: Field, scales: Scales) -> np.ndarray[Any, Any]:
    """A field of one row without anything: NaN, an unknown count, or the first of some codes."""
    return np.full([len(scales[dim]) for dim in field.dims], _nothing(field), field.dtype)


def put(stored: Datasets, step: int, rows: Datasets) -> Datasets:
    """Stored datasets with the rows of one step, in the place of others of that step."""
    updated = dict(stored)
    for group, row in rows.items():
        others = stored[group].drop_sel({STEP: step}, errors="ignore")
        both = xarray.concat([others, row.expand_dims({STEP: np.array([step], np.int64)})], STEP, data_vars="all")
        updated[group] = both.sortby(STEP)
    return updated


def at(stored: Datasets, step: int) -> Datasets:
    """The rows of one step."""
    return {group: data.sel({STEP: step}, drop=True) for group, data in stored.items() if STEP in data.dims}


def _nothing(field: Field) -> Any:
    flags: Any = field.attrs.get("flag_values")
    return np.nan if field.dtype == "f8" else flags[0] if flags else UNKNOWN if "_FillValue" in field.attrs else 0


def _labels(table: Table, scales: Scales) -> dict[str, np.ndarray[Any, Any]]:
    """The words or numbers that label axes of a table; others count from 0."""
    dims = {dim for field in table.fields for dim in field.dims}
    known = {dim: x for dim, x in scales.items() if dim in dims and isinstance(x, list)}
    return {dim: np.array(x, float if x and isinstance(x[0], float) else str) for dim, x in known.items()}
