"""What a file holds, what it lacks, and whether it is whole: `landscape info` and `landscape check`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import h5py

from landscape.errors import FileError
from landscape.storage import schema
from landscape.storage.files import file_schema, open_file, sha256
from landscape.storage.rewrite import rewrite, table_groups
from landscape.storage.table import read_row, written_rows
from landscape.storage.writing import owner, sole_writer

KINDS = {schema.RUN: "run file", schema.HESSIAN: "Hessian file"}


@dataclasses.dataclass(frozen=True)
class TableState:
    """Rows of one table: their number, labels of the committed ones, labels of those that fail their record."""

    group: str
    datasets: tuple[str, ...]
    room: int
    committed: tuple[int, ...]
    damaged: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class FileState:
    """A file of either kind, looked at as a whole. writer: who writes it now, empty if nobody does."""

    path: str
    kind: str
    bytes: int
    status: str
    writer: str
    attributes: dict[str, Any]
    config: dict[str, Any]
    tables: tuple[TableState, ...]
    damage: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Complete, without room for rows that were never written."""
        return self.status == "complete" and all(len(t.committed) == t.room for t in self.tables)

    @property
    def steps(self) -> tuple[int, ...]:
        """Stored checkpoints of a run file, analysed steps of a Hessian file."""
        main = {"checkpoints", "/"}
        return next(tuple(sorted(t.committed)) for t in self.tables if t.group in main)


def inspect(path: Path) -> FileState:
    """Look at every commit record, shape and attribute of a file. Raises FileError if it is no file of ours."""
    kind = file_schema(path) or "none"
    # A file of another program is refused in the words of open_file.
    with open_file(path, kind if kind in KINDS else schema.RUN) as file:
        tables = tuple(_state(file, group, row) for group, row in table_groups(file).items())
        attributes = dict(file.attrs)
        config = json.loads(attributes["config"])
        lacks = _lacks_of_run(file, config) if kind == schema.RUN else _lacks_of_hessian(file, path, attributes)
    damage = [
        f"{t.group}: {len(t.damaged)} of {len(t.committed) + len(t.damaged)} rows fail the checksum: {_list(t.damaged)}"
        for t in tables
        if t.damaged and t.group != "resume"
    ]
    # A torn slot is the mark of an interruption; the other one is then in force.
    by_group = {t.group: t for t in tables}
    if kind == schema.RUN and by_group["checkpoints"].committed and not by_group["resume"].committed:
        damage.append("resume: no valid slot, so that the run cannot be gone on with")
    return FileState(
        path=str(path),
        kind=KINDS[kind],
        bytes=path.stat().st_size,
        status=str(attributes["status"]),
        writer=owner(path),
        attributes=attributes,
        config=config,
        tables=tables,
        damage=tuple(damage),
        notes=tuple(lacks),
    )


def repair(path: Path) -> Path | None:
    """Trim a file to its committed rows, in place; returns where the file as it was is kept, if rows were damaged.

    Raises FileError while another process writes it.
    """
    state = inspect(path)
    with sole_writer(path):
        kept = path.with_name(path.name + ".damaged") if state.damage else None
        if kept is not None:
            if kept.exists():
                raise FileError(f"{kept} exists", "move it away first: it is what an earlier repair kept")
            kept.hardlink_to(path)
        status = "interrupted" if state.status == "running" else state.status
        rewrite(path, {"status": status})
    return kept


def _state(file: h5py.File, group: str, row: str) -> TableState:
    table = file[group]
    whole = {i: read_row(table, row, i) is not None for i in written_rows(table)}
    labels = table[row][()]
    return TableState(
        group,
        tuple(str(table["crc32"].attrs["fields"]).split()),
        len(labels),
        tuple(int(labels[i]) for i, good in whole.items() if good),
        tuple(int(labels[i]) for i, good in whole.items() if not good),
    )


def _lacks_of_run(file: h5py.File, config: dict[str, Any]) -> list[str]:
    absent = [f.name for f in schema.PARAMETERS if f.name not in file["checkpoints"]]
    lacks = [f"no {', '.join(absent)}: model {config['model']}, bias {config['bias']}"] if absent else []
    if "moments" not in file:
        lacks.append(f"no second moments: optimizer {config['optimizer']}")
    return lacks


def _lacks_of_hessian(file: h5py.File, path: Path, attributes: dict[str, Any]) -> list[str]:
    blocks = [x.decode() for x in file["block"][()]]
    partial = [b for b in blocks if b not in file["spectrum"]]
    lacks = [f"no full spectrum of {', '.join(partial)}: too large for dense_limit"] if partial else []
    if "eigenvectors" not in file:
        lacks.append("no eigenvectors: --eigenvectors stores them")
    parent = path.with_name(path.name.split(".")[0] + ".h5")
    if not parent.exists() or parent == path:
        lacks.append(f"its run file ({attributes['parent_run_id']}) is not beside it")
    elif sha256(parent) != attributes["parent_sha256"]:
        lacks.append(f"{parent} is not as it was when this file was made from it")
    return lacks


def _list(labels: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, labels[:10]))
    return shown if len(labels) <= 10 else f"{shown}, and {len(labels) - 10} more"
