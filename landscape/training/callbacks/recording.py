"""What the callbacks of all trainers share: checkpoints that are due, and one row of metrics a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from landscape.errors import ArgumentError
from landscape.training.recorder import Recorder


class Recording:
    """A run file that a trainer fills, from `begin` to `end`; before and after, all other calls do nothing.

    every: optimiser steps from one checkpoint to the next; metrics: names of those that are kept; options: those of
    `Recorder`, with optimizer=True for that of the trainer. Raises ArgumentError unless `every` is a positive number.
    """

    def __init__(self, path: Path | str, every: int, metrics: Iterable[str], options: Mapping[str, Any]) -> None:
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise ArgumentError(f"every is {every!r}", "give the number of steps between two checkpoints, such as 100")
        self._path, self._every, self._options = path, every, dict(options)
        self.metrics = list(metrics)
        self._recorder: Recorder | None = None
        self._last = 0
        self._row: dict[str, float] = {}

    def begin(self, model: nn.Module, optimizer: Any, step: int, last: float) -> None:
        """Open the file and store the model at `step` of a training that goes to step `last`, infinity if unknown."""
        expected = int(last - step) // self._every + 2 if step <= last < float("inf") else 0
        options = {"expected": expected, **self._options}
        options["optimizer"] = optimizer if options.get("optimizer") else None
        self._recorder = Recorder(self._path, model, metrics=self.metrics, **options)
        self._recorder.checkpoint(step)
        self._last, self._row = step, {}

    def is_due(self, step: int) -> bool:
        """Whether a multiple of `every` was reached since the last checkpoint; steps may advance by more than one."""
        return self._recorder is not None and step // self._every > self._last // self._every

    def checkpoint(self, step: int) -> None:
        """Store the model after `step` optimiser steps."""
        if self._recorder:
            self._recorder.checkpoint(step)
            self._last = step

    def keep(self, values: Mapping[str, Any]) -> None:
        """Add metrics to the row of the current step."""
        self._row |= {name: value for name, value in values.items() if name in self.metrics}

    def commit(self, step: int) -> None:
        """Store the row of a step, to which nothing more will come."""
        row, self._row = self._row, {}
        if self._recorder and row:
            self._recorder.metrics(step, **row)

    def end(self, step: int, status: str = "complete") -> None:
        """Store what is kept, and close the file."""
        if self._recorder:
            with self._recorder as recorder:
                self.commit(step)
                recorder.close(status)
            self._recorder = None
