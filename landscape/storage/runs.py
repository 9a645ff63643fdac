"""The run file: written once by the trainer, read by everybody."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from landscape.errors import FileError, NumericsError, StepError
from landscape.storage import schema
from landscape.storage.contents import write_attributes
from landscape.storage.files import open_file, open_for_writing, temporary_file
from landscape.storage.guard import crc32_of_arrays
from landscape.storage.table import Scales, TableWriter, add_dataset, create_table

Arrays = dict[str, np.ndarray[Any, Any]]
MEMORISED, GROKKED = 0.99, 0.95
"""Training accuracy of the memorise step, test accuracy of the grok step."""


class RunWriter:
    """Appends to a run file that `create` made; every call returns only once its row is committed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_for_writing(path)
        tables = (t for t in schema.RUN_TABLES if t.group in self._file)
        self._tables = {t.group: TableWriter(self._file[t.group], t.row) for t in tables}

    @classmethod
    def create(
        cls,
        path: Path,
        attrs: Mapping[str, Any],
        data: Arrays,
        scales: Scales,
        parameters: tuple[str, ...],
        dtype: str,
        capacity: Mapping[str, int],
    ) -> RunWriter:
        """Allocate a file for `capacity` rows of each table, without those not named, then move it into place."""
        attrs = {"run_id": uuid.uuid4().hex, **attrs}
        with _new_file(path, attrs, data, scales, parameters, dtype, capacity):
            pass
        return cls(path)

    @classmethod
    def extend(cls, path: Path, attrs: Mapping[str, Any], capacity: Mapping[str, int]) -> RunWriter:
        """Reopen an unfinished or shorter run with room for `capacity` rows in all."""
        _rewrite(path, attrs, capacity)
        return cls(path)

    def checkpoint(self, step: int, parameters: Arrays, **beside: Arrays) -> None:
        """Commit a checkpoint after its rows in the tables `beside` it; a step already stored is left as it is."""
        steps = self._file["checkpoints/step"][: self._tables["checkpoints"].size]
        if step not in steps:
            for group, values in beside.items():
                if group in self._tables and self._tables[group].size == len(steps):
                    self._tables[group].append(step, values)
            self._tables["checkpoints"].append(step, parameters)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Commit a row of metrics; a step already stored is left as it is."""
        table = self._tables["metrics"]
        if step not in self._file["metrics/metric_step"][: table.size]:
            table.append(step, values)

    def save_resume(self, state: Mapping[str, Any]) -> None:
        """Replace the older resume slot."""
        group = self._file["resume"]
        age = np.where(group["crc32"][()] > 0, group["step"][()], -1)
        slot = int(age.argmin())
        self._tables["resume"].write(slot, slot, state)

    def finish(self, status: str) -> None:
        """Trim the file to its committed rows and set its status."""
        self.close()
        _rewrite(self.path, {"status": status}, {})

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RunReader:
    """A run file, opened beside a live writer too; only committed rows are served."""

    def __init__(self, path: Path | str) -> None:
        """Raises FileError for what is missing, broken, of another schema, too new or not as `landscape` writes it."""
        self.path = Path(path)
        self._file = open_file(self.path, schema.RUN)
        self.attrs, self.config = self._file.attrs, self._file.config
        self.tables, self.lengths = self._file.tables, self._file.lengths
        self._beside = [t for t in (schema.TOKENS.group, schema.MOMENTS.group) if t in self.tables]

    @functools.cached_property
    def steps(self) -> list[int]:
        """Stored steps, ascending, of which every row matches its record."""
        rows = [self.tables[group].rows for group in ("checkpoints", *self._beside)]
        return [step for step in rows[0] if all(step in others for others in rows)]

    @functools.cached_property
    def damage(self) -> str:
        """The rows that fail their checksums, by table and by the step that they name; empty if none does."""
        found = {t.group: self.tables[t.group].damaged for t in schema.RUN_TABLES[:-1] if t.group in self.tables}
        for group in self._beside:
            found[group] += self.tables["checkpoints"].rows.keys() - self.tables[group].rows.keys() - {*found[group]}
        return "; ".join(f"{group}: step {', '.join(map(str, steps))}" for group, steps in found.items() if steps)

    def require_whole(self) -> None:
        """Raise FileError if any row fails its checksum."""
        if self.damage:
            raise FileError(
                f"{self.path}: rows fail their checksums: {self.damage}",
                "take a good copy of the file, or train again with --overwrite",
            )

    def checkpoint(self, step: int) -> Arrays:
        """The parameters at a stored step. Raises StepError, FileError (checksum), NumericsError (NaN)."""
        values = self._row("checkpoints", step)
        for name, array in values.items():
            bad = int(np.size(array) - np.isfinite(array).sum())
            if bad:
                raise NumericsError(
                    f"{self.path}: {name} at step {step} has {bad} non-finite values",
                    "the run diverged: analyse earlier steps, or train with a lower --lr",
                )
        return values

    def second_moments(self, step: int) -> Arrays | None:
        """Adam's second moments at a stored step by parameter; None for a run with SGD."""
        if schema.MOMENTS.group not in self.tables:
            return None
        values = self._row(schema.MOMENTS.group, step)
        return {name.removeprefix("v_"): array for name, array in values.items()}

    def metrics(self) -> Arrays:
        """All committed metrics by name, `metric_step` among them, ascending."""
        return self.tables["metrics"].columns()

    def metrics_at(self, step: int) -> Arrays | None:
        """The last row of metrics by a step; None where the row that may be it fails its checksum."""
        return self.tables["metrics"].last(step)

    def first_step(self, metric: str, threshold: float) -> int | None:
        """First step with a row of metrics at which `metric` is at least `threshold`."""
        metrics = self.metrics()
        reached = metrics["metric_step"][metrics[metric] >= threshold]
        return int(reached.min()) if len(reached) else None

    def tokens(self) -> Arrays:
        """All committed token statistics by name, `step` among them, ascending."""
        return self.tables["tokens"].columns()

    def tokens_at(self, step: int) -> Arrays:
        """The token statistics at a stored step. Raises StepError, FileError (checksum)."""
        return self._row("tokens", step)

    def data(self) -> Arrays:
        """tokens (sample, slot), labels (sample), split (sample: 0 train, 1 test, 2 unused)."""
        return self._file.samples()

    def resume_state(self) -> dict[str, Any]:
        """The newest valid resume slot. Raises FileError if there is none."""
        table = self.tables["resume"]
        slots = [row for i in (0, 1) if (row := table.row(i)) is not None]
        if not slots:
            raise FileError(f"{self.path} holds no valid resume slot", "train again with --overwrite")
        newest = max(slots, key=lambda row: int(row["step"]))
        order, rng = newest["order"], newest["rng"]
        if (
            not np.array_equal(np.sort(order), np.arange(len(order)))
            or not 0 <= newest["position"] <= len(order)
            or not (newest["step"] >= 0 and rng[4] <= 1 and rng[5] < 1 << 32)
        ):
            raise FileError(f"{self.path} holds a resume slot that no run writes", "train again with --overwrite")
        return newest

    def _row(self, group: str, step: int) -> Arrays:
        table = self.tables[group]
        what = "checkpoint" if group == "checkpoints" else f"row in {group}"
        if not table.holds(step):
            near = sorted(sorted(self.steps, key=lambda s: abs(s - step))[:2])
            raise StepError(
                f"{self.path} holds no {'' if group == 'checkpoints' else what + ' of '}step {step}",
                f"the nearest stored steps: {', '.join(map(str, near)) or 'none'}",
            )
        values = table.row(step)
        if values is None:
            raise FileError(
                f"{self.path}: the {what} of step {step} fails its checksum",
                "leave this step out, or copy the file again from its source",
            )
        return values

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def _new_file(
    path: Path,
    attrs: Mapping[str, Any],
    data: Arrays,
    scales: Scales,
    parameters: tuple[str, ...],
    dtype: str,
    capacity: Mapping[str, int],
) -> Iterator[h5py.File]:
    """A new run file under a temporary name; renamed to `path` when the block ends without an error."""
    with temporary_file(path) as file:
        write_attributes(file, schema.RUN, attrs)
        for table in schema.RUN_TABLES:
            rows = 2 if table is schema.RESUME else capacity.get(table.group)
            if rows is not None:
                create_table(file, table.present(parameters), rows, scales, dtype)
        group = file.create_group("data")
        for field in schema.DATA:
            array = data[field.name]
            add_dataset(group, field, field.dims, array.shape, scales, dtype)[...] = array
        group.attrs["crc32"] = crc32_of_arrays(data)
        yield file


def _rewrite(path: Path, attrs: Mapping[str, Any], capacity: Mapping[str, int]) -> None:
    """Copy a run file's committed rows into a new one of `capacity` rows (default: just those), in place."""
    with RunReader(path) as old:
        if old.attrs["status"] == "running":
            old.require_whole()
        tables = old.tables
        rows = {group: list(table.rows) for group, table in tables.items()}
        for group in rows.keys() & {"tokens", "moments"}:
            # Rows beside a checkpoint that was never committed.
            rows[group] = [step for step in rows[group] if step in rows["checkpoints"]]
        room = {g: max(capacity.get(g, 0), len(r)) for g, r in rows.items()}
        scales = {name: np.arange(n) for name, n in old.lengths.items()}
        names = tuple(f.name for f in tables["checkpoints"].table.fields)
        dtype = tables["checkpoints"].stored["W"].dtype.str.lstrip("<>=")
        with _new_file(path, {**old.attrs, **attrs}, old.data(), scales, names, dtype, room) as new:
            for group, table in tables.items():
                writer = TableWriter(new[group], table.table.row)
                for index, label in enumerate(rows[group]):
                    writer.write(label if group == "resume" else index, label, table.row(label) or {})
