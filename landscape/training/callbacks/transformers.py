"""Recording and measuring from the Trainer of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from landscape.curvature.objective import Objective
from landscape.training.callbacks.recording import Recording
from landscape.training.monitor import Monitor

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("the callback needs transformers: pip install transformers") from error


class RecorderCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Records the model at the start, every `every` optimiser steps and at the end, and what the Trainer logs.

    metrics: names of the logs that are kept. Losses of training and of evaluation at one step are one row, which is
    stored before the next step begins. All else is as in `Recorder`. Of several processes the first one records.
    """

    def __init__(
        self,
        path: Path | str,
        every: int,
        metrics: Sequence[str] = ("loss", "learning_rate", "grad_norm", "eval_loss"),
        **options: Any,
    ) -> None:
        self._recording = Recording(path, every, metrics, options)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        """Open the file."""
        if state.is_world_process_zero:
            self._recording.begin(model, optimizer, state.global_step, state.max_steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store what was logged since the last step."""
        self._recording.commit(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store a checkpoint that is due, and the last step."""
        if self._recording.is_due(state.global_step) or control.should_training_stop:
            self._recording.checkpoint(state.global_step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store the step at which another callback stopped the training, as after an evaluation."""
        if control.should_training_stop:
            self._recording.checkpoint(state.global_step)

    on_save = on_epoch_end

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Keep what is logged."""
        self._recording.keep(logs or {})

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store the last step and close the file."""
        # What load_best_model_at_end has put into the model is that of an earlier step.
        if not args.load_best_model_at_end:
            self._recording.checkpoint(state.global_step)
        self._recording.end(state.global_step)


class MonitorCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Measures curvature while the Trainer trains, and adds it to the log_history of its state as "curvature/NAME".

    objective: a function that makes the objective of the model once it is on its device; options: those of `Monitor`,
    of which `to` takes values elsewhere. Of several processes the first one measures.
    """

    def __init__(self, objective: Callable[[nn.Module], Objective], **options: Any) -> None:
        self._objective, self._options = objective, options
        self.monitor: Monitor | None = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        """Begin to measure."""
        if state.is_world_process_zero:
            self.monitor = Monitor(self._objective(model), optimizer, **self._options)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure, if it is time to."""
        if values := self.monitor(state.global_step) if self.monitor else {}:
            row = {f"curvature/{name}": value for name, value in values.items()}
            state.log_history.append({**row, "step": state.global_step})
