"""A file's committed rows in a new file, trimmed or with room for more, put in its place at once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from landscape.storage import schema
from landscape.storage.files import file_schema, open_file
from landscape.storage.making import new_file
from landscape.storage.writing import Disk, TableWriter


def rewrite(path: Path, attrs: Mapping[str, Any], more: Mapping[str, int] | None = None) -> None:
    """Replace a file by one of its committed rows, with `attrs` set, and room for `more` rows by group.

    Rows of a checkpoint (or of an analysed step) that some table does not hold whole are left out, and so is whatever
    the schema does not name.
    """
    kind = file_schema(path) or schema.RUN
    with contextlib.closing(open_file(path, kind)) as old:
        tables = old.tables
        by_step = [table.rows for table in tables.values() if table.table.row == "step"]
        whole = set(by_step[0]).intersection(*by_step)
        labels, rooms, scales = {}, [], dict(old.scales)
        for group, table in tables.items():
            labels[group] = [n for n in table.rows if table.table.row != "step" or n in whole]
            rooms.append((table.table, 2 if group == "resume" else len(labels[group]) + (more or {}).get(group, 0)))
            for field in table.table.fields:
                for dim, n in zip(field.dims, table.stored[field.name].shape[1:], strict=True):
                    scales.setdefault(dim, range(n))
        data = old.samples() if kind == schema.RUN else {}
        scales |= {dim: range(old.lengths[dim]) for field in schema.DATA for dim in field.dims if data}
        dtype = tables["checkpoints"].stored["W"].dtype.str[1:] if kind == schema.RUN else "f8"
        with (
            new_file(path, kind, {**old.attrs, **attrs}, rooms, scales, dtype, data) as (temporary, new),
            Disk(temporary) as disk,
        ):
            for group, table in new.tables.items():
                writer = TableWriter(table, disk)
                for index, label in enumerate(labels[group]):
                    # Resume slots keep their places: which one is older decides which is replaced.
                    writer.write(label if group == "resume" else index, label, tables[group].row(label) or {})
