"""Contents, missing parts and integrity of a file: `landscape info` and `landscape check`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xarray

from landscape.errors import FileError, NumericsError
from landscape.files import schema
from landscape.files.files import as_path, output, run_file
from landscape.files.hdf5 import KINDS, REMEASURE
from landscape.files.runs import RunReader
from landscape.files.views import File
from landscape.files.writer import Writer
from landscape.files.writing import is_written, sole_writer


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
    """The state of a file of any kind. writer: "another process" while one is writing it, or empty."""

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
        return self.status in ("complete", "diverged") and not any(
            len(t.committed) < t.room for t in self.tables if t.group != "resume"
        )

    @property
    def is_recorded(self) -> bool:
        """Of a run file: whether its checkpoints did not come from `landscape train`."""
        return self.config.get("kind") == schema.RECORDED

    @property
    def steps(self) -> tuple[int, ...]:
        """Stored checkpoints of a run file, steps that others measured."""
        return next((tuple(sorted(t.committed)) for t in self.tables if t.group in (schema.MAIN, "/")), ())

    def holds(self, group: str) -> tuple[str, ...]:
        """The datasets of a group; empty without such a group."""
        return next((t.datasets for t in self.tables if t.group == group), ())


def inspect(path: Path) -> FileState:
    """Check every row and group of a file. Raises FileError if it is not a file of landscape."""
    path = as_path(path)
    writer = "another process" if is_written(output(path)) else ""
    with File(path) as file:
        kind, attributes, config = file.kind, file.attrs, file.config
        state = _of_run(path, writer) if kind == "run" else _of_analysis(file)
    return FileState(
        path=str(path),
        kind=KINDS[f"landscape.{kind}"],
        bytes=path.stat().st_size,
        status=str(attributes["status"]),
        writer=writer,
        attributes=attributes,
        config=config,
        tables=state[0],
        damage=tuple(state[1]),
        notes=tuple(state[2]),
    )


def repair(path: Path) -> Path | None:
    """Trim a run file to its committed rows; returns the path of the kept original if rows were damaged.

    A file that was being written, or that loses damaged rows, is interrupted then. Raises FileError while another
    process is writing the file, and for a damaged analysis, of which nothing is left to keep.
    """
    # Refuse foreign files before a lock is made beside them.
    inspect(path)
    path = output(path)
    with sole_writer(path):
        state = inspect(path)
        if state.kind != KINDS[schema.RUN]:
            if state.damage:
                raise FileError(f"{path}: {state.damage[0]}", REMEASURE)
            return None
        if state.finished and not state.damage:
            return None
        kept = path.with_name(path.name + ".damaged") if state.damage else None
        if kept is not None:
            _keep(path, kept)
        # Without rows that it had, a file is not what its command made.
        is_whole = state.status != "running" and not any(t.damaged for t in state.tables if t.group != "resume")
        Writer.extend(path, {"status": state.status if is_whole else "interrupted"}, {}).close()
    return kept


def _of_run(path: Path, writer: str) -> tuple[tuple[TableState, ...], list[str], list[str]]:
    with RunReader(path) as run:
        tables = tuple(
            TableState(t.group, tuple(t.data)[1:], t.room, tuple(t.rows), tuple(t.damaged)) for t in run.tables.values()
        )
        damage = [
            f"{t.group}: {len(t.damaged)} of {len(t.committed) + len(t.damaged)} rows fail the checksum: "
            f"{_list(t.damaged)}"
            for t in tables
            if t.damaged and t.group != "resume"
        ]
        for group in run.groups:
            if group not in run.tables:
                run.arrays(group)
        # An interruption can tear one slot; the other is then valid. A live writer may overwrite both meanwhile.
        slots = run.tables.get("resume")
        if run.tables[schema.MAIN].rows and slots and not slots.rows and not writer:
            damage.append("resume: no valid slot, so that the run cannot be resumed")
        return tables, damage, list(_not_finite(run)) if run.is_recorded else []


def _of_analysis(file: File) -> tuple[tuple[TableState, ...], list[str], list[str]]:
    tables, damage = [], []
    root: xarray.Dataset | None = None
    for group in file.groups:
        try:
            data = file.to_xarray(group)
        except FileError as error:
            damage.append(str(error).removeprefix(f"{file.path}: "))
            continue
        root = data if group == "/" else root
        if schema.STEP in data.dims:
            steps = tuple(map(int, data[schema.STEP].values))
            tables.append(TableState(group, tuple(map(str, data.data_vars)), len(steps), steps, ()))
    return tuple(tables), damage, list(_parent(file, root))


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


def _parent(file: File, root: xarray.Dataset | None) -> Iterator[str]:
    """Notes on the run file of a measurement."""
    parent = run_file(file.path)
    if not parent.is_file() or parent == file.path:
        yield f"its run file ({file.attrs['parent_run_id']}) is not beside it"
    elif root is not None:
        try:
            with RunReader(parent) as run:
                known = root["checkpoint_crc32"].dropna(schema.STEP)
                records = dict(zip(known[schema.STEP].values.tolist(), known.values.astype(int).tolist(), strict=True))
                wrong = run.disowns(file.attrs, records)
        except FileError as error:
            wrong = str(error)
        if wrong:
            yield wrong


def _not_finite(run: RunReader) -> Iterator[str]:
    """The checkpoints that no analysis takes, which `landscape train` never stores."""
    for step in run.steps:
        try:
            run.checkpoint(step)
        except NumericsError as error:
            yield f"no finite parameters: {str(error).removeprefix(f'{run.path}: ')}"


def _list(labels: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, labels[:10]))
    return shown if len(labels) <= 10 else f"{shown}, and {len(labels) - 10} more"
