"""Reader of run files."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from landscape.errors import FileError, NumericsError
from landscape.files import schema
from landscape.files.files import as_path
from landscape.files.hdf5 import COPY_AGAIN
from landscape.files.rows import Row, Rows, RunTables, listed, no_step
from landscape.results import Described

Arrays = dict[str, np.ndarray[Any, Any]]
RETRAIN = "train again with --overwrite"
"""The hint for a run that cannot be resumed."""
LOSSES = ("train_loss", "loss", "training_loss")
"""Usual names of the training loss among metrics, train/loss as train_loss among them."""
MEMORISED, GROKKED = 0.99, 0.95
MEMORISE, GROK = ("train_accuracy", MEMORISED), ("test_accuracy", GROKKED)
"""The events of a run, the memorise step and the grok step: a metric, and the value that it reaches."""


class RunReader(RunTables, Described):
    """A run file, readable during writing; only committed rows are returned."""

    def __init__(self, path: Path | str) -> None:
        """Raises FileError for files that are missing, broken, foreign or too new."""
        super().__init__(as_path(path))
        for group in () if self.is_recorded else ("metrics", "data", "resume"):
            if group not in self.groups:
                self.close()
                raise FileError(f"{self.path} is damaged: it has no {group}", COPY_AGAIN)
        self.names: dict[str, str] = {}
        """What a reader of the file calls stored parameters, where that is not their name in the file."""
        self._beside = [group for group in self.by_step if group != "checkpoints"]

    @property
    def is_recorded(self) -> bool:
        """Whether the checkpoints came from a training loop or files of somebody else, not from `landscape train`."""
        return self.config.get("kind") == schema.RECORDED

    def require_trained(self, hint: str) -> None:
        """Raise FileError for a file without the config and data of `landscape train`."""
        if self.is_recorded:
            model = self.config.get("model") or "files"
            raise FileError(f"{self.path} was recorded from {model}, not written by `landscape train`", hint)

    def table(self, group: str) -> Rows:
        """A table of the file. Raises FileError for an unknown name."""
        if group not in self.tables:
            raise FileError(f"{self.path} holds no {group}", "name a run that `landscape train` wrote")
        return self.tables[group]

    @functools.cached_property
    def steps(self) -> list[int]:
        """Stored steps, ascending, whose rows all match their checksums."""
        rows = [self.tables[group].rows for group in ("checkpoints", *self._beside)]
        return [step for step in rows[0] if all(step in others for others in rows)]

    @functools.cached_property
    def damage(self) -> str:
        """Rows that fail their checksums, by table and step; empty if none."""
        damaged = {group: table.damaged for group, table in self.tables.items() if not table.newest_by}
        for group in self._beside:
            lacking = self.tables["checkpoints"].rows.keys() - self.tables[group].rows.keys()
            damaged[group] = sorted(lacking | {*damaged[group]})
        return "; ".join(f"{group}: {listed(steps)}" for group, steps in damaged.items() if steps)

    def require_whole(self) -> None:
        """Raise FileError if any row fails its checksum."""
        if self.damage:
            raise FileError(
                f"{self.path}: rows fail their checksums: {self.damage}",
                "take a good copy of the file, or keep its whole rows with `landscape check --repair`",
            )

    def checkpoint(self, step: int) -> Arrays:
        """The parameters at a stored step, and the buffers where the file has some.

        Raises StepError, FileError (checksum), NumericsError for parameters that are not finite.
        """
        values = self._row("checkpoints", step)
        # A sum of squares is finite only if all of them are, and takes one pass; it may also overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            doubtful = [name for name, array in values.items() if not math.isfinite(array.ravel().dot(array.ravel()))]
        lower = "its learning rate" if self.is_recorded else "--lr"
        for name in doubtful:
            if bad := int((~np.isfinite(values[name])).sum()):
                raise NumericsError(
                    f"{self.path}: {name} at step {step} has {bad} non-finite values",
                    f"the run diverged: analyse earlier steps, or lower {lower}",
                )
        if schema.BUFFERS in self.tables:
            values |= self._row(schema.BUFFERS, step)
        return Row(self.path, {self.names.get(name, name): array for name, array in values.items()})

    def require_beside(self, step: int) -> None:
        """Raise StepError or FileError unless every table has this stored step."""
        for group in self._beside:
            self._row(group, step)

    def record(self, step: int) -> int:
        """The checksum of the checkpoint at a stored step, which identifies it. Raises StepError or FileError."""
        table = self.tables["checkpoints"]
        if not table.holds(step):
            raise no_step(self.path, "", step, self.steps)
        if step not in table.rows:
            # A damaged one, as this says.
            self._row("checkpoints", step)
        return table.record(step)

    def disowns(self, attrs: Mapping[str, Any], records: Mapping[int, int]) -> str:
        """Why a file with these attributes was not measured from this run; empty if it was.

        records: the checksums of the measured checkpoints by step, -1 where they are not known. Compares these and the
        run's id, as the run may have continued since.
        """
        if (theirs := attrs["parent_run_id"]) != (ours := self.attrs["run_id"]):
            return f"it is of run {theirs}, but {self.path} is run {ours}"
        for step, record in records.items():
            if record >= 0 and step in self.steps and record != self.record(step):
                return f"step {step} was measured at another checkpoint than {self.path} holds"
        return ""

    def second_moments(self, step: int) -> Arrays | None:
        """Adam's second moments at a stored step by parameter; None for a run with SGD."""
        if "moments" not in self.tables:
            return None
        moments = {name.removeprefix("v_"): array for name, array in self._row("moments", step).items()}
        return {self.names.get(name, name): array for name, array in moments.items()}

    def optimizer_at(self, step: int) -> dict[str, Any] | None:
        """What a recorded run's optimiser knew of each `parameter` at a stored step; None where it was not given."""
        if schema.OPTIMIZER not in self.tables:
            return None
        names = [self.names.get(name, name) for name in map(str, self.scales[schema.PARAMETER])]
        return {**self._row(schema.OPTIMIZER, step), schema.PARAMETER: names}

    def metrics(self) -> Arrays:
        """All committed metrics by name, including `metric_step`, ascending."""
        return self.table("metrics").columns()

    def metrics_at(self, step: int) -> Arrays | None:
        """The last row of metrics up to a step; None if that row may be damaged."""
        return self.table("metrics").last(step)

    def recorded_loss(self, step: int) -> float:
        """The training loss that was recorded at a step; NaN where none was."""
        if "metrics" not in self.tables or step not in self.tables["metrics"].rows:
            return math.nan
        row = self.tables["metrics"].row(step) or {}
        return next((float(row[name]) for name in LOSSES if name in row and not math.isnan(row[name])), math.nan)

    def first_step(self, metric: str, threshold: float) -> int | None:
        """First recorded step at which `metric` reaches `threshold`; None without such a step or metric."""
        if "metrics" not in self.tables:
            return None
        metrics = self.metrics()
        if metric not in metrics:
            return None
        reached = metrics["metric_step"][metrics[metric] >= threshold]
        return int(reached.min()) if len(reached) else None

    def tokens(self) -> Arrays:
        """All committed token statistics by name, including `step`, ascending."""
        return self.table("tokens").columns()

    def tokens_at(self, step: int) -> Arrays:
        """The token statistics at a stored step. Raises StepError, FileError (checksum)."""
        return self._row("tokens", step)

    def data(self) -> Arrays:
        """The arrays of the group `data` by name. Raises FileError if they fail their checksum."""
        if "data" not in self.groups or "data" in self.tables:
            raise FileError(f"{self.path} holds no data", "name a run that `landscape train` wrote")
        return self.arrays("data")

    @property
    def begun(self) -> bool:
        """Whether anything was committed before the run was cut short."""
        return bool(self.tables["checkpoints"].rows or self.table("resume").rows)

    def resume_state(self) -> dict[str, Any]:
        """The newest valid resume slot. Raises FileError if there is none."""
        newest = self.table("resume").newest()
        if newest is None:
            raise FileError(f"{self.path} holds no valid resume slot", RETRAIN)
        return newest

    def _row(self, group: str, step: int) -> Arrays:
        table = self.table(group)
        what = "checkpoint" if group == "checkpoints" else f"row in {group}"
        if not table.holds(step):
            raise no_step(self.path, "" if group == "checkpoints" else f"{what} of ", step, self.steps)
        values = table.row(step)
        if values is None:
            raise FileError(
                f"{self.path}: the {what} of step {step} fails its checksum",
                "leave this step out, or copy the file again from its source",
            )
        return values

    def facts(self) -> Iterator[tuple[str, object]]:
        """Path, status, stored steps and groups."""
        yield from {"path": self.path, "status": self.attrs["status"], "steps": np.array(self.steps)}.items()
        yield "groups", ", ".join(self.groups)

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
