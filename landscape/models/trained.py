"""What all problems of `landscape train` have in common: arithmetic pairs, mean cross-entropy, a trainer's record."""

from __future__ import annotations

import abc
import copy
import functools
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call

from landscape.choices.optimizers import OPTIMIZERS
from landscape.config import TrainConfig
from landscape.curvature.objective import Objective
from landscape.curvature.part import Part
from landscape.errors import ConfigError
from landscape.files.runs import RunReader
from landscape.models.problem import Arrays, Problem, Training
from landscape.models.tasks import TRAIN


class TrainedProblem(Problem):
    """The training pairs of a run and the loss over them.

    data: tokens (sample, slot), labels (sample), split (sample) as in the run file.
    """

    def __init__(self, train: TrainConfig, data: Arrays, device: torch.device, chunk_size: int) -> None:
        self.train, self.device, self.name = train, device, f"the {train.model} model"
        # The other tokens are the same in every sample; a text has none, and no numbers.
        operands, others = range(train.classes), range(train.classes, train.num_tokens)
        named = {"operands": operands, **({"constants": others} if others else {})}
        self.rows = {} if train.reads_text else {"E": named}
        rows = data["split"] == TRAIN
        self.tokens = torch.from_numpy(data["tokens"][rows]).to(device, torch.int64)
        self.labels = torch.from_numpy(data["labels"][rows]).to(device, torch.int64)
        self._chunk_size = chunk_size

    def part(self, part: Part) -> Self:
        """The problem of one rank's part of the samples, as their own mean."""
        own, at = copy.copy(self), part.rows(len(self.tokens))
        own.tokens, own.labels = self.tokens[at], self.labels[at]
        return own

    @functools.cached_property
    def model(self) -> nn.Module:
        """The network, every parameter trainable."""
        return self.network().requires_grad_(True).to(self.device)

    @abc.abstractmethod
    def network(self) -> nn.Module:
        """A new network of the run, at its start."""

    def decay(self, objective: str) -> float:
        """Weight decay of an objective. Raises ConfigError for one that the run did not minimise."""
        if objective == "data":
            return 0.0
        if self.train.penalty == "nuclear":
            raise ConfigError(
                "objective regularised, but penalty nuclear is not differentiable where a singular value is 0",
                "use --objective data",
            )
        if OPTIMIZERS[self.train.optimizer].decoupled:
            raise ConfigError(
                f"objective regularised, but {self.train.optimizer} decouples its decay from the loss",
                "use --objective data",
            )
        if self.train.weight_decay_V is not None:
            raise ConfigError(
                f"objective regularised, but V has a weight decay of its own, {self.train.weight_decay_V}",
                "use --objective data",
            )
        return self.train.weight_decay

    @property
    def numbers(self) -> tuple[str, range]:
        """The parameter with a row a number, and these rows. Raises ConfigError for a model that has none."""
        if self.train.reads_text:
            raise ConfigError("the words of a text are no numbers", "name a run on a task mod p")
        for name, groups in self.rows.items():
            if name in self.parameters:
                return name, groups["operands"]
        raise ConfigError(
            f"{self.name} has no embedding of numbers", "name a run of --model embedding or --model transformer"
        )

    def logits(self, arrays: Arrays, tokens: NDArray[Any]) -> NDArray[np.float64]:
        """Logits (sample, class) of input tokens (sample, slot) at stored parameters, in float64."""
        theta = {n: torch.from_numpy(arrays[n]).to(self.device, torch.float64) for n in self.parameters}
        inputs = torch.from_numpy(tokens).to(self.device, torch.int64).split(self._chunk_size)
        with torch.no_grad():
            logits = [functional_call(self.model, theta, (some,)).cpu() for some in inputs]
        return np.asarray(torch.cat(logits))

    def objective(self, decay: float) -> Objective:
        """The mean cross-entropy over the training set, with decay/2 |theta|^2."""
        return Objective(self.model, self.tokens, self.labels, weight_decay=decay, chunk_size=self._chunk_size)

    def training(self, reader: RunReader, step: int) -> Training:
        """What the trainer knew at a stored step.

        The learning rates are those of the last row of metrics by then, risen since in the warm-up.
        """
        count = reader.tokens_at(step)["count"][: self.train.classes]
        metrics = reader.metrics_at(step) or {}
        moments = reader.second_moments(step) if step else None
        corrected = 1 - self.train.betas[1] ** step
        rest = metrics.get("lr_W", metrics.get("lr", np.nan))
        recorded = max((row for row in reader.table("metrics").rows if row <= step), default=step)
        risen = self.train.risen(step) / self.train.risen(recorded)
        rates = {n: risen * float(metrics.get("lr_E", np.nan) if n == "E" else rest) for n in self.parameters}
        return Training(
            step=step,
            rates={n: 0.0 * rate if self.train.is_frozen(n, step) else rate for n, rate in rates.items()},
            second_moments=None if moments is None else {n: v.astype("f8") / corrected for n, v in moments.items()},
            update_frequency=float(count.mean() / step) if step else float("nan"),
        )
