"""Recording from the Trainer of Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from landscape.training.recorder import Recorder

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("the callback needs transformers: pip install 'landscape[transformers]'") from error


class RecorderCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Records the model at the start, every `every` optimiser steps and at the end, and what the Trainer logs.

    metrics: names of the logs that are kept; a log's row is written once the next step logs, or training ends. All
    else is as in `Recorder`. Of several processes the first one records.
    """

    def __init__(
        self,
        path: Path | str,
        every: int,
        metrics: Sequence[str] = ("loss", "learning_rate", "grad_norm", "eval_loss"),
        **options: Any,
    ) -> None:
        self._path, self._every, self._metrics, self._options = path, every, list(metrics), options
        self._recorder: Recorder | None = None
        self._logged: tuple[int, dict[str, float]] = 0, {}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Open the file."""
        if state.is_world_process_zero:
            expected = (state.max_steps - state.global_step) // self._every + 2
            options = {"expected": expected, **self._options}
            self._recorder = Recorder(self._path, model, metrics=self._metrics, **options)
            self._recorder.checkpoint(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store a checkpoint that is due."""
        if self._recorder and state.global_step % self._every == 0:
            self._recorder.checkpoint(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Keep what is logged; losses of training and evaluation at one step are one row."""
        kept = {name: value for name, value in (logs or {}).items() if name in self._metrics}
        if self._recorder and kept:
            if state.global_step != self._logged[0]:
                self._flush()
            self._logged = state.global_step, self._logged[1] | kept

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store the last step and close the file."""
        if self._recorder:
            self._recorder.checkpoint(state.global_step)
            self._flush()
            self._recorder.close()
            self._recorder = None

    def _flush(self) -> None:
        step, row = self._logged
        if self._recorder and row:
            self._recorder.metrics(step, **row)
        self._logged = step, {}
