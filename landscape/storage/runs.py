"""The run file: written once by the trainer, read by everybody."""

from __future__ import annotations

import contextlib
import functools
import math
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from landscape.config import TrainConfig, to_json
from landscape.errors import FileError, NumericsError, StepError
from landscape.storage import schema
from landscape.storage.contents import plan_run
from landscape.storage.files import as_path, open_file
from landscape.storage.making import new_file
from landscape.storage.rewrite import rewrite
from landscape.storage.table import listed
from landscape.storage.writing import Disk, TableWriter

Arrays = dict[str, np.ndarray[Any, Any]]
MEMORISED, GROKKED = 0.99, 0.95
"""Training accuracy of the memorise step, test accuracy of the grok step."""


class RunWriter(Disk):
    """Appends to a run file that `create` made; every call returns only once its row is committed."""

    def __init__(self, path: Path, fsync: bool = False) -> None:
        super().__init__(path, fsync)
        with contextlib.closing(open_file(path, schema.RUN)) as file:
            self._tables = {group: TableWriter(table, self) for group, table in file.tables.items()}
            slots = [file.tables["resume"].row(i) for i in (0, 1)]
        self._saved = [-1 if slot is None else int(slot["step"]) for slot in slots]

    @classmethod
    def create(
        cls,
        path: Path,
        config: TrainConfig,
        attrs: Mapping[str, Any],
        data: Arrays,
        rows: Mapping[str, int],
        fsync: bool = False,
    ) -> RunWriter:
        """Allocate a file with room for so many `rows` of each table, then move it into place.

        Raises ConfigError and FileError for a file that no reader would take, or the disk has no room for.
        """
        plan = plan_run(config)
        rooms = [(table, {**rows, "resume": 2}[table.group]) for table in plan.tables]
        attrs = {"run_id": uuid.uuid4().hex, "config": to_json(config), "seed": config.seed, **attrs}
        scales = {axis: range(n) for axis, n in plan.lengths.items()}
        with new_file(path, schema.RUN, attrs, rooms, scales, plan.parameter, data):
            pass
        return cls(path, fsync)

    @classmethod
    def extend(cls, path: Path, attrs: Mapping[str, Any], more: Mapping[str, int], fsync: bool = False) -> RunWriter:
        """Reopen an unfinished or shorter run with room for `more` rows of each table beyond those it holds."""
        rewrite(path, attrs, more)
        return cls(path, fsync)

    def checkpoint(self, step: int, parameters: Arrays, **beside: Arrays) -> None:
        """Commit a checkpoint after its rows in the tables `beside` it; a step already stored is left as it is."""
        if step not in self._tables["checkpoints"].labels:
            for group, values in beside.items():
                if group in self._tables:
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
        """Raises FileError for what is missing, broken, of another schema, too new or not as `landscape` writes it."""
        self.path = as_path(path)
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
            lacking = self.tables["checkpoints"].rows.keys() - self.tables[group].rows.keys()
            found[group] = sorted(lacking | {*found[group]})
        return "; ".join(f"{group}: {listed(steps)}" for group, steps in found.items() if steps)

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
        # A sum of squares is finite only if all of them are, and takes one pass; it may also overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            doubtful = [name for name, array in values.items() if not math.isfinite(array.ravel().dot(array.ravel()))]
        for name in doubtful:
            if bad := int((~np.isfinite(values[name])).sum()):
                raise NumericsError(
                    f"{self.path}: {name} at step {step} has {bad} non-finite values",
                    "the run diverged: analyse earlier steps, or train with a lower --lr",
                )
        return values

    def record(self, step: int) -> int:
        """The commit record of the checkpoint at a stored step, which tells it from any other."""
        return self.tables["checkpoints"].record(step)

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

    @property
    def begun(self) -> bool:
        """Whether anything was committed before the run was cut short."""
        return bool(self.tables["checkpoints"].rows or self.tables["resume"].rows)

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
