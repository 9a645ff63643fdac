"""The Hessian file: one row a step, appended as the analysis goes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from landscape.storage import schema, schema_hessian
from landscape.storage.contents import Contents, hessian_scales
from landscape.storage.files import as_path, open_file, sha256
from landscape.storage.making import new_file
from landscape.storage.rewrite import rewrite
from landscape.storage.runs import RunReader
from landscape.storage.table import Scales, listed
from landscape.storage.writing import Disk, TableWriter

GROUPS = ("spectrum", "density", "eigenvectors", "critical_point", "/")
SEARCH = schema_hessian.SEARCH.group
SHARE = 0.05
"""Part of the time that may go into writing the file anew for rows that replace others."""
Arrays = dict[str, np.ndarray[Any, Any]]
Rows = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a Hessian file has room for: parameters by block, blocks with full spectra, points of a density."""

    sizes: Mapping[str, int]
    full: tuple[str, ...]
    density_points: int
    k: int
    eigenvectors: bool
    axes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Lengths of the parameters' axes, where a refined point is stored."""
    parameters: tuple[str, ...] = ()

    @property
    def tables(self) -> list[schema.Table]:
        """The tables of the file."""
        tables = [
            schema_hessian.ROOT,
            schema_hessian.spectrum_table(self.full),
            schema_hessian.density_table(tuple(self.sizes)),
        ]
        if self.eigenvectors:
            tables.append(schema_hessian.vectors_table(tuple(self.sizes)))
        if self.parameters:
            tables += [schema_hessian.CRITICAL.present(self.parameters), schema_hessian.SEARCH.present(self.parameters)]
        return tables

    @property
    def scales(self) -> dict[str, Any]:
        """The labels of all axes but the rows'."""
        return {
            **hessian_scales(self.sizes, self.k),
            "density_point": range(self.density_points),
            **{axis: range(n) for axis, n in self.axes.items()},
        }


class HessianWriter(Disk):
    """Appends analysed steps to a Hessian file; each survives the process once `append` returns."""

    def __init__(
        self, path: Path, attrs: Mapping[str, Any], steps: int, layout: Layout, fsync: bool = False, grow: bool = False
    ) -> None:
        """Allocate a file for `steps` steps. grow: with all that it holds; what was not measured is NaN or -1."""
        self._made = attrs, steps, layout
        self._replaced: dict[int, Rows] = {}
        self._slot = 0
        self._flushed, self._cost = time.monotonic(), 0.0
        self._write(path, grow)
        super().__init__(path, fsync)
        self._open()

    @property
    def steps(self) -> list[int]:
        """Steps committed so far."""
        return self._tables["/"].labels

    def append(self, step: int, rows: Rows) -> None:
        """Commit one step: a row for each group, "/" the last."""
        for group, table in self._tables.items():
            if group != "/":
                # Over one that a killed analysis left without its row in the root.
                table.write(len(self.steps), step, rows[group])
        self._tables["/"].append(step, rows["/"])

    def replace(self, step: int, rows: Rows) -> None:
        """Put new rows in the place of a step's, which stand until `flush` has returned."""
        self._replaced[step] = rows
        if SHARE * (time.monotonic() - self._flushed) >= self._cost:
            self.flush()

    def flush(self) -> None:
        """Commit the rows that replace others, all at once: the file is written anew."""
        if self._replaced:
            started = time.monotonic()
            self.close()
            self._write(self.path, grow=True)
            self._handle = os.open(self.path, os.O_RDWR)
            self._open()
            self._replaced = {}
            self._flushed = time.monotonic()
            self._cost = self._flushed - started

    def save_search(self, state: Mapping[str, Any]) -> None:
        """Commit where a search stands, in the place of the older of two such states."""
        self._search.write(self._slot, self._slot, state)
        self._slot = 1 - self._slot

    def finish(self) -> None:
        """Trim the file to its committed rows and mark it complete."""
        self.flush()
        self.close()
        rewrite(self.path, {"status": "complete"})

    def _open(self) -> None:
        with contextlib.closing(open_file(self.path, schema.HESSIAN)) as file:
            self._tables = {group: TableWriter(file.tables[group], self) for group in GROUPS if group in file.tables}
            if (search := file.tables.get(SEARCH)) is not None:
                self._search = TableWriter(search, self)
                # A slot that is empty or torn, else the older one.
                tried = [-1 if (row := search.row(slot)) is None else int(row["iterations"]) for slot in (0, 1)]
                self._slot = int(np.argmin(tried))

    def _write(self, path: Path, grow: bool) -> None:
        attrs, steps, layout = self._made
        tables, scales = layout.tables, layout.scales
        rooms = [(table, 2 if table.group == SEARCH else steps) for table in tables]
        with contextlib.ExitStack() as stack:
            old = stack.enter_context(contextlib.closing(open_file(path, schema.HESSIAN))) if grow else None
            temporary, new = stack.enter_context(new_file(path, schema.HESSIAN, attrs, rooms, scales))
            if old is not None:
                disk = stack.enter_context(Disk(temporary))
                writers = {group: TableWriter(table, disk) for group, table in new.tables.items()}
                for group, index, label, row in self._kept(old, tables, scales):
                    writers[group].write(index, label, row)

    def _kept(
        self, old: Contents, tables: Sequence[schema.Table], scales: Scales
    ) -> Iterator[tuple[str, int, int, Mapping[str, Any]]]:
        """Group, index, label and values of every row that a file has for its successor."""
        before = -1
        for index, step in enumerate(old.tables["/"].rows):
            for table in tables:
                if table.row != "step":
                    continue
                row = old.tables[table.group].row(step) or {}
                if table.group == "/" and "previous_step" not in row:
                    row["previous_step"] = before
                new = self._replaced.get(step, {}).get(table.group)
                yield table.group, index, step, new or _padded(table, row, old.scales["block"], scales)
            before = step
        if SEARCH in old.tables:
            for slot in old.tables[SEARCH].rows:
                yield SEARCH, slot, slot, old.tables[SEARCH].row(slot) or {}


def _padded(table: schema.Table, row: Mapping[str, Any], blocks: Sequence[str], scales: Scales) -> dict[str, Any]:
    """A row with all datasets of a table and all blocks of its axes; what it lacks is NaN, -1, or 0 among codes."""
    padded = {}
    for field in table.fields:
        fill = np.nan if field.dtype in ("f8", schema.PARAM) else 0 if field.dtype == "i1" else -1
        values = np.full([len(scales[dim]) for dim in field.dims], fill, "f8" if fill is np.nan else field.dtype)
        if field.name in row:
            at = [
                [list(scales[dim]).index(block) for block in blocks] if dim in ("block", "other_block") else range(n)
                for dim, n in zip(field.dims, values.shape, strict=True)
            ]
            values[np.ix_(*at) if at else ()] = row[field.name]
        padded[field.name] = values
    return padded


class HessianReader:
    """A Hessian file's committed rows, in memory."""

    def __init__(self, path: Path | str) -> None:
        """Raises FileError for what is missing, broken, of another schema, too new or not as `landscape` writes it."""
        self.path = as_path(path)
        with contextlib.closing(open_file(self.path, schema.HESSIAN)) as file:
            self.attrs, self.config = file.attrs, file.config
            self.blocks, self.pairs, self.parts = (file.scales[axis] for axis in ("block", "pair", "part"))
            served = {group: table for group, table in file.tables.items() if group not in ("eigenvectors", SEARCH)}
            root, *beside = served.values()
            steps = {step for step in root.rows if all(step in table.rows for table in beside)}
            self.steps = sorted(steps)
            self.damage = listed(sorted({*root.damaged, *root.rows} - steps))
            """The rows that fail their checksums, by the step that they name; empty if none does."""
            self._rows = {group: {s: table.row(s) or {} for s in self.steps} for group, table in served.items()}
            slots = (
                [file.tables[SEARCH].row(slot) for slot in file.tables[SEARCH].rows] if SEARCH in file.tables else []
            )
            found = [slot for slot in slots if slot is not None]
            self.search: dict[str, Any] = max(found, key=lambda slot: int(slot["iterations"]), default={})
            """Where the search for a critical point stands; empty for a file without one."""

    @property
    def is_refined(self) -> bool:
        """Whether the file is of a critical point and not of checkpoints."""
        return "critical_point" in self._rows

    def row(self, step: int) -> dict[str, Any]:
        """Every dataset at one step, without its step axis."""
        return self._rows["/"][step]

    def rows(self, step: int) -> dict[str, dict[str, Any]]:
        """The rows of all groups at one step, eigenvectors among them."""
        with contextlib.closing(open_file(self.path, schema.HESSIAN)) as file:
            return {group: table.row(step) or {} for group, table in file.tables.items() if group != SEARCH}

    def measured(self, step: int) -> list[str]:
        """The blocks that were measured at a step: all, unless an analysis that adds blocks is not finished."""
        norms = self.row(step)["operator_norm"]
        return [block for block, norm in zip(self.blocks, norms, strict=True) if not np.isnan(norm)]

    def previous(self, step: int) -> int:
        """The step that the tracking of a step's row refers to; -1: none."""
        earlier = max((s for s in self.steps if s < step), default=-1)
        return int(self.row(step).get("previous_step", earlier))

    def spectra(self, step: int) -> dict[str, Any]:
        """All eigenvalues of each dense block at one step, ascending."""
        return self._rows["spectrum"][step]

    def densities(self, step: int) -> dict[str, Any]:
        """The spectral densities at one step, with their grid `eigenvalue`, `width` and errors."""
        return self._rows["density"][step]

    def critical_point(self, step: int) -> dict[str, Any]:
        """The refined point of a step and how it was found; empty for a plain checkpoint."""
        return self._rows["critical_point"][step] if "critical_point" in self._rows else {}

    def mismatch(self, run: RunReader) -> str:
        """Why this file is not of a run as its file stands now; empty if it is.

        The run may have gone on since: its id and the commit records of the analysed checkpoints tell. Files that are
        too old to hold those records have the SHA-256 of the whole run file.
        """
        if (theirs := self.attrs["parent_run_id"]) != (ours := run.attrs["run_id"]):
            return f"it is of run {theirs}, but {run.path} is run {ours}"
        records = {step: int(self.row(step).get("checkpoint_crc32", -1)) for step in self.steps}
        for step, record in records.items():
            if record >= 0 and step in run.steps and record != run.record(step):
                return f"step {step} was measured at another checkpoint than {run.path} holds"
        if -1 in records.values() and self.attrs["parent_sha256"] != sha256(run.path):
            return f"{run.path} has changed since, and the file is too old to tell which checkpoints it is of"
        return ""

    def converged(self, step: int, block: int | None = None) -> bool:
        """Whether every eigenvalue of a block (default: of all blocks) converged at a step."""
        row, at = self.row(step), slice(None) if block is None else block
        values: np.ndarray[Any, Any] = row["eigenvalues"][at]
        return bool(row["converged"][at][~np.isnan(values)].all())
