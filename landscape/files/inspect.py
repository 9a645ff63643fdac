"""Contents, missing parts and integrity of a file: `landscape info` and `landscape check`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from landscape.errors import FileError, NumericsError
from landscape.files import schema
from landscape.files.contents import known_attributes
from landscape.files.files import KINDS, as_path, open_file, output, run_file
from landscape.files.making import rewrite
from landscape.files.runs import RunReader
from landscape.files.table import TableReader
from landscape.files.writing import owner, sole_writer


@dataclasses.dataclass(frozen=True)
class TableState:
    """Rows of one table: capacity, labels of the committed ones, labels of those that fail their checksum."""

    group: str
    datasets: tuple[str, ...]
    room: int
    committed: tuple[int, ...]
    damaged: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class FileState:
    """The state of a file of any kind. writer: the process that is writing it, or empty."""

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
        """Whether the file is complete or diverged, and trimmed to its rows."""
        return self.status in ("complete", "diverged") and all(len(t.committed) == t.room for t in self.tables)

    @property
    def is_recorded(self) -> bool:
        """Of a run file: whether its checkpoints did not come from `landscape train`."""
        return self.config.get("kind") == schema.RECORDED

    @property
    def steps(self) -> tuple[int, ...]:
        """Stored checkpoints of a run file, steps that others measured."""
        main = schema.MAIN.values()
        return next(tuple(sorted(t.committed)) for t in self.tables if t.group in main)

    def holds(self, group: str) -> tuple[str, ...]:
        """The datasets of a group; empty without such a group."""
        return next((t.datasets for t in self.tables if t.group == group), ())


def inspect(path: Path) -> FileState:
    """Check every row, shape and attribute of a file. Raises FileError if it is not a file of landscape."""
    path = as_path(path)
    with contextlib.closing(open_file(path)) as file:
        file.require_described()
        writer = owner(output(path))
        tables = tuple(_state(table) for table in file.tables.values())
        for arrays in file.arrays.values():
            arrays.read()
        kind, attributes, config = file.kind, known_attributes(file.attrs), file.config
    damage = [
        f"{t.group}: {len(t.damaged)} of {len(t.committed) + len(t.damaged)} rows fail the checksum: {_list(t.damaged)}"
        for t in tables
        if t.damaged and t.group != "resume"
    ]
    notes = [] if kind == schema.RUN else list(_parent(attributes, path))
    if config.get("kind") == schema.RECORDED:
        notes += _not_finite(path)
    # An interruption can tear one slot; the other is then valid. A live writer may overwrite both while they are read.
    by_group = {t.group: t for t in tables}
    stored, resume = by_group.get("checkpoints"), by_group.get("resume")
    if stored and stored.committed and resume and not resume.committed and not writer:
        damage.append("resume: no valid slot, so that the run cannot be resumed")
    return FileState(
        path=str(path),
        kind=KINDS[kind],
        bytes=path.stat().st_size,
        status=str(attributes["status"]),
        writer=writer,
        attributes=attributes,
        config=config,
        tables=tables,
        damage=tuple(damage),
        notes=tuple(notes),
    )


def younger(state: FileState, tables: Iterable[schema.Table]) -> list[str]:
    """A note on datasets of these tables that are newer than the file, if any."""
    parameters = state.holds("checkpoints")
    absent = [
        field
        for table in tables
        if (held := state.holds(table.group))
        for field in table.fields
        if field.name not in held and (not field.needs or field.needs in parameters)
    ]
    return [f"no {', '.join(field.name for field in absent)}: younger than the file"] if absent else []


def repair(path: Path) -> Path | None:
    """Trim a file to its committed rows; returns the path of the kept original if rows were damaged.

    A file that was being written, or that loses damaged rows, is interrupted then. Raises FileError while another
    process is writing the file.
    """
    # Refuse foreign files before a lock is made beside them.
    inspect(path)
    path = output(path)
    with sole_writer(path):
        state = inspect(path)
        if state.finished and not state.damage:
            return None
        kept = path.with_name(path.name + ".damaged") if state.damage else None
        if kept is not None:
            _keep(path, kept)
        # Without rows that it had, a file is not what its command made.
        is_whole = state.status != "running" and not any(t.damaged for t in state.tables if t.group != "resume")
        rewrite(path, {"status": state.status if is_whole else "interrupted"})
    return kept


def _keep(path: Path, kept: Path) -> None:
    """Give a file a second name. Raises FileError if the name is taken."""
    try:
        kept.hardlink_to(path)
    except OSError as error:
        # A killed repair may have made the link already.
        if not kept.exists() or not kept.samefile(path):
            raise FileError(
                f"{kept} cannot be made: {error.strerror}",
                "move away what an earlier repair kept there, or copy the file to another folder first",
            ) from error


def _state(table: TableReader) -> TableState:
    return TableState(
        table.table.group,
        tuple(f.name for f in table.table.fields),
        table.stored["crc32"].shape[0],
        tuple(table.rows),
        tuple(table.damaged),
    )


def _parent(attributes: Mapping[str, Any], path: Path) -> Iterator[str]:
    """Notes on the run file of a measurement."""
    parent = run_file(path)
    if not parent.is_file() or parent == path:
        yield f"its run file ({attributes['parent_run_id']}) is not beside it"
        return
    try:
        with RunReader(parent) as run, contextlib.closing(open_file(path)) as file:
            table = file.tables[schema.MAIN[file.kind]]
            rows = {step: table.row(step) or {} for step in table.rows}
            records = {step: int(row.get("checkpoint_crc32", -1)) for step, row in rows.items()}
            wrong = run.disowns(file.attrs, records)
    except FileError as error:
        wrong = str(error)
    if wrong:
        yield wrong


def _not_finite(path: Path) -> Iterator[str]:
    """The checkpoints that no analysis takes, which `landscape train` never stores."""
    with RunReader(path) as run:
        for step in run.steps:
            try:
                run.checkpoint(step)
            except NumericsError as error:
                yield f"no finite parameters: {str(error).removeprefix(f'{path}: ')}"


def _list(labels: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, labels[:10]))
    return shown if len(labels) <= 10 else f"{shown}, and {len(labels) - 10} more"
