"""Recording and measuring from the Trainer of Lightning."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from landscape.curvature.objective import Objective
from landscape.errors import FileError
from landscape.training.callbacks.recording import Recording
from landscape.training.monitor import Monitor

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise ImportError("the callback needs lightning: pip install lightning") from error


class RecorderCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Records the module at the start, every `every` optimiser steps and at the end, and what it logs there.

    metrics: names given to `self.log` that are kept, in the file with "_" for "/"; those of training at the steps of
    checkpoints, those of validation and of epochs whenever there are new ones. A step's row is stored before the next
    step is taken. All else is as in `Recorder`. Of several processes the first one records.
    """

    def __init__(
        self,
        path: Path | str,
        every: int,
        metrics: Sequence[str] = ("train_loss", "val_loss"),
        **options: Any,
    ) -> None:
        self._wanted = {name: name.replace("/", "_") for name in metrics}
        self._recording = Recording(path, every, self._wanted.values(), options)
        self._origin: dict[str, str] = {}
        self._last = float("inf")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the file."""
        self._last = trainer.estimated_stepping_batches
        if trainer.is_global_zero:
            self._recording.begin(pl_module, trainer.optimizers[0], trainer.global_step, self._last)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Store a checkpoint that is due, or the last one, and keep what the batch logged."""
        logged = self._logged(trainer, "batch")
        # At the end of the training other callbacks may have put an average of the weights into the module.
        if self._recording.is_due(trainer.global_step) or trainer.global_step == self._last:
            self._recording.checkpoint(trainer.global_step)
            self._recording.keep(logged)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Keep what the validation logged."""
        self._recording.keep(self._logged(trainer, "validation"))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Keep what the epoch logged."""
        self._recording.keep(self._logged(trainer, "epoch"))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Store what was logged since the last step."""
        self._recording.commit(trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Store the last step and close the file."""
        self._recording.checkpoint(trainer.global_step)
        self._recording.end(trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the file of a training that was interrupted."""
        # What went wrong first is what matters.
        with contextlib.suppress(FileError):
            self._recording.end(trainer.global_step, "interrupted")

    def _logged(self, trainer: Any, hook: str) -> dict[str, Any]:
        """The metrics that first appeared in this hook; the Trainer goes on to show those of others, of earlier steps.

        In all processes, since the metrics of an epoch may be gathered from all of them here.
        """
        metrics = {name: value for name, value in trainer.callback_metrics.items() if name in self._wanted}
        for name in metrics:
            self._origin.setdefault(name, hook)
        return {self._wanted[name]: value for name, value in metrics.items() if self._origin[name] == hook}


class MonitorCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Measures curvature while the Trainer trains, and logs it with all of its loggers as "curvature/NAME".

    objective: a function that makes the objective of the module once it is on its device; options: those of `Monitor`.
    Of several processes the first one measures.
    """

    def __init__(self, objective: Callable[[nn.Module], Objective], **options: Any) -> None:
        self._objective, self._options = objective, options
        self.monitor: Monitor | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to measure."""
        if trainer.is_global_zero:
            self.monitor = Monitor(self._objective(pl_module), trainer.optimizers[0], **self._options)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Measure, if it is time to."""
        values = self.monitor(trainer.global_step) if self.monitor else {}
        for logger in trainer.loggers if values else ():
            logger.log_metrics({f"curvature/{name}": value for name, value in values.items()}, trainer.global_step)
