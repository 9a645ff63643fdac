"""Analyses step by step, over files of datasets: until measurements are datasets themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import xarray

from landscape.files import schema
from landscape.files.datasets import read_datasets, write_datasets
from landscape.files.files import as_path
from landscape.files.hdf5 import config_of
from landscape.files.rows import Row, no_step
from landscape.files.runs import RunReader
from landscape.results import Described

Rows = Mapping[str, Mapping[str, Any]]


class AnalysisWriter:
    """Holds the rows of an analysis, and writes its file whole when one is added or replaced."""

    def __init__(self, path: Path, kind: str, attrs: Mapping[str, Any], scales: schema.Scales) -> None:
        self.path, self._kind, self._attrs, self._scales = path, kind, dict(attrs), dict(scales)
        self._tables: list[schema.Table] = []
        self._rows: dict[str, dict[int, dict[str, Any]]] = {}
        self._arrays: dict[str, Mapping[str, Any]] = {}

    @classmethod
    def create(
        cls,
        path: Path,
        kind: str,
        attrs: Mapping[str, Any],
        rooms: Sequence[tuple[schema.Table, int]],
        scales: schema.Scales,
        arrays: Mapping[str, Mapping[str, Any]] | None = None,
        rows: Mapping[int, Mapping[str, Any]] | None = None,
        fsync: bool = False,
    ) -> Self:
        """A file with these rows of its root, by step."""
        writer = cls(path, kind, attrs, scales)
        writer._tables, writer._arrays = [table for table, _ in rooms], dict(arrays or {})
        writer._rows = {table.group: {} for table in writer._tables if table.row}
        writer._rows["/"] |= {step: dict(row) for step, row in (rows or {}).items()}
        writer._write()
        return writer

    @classmethod
    def extend(
        cls,
        path: Path,
        attrs: Mapping[str, Any],
        more: Mapping[str, int],
        tables: Sequence[schema.Table],
        scales: schema.Scales,
        rows: Mapping[int, Rows] | None = None,
        fsync: bool = False,
    ) -> Self:
        """A file with the rows that it has, in tables and along axes that may have become more."""
        held, groups = read_datasets(path)
        old = HessianReader(path)
        kind = held.pop("schema")
        writer = cls(path, kind, {**held, **attrs}, {**old.scales, **scales})
        wanted = {table.group: table for table in (*old.layout.values(), *tables)}
        for group, table in wanted.items():
            names = {field.name for field in table.fields}
            kept = [f for f in (old.layout[group].fields if group in old.layout else ()) if f.name not in names]
            wanted[group] = schema.Table(group, table.row, (*table.fields, *kept), table.newest)
        writer._tables = list(wanted.values())
        for table in writer._tables:
            data = groups.get(table.group, xarray.Dataset())
            labels = data[table.row].values.tolist() if table.row in data.variables else []
            labels = labels if table.group in groups or table.row != schema.STEP else old.steps
            writer._rows[table.group] = {
                label: _fitted(table, data.isel({table.row: i}) if labels and data else data, writer._scales)
                for i, label in enumerate(labels)
            }
            for label in labels:
                writer._rows[table.group][label] |= (rows or {}).get(label, {}).get(table.group, {})
        writer._write()
        return writer

    @property
    def steps(self) -> list[int]:
        """Steps committed so far."""
        return list(self._rows["/"])

    def append(self, step: int, rows: Rows) -> None:
        """Commit the rows of a step."""
        for table in self._tables:
            if table.row == schema.STEP:
                self._rows[table.group][step] = {f.name: rows[table.group][f.name] for f in table.fields}
        self._write()

    replace = append

    def save(self, state: Mapping[str, Any]) -> None:
        """Commit the state of a search."""
        (table,) = (table for table in self._tables if table.newest)
        self._rows[table.group] = {0: {f.name: state[f.name] for f in table.fields}}
        self._write()

    def finish(self, status: str) -> None:
        """Set the status."""
        self._attrs["status"] = status
        self._write()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _write(self) -> None:
        attrs = {n: v for n, v in self._attrs.items() if n != "schema_version"}
        write_datasets(self.path, self._kind, attrs, {table.group: self._data(table) for table in self._tables})

    def _data(self, table: schema.Table) -> xarray.Dataset:
        if not table.row:
            arrays = self._arrays[table.group]
            return xarray.Dataset(
                {f.name: (f.dims, np.asarray(arrays[f.name], f.dtype), f.description) for f in table.fields}
            )
        rows = dict(sorted(self._rows[table.group].items()))
        variables = {}
        for f in table.fields:
            shape = [len(self._scales[dim]) for dim in f.dims]
            values = np.array([rows[label][f.name] for label in rows], f.dtype).reshape(len(rows), *shape)
            variables[f.name] = (table.axes(f), values, f.description)
        coords = {dim: list(self._scales[dim]) for f in table.fields for dim in f.dims}
        return xarray.Dataset(variables, {table.row: np.array(list(rows), "i8"), **coords})


def _fitted(table: schema.Table, row: xarray.Dataset, scales: schema.Scales) -> dict[str, Any]:
    """A row with all datasets and labels of a table; missing values are NaN, UNKNOWN, or 0 for codes."""
    fitted = {}
    for f in table.fields:
        missing = math.nan if f.dtype.startswith("f") else schema.UNKNOWN if f.dtype in ("i4", "i8") else 0
        if f.name in row.data_vars:
            labels = {dim: list(scales[dim]) for dim in f.dims}
            fitted[f.name] = row[f.name].reindex(labels, fill_value=missing).values if labels else row[f.name].values
        else:
            fitted[f.name] = np.full([len(scales[dim]) for dim in f.dims], missing, f.dtype)
    return fitted


class HessianReader(Described):
    """A Hessian file in memory, a row a step."""

    def __init__(self, path: Path | str) -> None:
        """Raises FileError for files that are missing, broken, foreign or of another version."""
        self.path = as_path(path)
        self.attrs, self._groups = read_datasets(self.path, schema.HESSIAN)
        self.config = config_of(self.path, self.attrs)
        root = self._groups["/"]
        self.scales: dict[str, Any] = {}
        self.layout: dict[str, schema.Table] = {}
        for group, data in self._groups.items():
            row = "resume_slot" if "resume_slot" in data.dims else schema.STEP
            fields = [
                schema.Field(
                    str(name),
                    tuple(map(str, v.dims[1:])),
                    v.dtype.str[1:],
                    **{key: str(v.attrs.get(key, "")) for key in ("long_name", "units", "formula")},
                    attrs={k: value for k, value in v.attrs.items() if k not in ("long_name", "units", "formula")},
                )
                for name, v in data.data_vars.items()
            ]
            self.layout[group] = schema.Table(group, row, tuple(fields), "iterations" if row != schema.STEP else "")
            for axis in set(data.dims) - {row}:
                values = data[axis].values
                self.scales[str(axis)] = values.tolist() if values.dtype.kind == "U" else range(len(values))
        self.blocks, self.pairs, self.parts = (
            [str(name) for name in self.scales.get(axis, ())] for axis in ("block", "pair", "part")
        )
        self.steps = [int(step) for step in root[schema.STEP].values]
        self.damage = ""
        self._rows: dict[str, dict[int, dict[str, Any]]] = {}
        for group, data in self._groups.items():
            columns = {str(name): values.values for name, values in data.data_vars.items()}
            labels = data[self.layout[group].row].values.tolist()
            self._rows[group] = {
                label: Row(self.path, {name: values[i] for name, values in columns.items()})
                for i, label in enumerate(labels)
            }
        self.search: dict[str, Any] = next(iter(self._rows.get("resume", {}).values()), {})
        """The state of the search for a critical point; empty without one."""

    def facts(self) -> Iterator[tuple[str, object]]:
        """Path, status, analysed steps, blocks and pairs."""
        yield from {"path": self.path, "status": self.attrs["status"], "steps": np.array(self.steps)}.items()
        yield from {"blocks": "; ".join(self.blocks), "pairs": "; ".join(self.pairs)}.items()

    @property
    def is_refined(self) -> bool:
        """Whether the file holds a critical point instead of checkpoints."""
        return "critical_point" in self._groups

    def row(self, step: int) -> dict[str, Any]:
        """Every dataset at one step, without its step axis. Raises StepError, as all methods of a step."""
        return self._at("/", step)

    def rows(self, step: int) -> dict[str, dict[str, Any]]:
        """The rows of all groups at one step, including eigenvectors."""
        return {group: self._at(group, step) for group, table in self.layout.items() if table.row == schema.STEP}

    def measured(self, step: int) -> list[str]:
        """The blocks measured at a step; fewer than all while an analysis adds blocks."""
        norms = self.row(step)["operator_norm"]
        return [block for block, norm in zip(self.blocks, norms, strict=True) if not np.isnan(norm)]

    def previous(self, step: int) -> int:
        """The step from which a step was tracked; -1: none."""
        row = self.row(step)
        return int(row.get("previous_step", max((s for s in self.steps if s < step), default=-1)))

    def spectra(self, step: int) -> dict[str, Any]:
        """All eigenvalues of each dense block at one step, ascending."""
        return self._at("spectrum", step)

    def densities(self, step: int) -> dict[str, Any]:
        """The spectral densities at one step, with their grid `eigenvalue`, `width` and errors."""
        return self._at("density", step)

    def critical_point(self, step: int) -> dict[str, Any]:
        """The refined point of a step and how it was found; empty for a plain checkpoint."""
        return self._at("critical_point", step) if self.is_refined else {}

    def mismatch(self, run: RunReader) -> str:
        """Why this file does not belong to a run file; empty if it does."""
        records = {step: int(self.row(step).get("checkpoint_crc32", -1)) for step in self.steps}
        return run.disowns(self.attrs, records)

    def converged(self, step: int, block: int | None = None) -> bool:
        """Whether every eigenvalue of a block (default: of all blocks) converged at a step."""
        row, at = self.row(step), slice(None) if block is None else block
        values: np.ndarray[Any, Any] = row["eigenvalues"][at]
        return bool(row["converged"][at][~np.isnan(values)].all())

    def _at(self, group: str, step: int) -> dict[str, Any]:
        if step not in self._rows[group]:
            raise no_step(self.path, "", step, self.steps)
        return self._rows[group][step]
