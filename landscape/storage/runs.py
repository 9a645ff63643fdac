"""The run file: written once by the trainer, read by everybody."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np

from landscape.errors import FileError, NumericsError, StepError
from landscape.storage import schema
from landscape.storage.files import open_file
from landscape.storage.rewrite import rewrite
from landscape.storage.table import Scales, add_dataset, create_table, read_row, table_size, written_rows
from landscape.storage.writing import Disk, TableWriter, create_hdf5, temporary_file

Arrays = dict[str, np.ndarray[Any, Any]]
MEMORISED, GROKKED = 0.99, 0.95
"""Training accuracy of the memorise step, test accuracy of the grok step."""


class RunWriter(Disk):
    """Appends to a run file that `create` made; every call returns only once its row is committed."""

    def __init__(self, path: Path, fsync: bool = False) -> None:
        super().__init__(path, fsync)
        with h5py.File(path, "r", locking=False) as file:
            present = [table for table in schema.RUN_TABLES if table.group in file]
            self._tables = {t.group: TableWriter(file[t.group], t.row, self) for t in present}
            slots = [read_row(file["resume"], "resume_slot", i) for i in (0, 1)]
        self._saved = [-1 if slot is None else int(slot["step"]) for slot in slots]

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
        fsync: bool = False,
    ) -> RunWriter:
        """Allocate a file for `capacity` rows of each table, without those not named, then move it into place."""
        identity = {"schema": schema.RUN, "schema_version": schema.VERSION, "run_id": uuid.uuid4().hex}
        rows = {**capacity, "resume": 2}
        tables = [table.present(parameters) for table in schema.RUN_TABLES if table.group in rows]
        size = sum(table_size(t, rows[t.group], scales, dtype) for t in tables) + sum(a.nbytes for a in data.values())
        with temporary_file(path, size) as temporary, create_hdf5(temporary) as file:
            file.attrs.update({**identity, **attrs})
            for table in tables:
                create_table(file, table, rows[table.group], scales, dtype)
            group = file.create_group("data")
            for field in schema.DATA:
                array = data[field.name]
                add_dataset(group, field, field.dims, array.shape, scales, dtype)[...] = array
        return cls(path, fsync)

    @classmethod
    def extend(
        cls, path: Path, attrs: Mapping[str, Any], capacity: Mapping[str, int], fsync: bool = False
    ) -> RunWriter:
        """Reopen an unfinished or shorter run with room for `capacity` rows in all."""
        rewrite(path, attrs, capacity)
        return cls(path, fsync)

    def checkpoint(self, step: int, parameters: Arrays, **beside: Arrays) -> None:
        """Commit a checkpoint after its rows in the tables `beside` it; a step already stored is left as it is."""
        stored = self._tables["checkpoints"].labels
        if step not in stored:
            for group, values in beside.items():
                if group in self._tables and len(self._tables[group].labels) == len(stored):
                    self._tables[group].append(step, values)
            self._tables["checkpoints"].append(step, parameters)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Commit a row of metrics; a step already stored is left as it is."""
        if step not in self._tables["metrics"].labels:
            self._tables["metrics"].append(step, values)

    def save_resume(self, state: Mapping[str, Any]) -> None:
        """Replace the older resume slot, or a torn one."""
        slot = int(np.argmin(self._saved))
        self._tables["resume"].write(slot, slot, state)
        self._saved[slot] = int(state["step"])

    def finish(self, status: str) -> None:
        """Trim the file to its committed rows and set its status."""
        self.close()
        rewrite(self.path, {"status": status})


class RunReader:
    """A run file, opened beside a live writer too; only committed rows are served."""

    def __init__(self, path: Path | str) -> None:
        """Raises FileError for what is missing, broken, of another schema or too new."""
        self.path = Path(path)
        self._file = open_file(self.path, schema.RUN)
        self.attrs: dict[str, Any] = dict(self._file.attrs)
        self.config: dict[str, Any] = json.loads(self.attrs["config"])
        # Records first: a live writer puts down labels before them.
        rows = written_rows(self._file["checkpoints"])
        labels = self._file["checkpoints/step"][()]
        self._row_of = {int(labels[i]): i for i in rows}

    @property
    def steps(self) -> list[int]:
        """Stored steps, ascending."""
        return sorted(self._row_of)

    def checkpoint(self, step: int) -> Arrays:
        """The parameters at a stored step. Raises StepError, FileError (checksum), NumericsError (NaN)."""
        if step not in self._row_of:
            near = sorted(self._row_of, key=lambda s: abs(s - step))[:2]
            raise StepError(
                f"{self.path} holds no step {step}",
                f"the nearest stored steps: {', '.join(map(str, sorted(near)))}",
            )
        values = read_row(self._file["checkpoints"], "step", self._row_of[step])
        if values is None:
            raise FileError(
                f"{self.path}: the checkpoint of step {step} fails its checksum",
                "leave this step out, or copy the file again from its source",
            )
        for name, array in values.items():
            bad = int(np.size(array) - np.isfinite(array).sum())
            if bad:
                raise NumericsError(
                    f"{self.path}: {name} at step {step} has {bad} non-finite values",
                    "the run diverged: analyse earlier steps, or train with a lower --lr",
                )
        return values

    def second_moments(self, step: int) -> Arrays | None:
        """Adam's second moments at a stored step by parameter; None where the run has none."""
        if "moments" not in self._file:
            return None
        row = int(np.flatnonzero(self._file["moments/step"][()] == step)[0])
        values = read_row(self._file["moments"], "step", row)
        return None if values is None else {name.removeprefix("v_"): array for name, array in values.items()}

    def metrics(self) -> Arrays:
        """All committed metrics by name, `metric_step` among them."""
        return self._columns("metrics", "metric_step")

    def first_step(self, metric: str, threshold: float) -> int | None:
        """First step with a row of metrics at which `metric` is at least `threshold`."""
        metrics = self.metrics()
        reached = metrics["metric_step"][metrics[metric] >= threshold]
        return int(reached.min()) if len(reached) else None

    def tokens(self) -> Arrays:
        """All committed token statistics by name, `step` among them."""
        return self._columns("tokens", "step")

    def data(self) -> Arrays:
        """tokens (sample, slot), labels (sample), split (sample: 0 train, 1 test, 2 unused)."""
        return {f.name: self._file["data"][f.name][()] for f in schema.DATA}

    @property
    def begun(self) -> bool:
        """Whether anything was committed before the run was cut short."""
        return bool(self._row_of or self._slots())

    def _slots(self) -> list[dict[str, Any]]:
        return [row for i in (0, 1) if (row := read_row(self._file["resume"], "resume_slot", i)) is not None]

    def resume_state(self) -> dict[str, Any]:
        """The newest valid resume slot. Raises FileError if there is none."""
        slots = self._slots()
        if not slots:
            raise FileError(f"{self.path} holds no valid resume slot", "train again with --overwrite")
        return max(slots, key=lambda row: int(row["step"]))

    def _columns(self, group: str, row: str) -> Arrays:
        table = self._file[group]
        rows = written_rows(table)
        names = [row, *str(table["crc32"].attrs["fields"]).split()]
        return {name: table[name][()][rows] for name in names}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
