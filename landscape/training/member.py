"""One run: its data, batches, file, and its state between two steps, except tensors."""

from __future__ import annotations

import dataclasses
import json
import math
import uuid
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np

from landscape.choices.optimizers import OPTIMIZERS
from landscape.config import TrainConfig, replace, to_json
from landscape.errors import ConfigError, FileError
from landscape.files.hdf5 import COPY_AGAIN
from landscape.files.runs import RETRAIN, Arrays, RunReader
from landscape.files.schema import misfit
from landscape.files.writer import Rooms, Writer
from landscape.models import initial
from landscape.models.fields import read_problem
from landscape.models.tasks import TEST, TRAIN, Ints, make_data
from landscape.provenance import provenance
from landscape.training.edge import Climb
from landscape.training.samplers import BatchSampler
from landscape.training.tables import checkpoint_schedule, scales, tables

RESUMABLE = {
    "text", "steps", "stop_test_accuracy", "extra_steps", "device", "metrics_every",
    "checkpoint_every", "checkpoint_log", "checkpoint_at",
}  # fmt: skip
RESUME_ELSEWHERE = "resume it from the loop that trains it: landscape.Recorder(path, model, resume=True)"


class Member:
    """One of the runs trained side by side, and its file once open."""

    writer: Writer

    def __init__(self, config: TrainConfig, path: Path) -> None:
        self.config, self.path = config, path
        self.data = make_data(config)
        self.train, self.test = (np.flatnonzero(self.data.split == part) for part in (TRAIN, TEST))
        size = len(self.train)
        self.sampler = BatchSampler(
            config, self.data.tokens[self.train], size if config.batch_size == "full" else config.batch_size
        )
        self.schedule = set(checkpoint_schedule(config))
        self.lr_ratio = 1.0 if isinstance(config.lr_ratio, str) else config.lr_ratio
        if config.lr_E is not None:
            self.lr_ratio = config.lr_E / config.lr
        self.climb = Climb()
        self.count = np.zeros(config.num_tokens, np.int64)
        self.stop_step = -1
        self.has_diverged = False

    def draw(self) -> Ints | None:
        """The pairs of the next batch; None for the whole training set."""
        drawn = self.sampler.draw()
        return None if drawn is None else self.train[drawn]

    def is_last(self, step: int) -> bool:
        """Whether the run ends with this step."""
        return step in (self.config.steps, self.stop_step)

    @property
    def steps(self) -> int:
        """The last step, as far as known."""
        return self.config.steps if self.stop_step < 0 else min(self.config.steps, self.stop_step)

    def f_E(self, step: int) -> float:
        """Mean over operand tokens of the share of steps whose batch held the token; NaN before the first."""
        return float(self.count[: self.config.classes].mean() / step) if step else math.nan

    def rate(self, name: str, step: int) -> float:
        """The learning rate of a parameter in the step after `step`."""
        config = self.config
        share = 0.0 if config.is_frozen(name, step) else config.risen(step)
        return share * config.lr * (self.lr_ratio if name == "E" else 1.0)

    def decide_stop(self, step: int, test_accuracy: float) -> None:
        """Set the last step once the test accuracy is reached."""
        threshold = self.config.stop_test_accuracy
        if threshold is not None and self.stop_step < 0 and test_accuracy >= threshold:
            self.stop_step = step + self.config.extra_steps

    def state(self) -> dict[str, Any]:
        """The row of /resume without step and tensors."""
        return {
            "stop_step": self.stop_step,
            "lr_ratio": self.lr_ratio,
            **dataclasses.asdict(self.climb),
            "count": self.count,
            **self.sampler.state(),
        }

    def is_finished(self) -> bool:
        """Whether the run is finished. Raises ConfigError if it was started with other options, FileError.

        A run that diverged is finished whatever its schedule.
        """
        with RunReader(self.path) as reader:
            reader.require_whole()
            reader.require_trained(RESUME_ELSEWHERE)
            read_problem(reader)
            if differing := difference(self.config, reader.config, RESUMABLE):
                hint = f"--resume can change only {', '.join(sorted(RESUMABLE))}; start another run with --out"
                raise ConfigError(differing, hint)
            status, stored = reader.attrs["status"], replace(self.config, reader.config)
            return status == "diverged" or status == "complete" and self.config == stored

    def open(self, resume: bool, device: str, fsync: bool) -> dict[str, Any]:
        """Open a new file or one with room for further steps; returns the state to resume from."""
        attrs = {"status": "running", **provenance(device)}
        if resume:
            with RunReader(self.path) as reader:
                resume = reader.begun
        if resume:
            state = self._restore()
            changed = {"config": to_json(self.config), **attrs}
            more = rows_to_come(self.config, int(state["step"]))
            form = tables(self.config), scales(self.config)
            # In the same instant as the config: a stop that another rule has decided is none of this one.
            self.writer = Writer.extend(self.path, changed, more, *form, {"stop_step": self.stop_step}, fsync)
            return state
        parameters = initial(self.config)
        if not all(np.isfinite(array).all() for array in parameters.values()):
            raise ConfigError(
                f"init_scale_E {self.config.init_scale_E} and init_scale_W {self.config.init_scale_W} give parameters"
                f" that are not finite in {self.config.dtype}",
                "lower the scales",
            )
        of_run = {"run_id": uuid.uuid4().hex, "config": to_json(self.config), "seed": self.config.seed}
        data = {f.name: getattr(self.data, f.name) for f in dataclasses.fields(self.data)}
        self.writer = Writer.create(
            self.path,
            {**of_run, **attrs},
            rooms(self.config),
            scales(self.config),
            {"data": data},
            fsync,
        )
        nothing = {f"{moment}_{n}": np.zeros_like(array) for n, array in parameters.items() for moment in ("m", "v")}
        if self.config.kick == "held":
            nothing |= {f"held_{n}": array for n, array in parameters.items()}
        return {"step": 0, "grad_norm": np.zeros(self.config.num_tokens), **parameters, **nothing, **self.state()}

    def _restore(self) -> dict[str, Any]:
        """Take the newest resume slot."""
        with RunReader(self.path) as reader:
            labels = scales(self.config)
            wanted = {axis: len(of_axis) for axis, of_axis in labels.items()}
            if wrong := misfit(reader.layout, reader.scales, tables(self.config), wanted):
                raise FileError(f"{self.path}: {wrong}, which its config asks for", COPY_AGAIN)
            data = reader.data()
            data_differ = any(
                not np.array_equal(data[f.name], getattr(self.data, f.name)) for f in dataclasses.fields(self.data)
            )
            # Other words may have the same numbers; rows of all checkpoints would go to where their words stand now.
            words_differ = any(
                list(reader.scales.get(axis, of_axis)) != list(of_axis) for axis, of_axis in labels.items()
            )
            if data_differ or words_differ:
                raise ConfigError(
                    f"{self.path} was started with another text than {self.config.text}",
                    "name that one with --text, or start another run with --out",
                )
            state = reader.resume_state()
            order, rng = state["order"], state["rng"]
            if (
                not np.array_equal(np.sort(order), np.arange(len(order)))
                or not 0 <= state["position"] <= len(order)
                or not (state["step"] >= 0 and rng[4] <= 1 and rng[5] < 1 << 32)
            ):
                raise FileError(f"{self.path} holds a resume slot that no run writes", RETRAIN)
            before = replace(self.config, reader.config)
        same_stop = all(getattr(before, k) == getattr(self.config, k) for k in ("stop_test_accuracy", "extra_steps"))
        step = int(state["step"])
        if step > self.config.steps:
            raise ConfigError(f"{self.path} is at step {step}, beyond --steps {self.config.steps}", "raise --steps")
        self.lr_ratio, self.count = float(state["lr_ratio"]), state["count"].copy()
        self.climb = Climb(**{f.name: state[f.name].item() for f in dataclasses.fields(Climb)})
        self.stop_step = int(state["stop_step"]) if same_stop else -1
        self.sampler.restore(state)
        return state

    def commit(self, step: int, state: dict[str, Any], tokens: Arrays) -> None:
        """Write a checkpoint and its records."""
        # The resume slot comes first, so that a run with a checkpoint can always be resumed.
        self.writer.save(state)
        self.writer.append(step, {"tokens": tokens, "moments": state, "checkpoints": state})


def rows_to_come(config: TrainConfig, step: int = 0) -> dict[str, int]:
    """Rows of each table that a run can need from a step on; an early stop may lie outside the schedule."""
    rows = sum(due >= step for due in checkpoint_schedule(config)) + 1
    return {
        "checkpoints": rows,
        "tokens": rows,
        "metrics": config.steps // config.metrics_every - step // config.metrics_every + 2,
        **({"moments": rows} if OPTIMIZERS[config.optimizer].second_moments else {}),
    }


def rooms(config: TrainConfig) -> Rooms:
    """The tables of a new run's file, with the rows that each needs."""
    rows = rows_to_come(config)
    return [(t, 2 if t.newest else rows.get(t.group, 0)) for t in tables(config)]


UNSTORED = frozenset({"device", "batch_size"})
"""Options that may differ from those of the file: a batch larger than the training set is stored as the set's size."""


def difference(config: TrainConfig, stored: Mapping[str, Any], free: Set[str]) -> str:
    """The difference between a config and that of a run file, apart from `free` options; empty if none."""
    # A file without an option was made before there was one.
    stored = {**json.loads(to_json(type(config)())), **stored}
    for key, value in json.loads(to_json(config)).items():
        if key not in free and stored[key] != value:
            return f"{key} is {value}, but the run was started with {stored[key]}"
    return ""
