"""The training loop, top to bottom, with exact resume."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from landscape.config import TrainConfig, replace, to_json
from landscape.curvature.lanczos import eigsh
from landscape.curvature.objective import Objective, cross_entropy
from landscape.curvature.operators import HessianOperator
from landscape.devices import pick_device
from landscape.errors import ConfigError
from landscape.provenance import provenance
from landscape.signals import stop_signals
from landscape.storage.contents import axes
from landscape.storage.files import refuse_existing
from landscape.storage.runs import GROKKED, MEMORISED, Arrays, RunReader, RunWriter
from landscape.storage.writing import sole_writer
from landscape.training.models import MLP
from landscape.training.optimizers import (
    make_optimizer,
    moments,
    next_lr_ratio,
    prop41_ratio,
    restore_moments,
    set_lr_ratio,
)
from landscape.training.samplers import BatchSampler
from landscape.training.tasks import TEST, TRAIN, TaskData, make_data

RESUMABLE = {
    "steps", "stop_test_accuracy", "extra_steps", "device", "metrics_every",
    "checkpoint_every", "checkpoint_log", "checkpoint_at",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """How a run ended; accuracies at the last row of metrics, None where a threshold was never reached."""

    path: str
    status: str
    steps: int
    train_accuracy: float
    test_accuracy: float
    memorise_step: int | None
    grok_step: int | None
    checkpoints: int
    seconds: float


def train(
    config: TrainConfig,
    path: Path,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    fsync: bool = False,
) -> RunSummary:
    """Train and write the run file `path`; `resume` goes on where an existing file stops.

    fsync: sync every commit to the disk, so that it survives a loss of power as well as of the process. Raises
    FileError if `path` exists and neither `resume` nor `overwrite` is set, ConfigError if a resumed run's config
    differs in what decides its numbers.
    """
    started = time.monotonic()
    device = pick_device(config.device)
    config = _clip_batch(config)
    resume = resume and path.exists()
    if not (resume or overwrite):
        refuse_existing(path, "use --resume to go on with it, --overwrite to replace it, or another --out")
    with sole_writer(path):
        if resume:
            with RunReader(path) as reader:
                reader.require_whole()
                _check_resumable(config, reader.config)
                finished = reader.attrs["status"] == "complete" and config == replace(config, reader.config)
                resume = reader.begun
            if finished:
                return summarise(path, started)
        loop = _Loop(config, device)
        writer = loop.reopen(path, fsync) if resume else loop.create(path, fsync)
        with writer, stop_signals() as stop:
            status = loop.run(writer, stop, quiet)
            writer.finish(status)
    return summarise(path, started)


def summarise(path: Path, started: float) -> RunSummary:
    """The summary of a run file; `started` is a time.monotonic() reading."""
    with RunReader(path) as reader:
        metrics = reader.metrics()
        has_metrics = len(metrics["metric_step"]) > 0
        return RunSummary(
            path=str(path),
            status=str(reader.attrs["status"]),
            steps=int(reader.resume_state()["step"]),
            train_accuracy=float(metrics["train_accuracy"][-1]) if has_metrics else math.nan,
            test_accuracy=float(metrics["test_accuracy"][-1]) if has_metrics else math.nan,
            memorise_step=reader.first_step("train_accuracy", MEMORISED),
            grok_step=reader.first_step("test_accuracy", GROKKED),
            checkpoints=len(reader.steps),
            seconds=time.monotonic() - started,
        )


def checkpoint_schedule(config: TrainConfig) -> list[int]:
    """All steps that get a checkpoint, the first and the last among them.

    The log-spaced steps do not depend on the run's length, so that a longer run holds those of a shorter one.
    """
    wanted = {0, config.steps, *config.checkpoint_at}
    if config.checkpoint_every:
        wanted.update(range(0, config.steps, config.checkpoint_every))
    if config.checkpoint_log and config.steps:
        decades = math.log10(config.steps)
        wanted.update(
            round(10 ** (i / config.checkpoint_log)) for i in range(math.ceil(decades * config.checkpoint_log))
        )
    return sorted(step for step in wanted if step <= config.steps)


class _Loop:
    """Everything one run holds between two steps."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.data = make_data(config)
        self.train, self.test = (_to_device(self.data, part, device) for part in (TRAIN, TEST))
        self.train_tokens = self.data.subset(TRAIN)[0]
        self.model = MLP(config).to(device)
        self.optimizer = make_optimizer(config, self.model)
        size = len(self.train_tokens)
        self.sampler = BatchSampler(
            config, self.train_tokens, size if config.batch_size == "full" else config.batch_size
        )
        self.count = np.zeros(config.vocabulary, np.int64)
        self.grad_norm = torch.zeros(config.vocabulary, dtype=torch.float64, device=device)
        self.lr_ratio = 1.0 if isinstance(config.lr_ratio, str) else config.lr_ratio
        self.step, self.stop_step = 0, -1
        self.schedule = set(checkpoint_schedule(config))

    def run(self, writer: RunWriter, stop: threading.Event, quiet: bool) -> str:
        """Train to the end or to a stop signal; returns the status."""
        config = self.config
        bar = tqdm(total=config.steps, initial=self.step, unit="step", disable=quiet, file=sys.stderr)
        with bar:
            while True:
                if stop.is_set():
                    writer.save_resume(self.state())
                    return "interrupted"
                last = self.step == config.steps or self.step == self.stop_step
                if last or self.step % config.metrics_every == 0:
                    row = self.metrics()
                    writer.metrics(self.step, row)
                    bar.set_postfix({k: f"{row[v]:.3g}" for k, v in _SHOWN.items()})
                    if self._decide_stop(row["test_accuracy"]):
                        bar.total = min(config.steps, self.stop_step)
                        last = last or self.step == self.stop_step
                if last or self.step in self.schedule:
                    self._commit(writer)
                if last:
                    return "complete"
                self._advance()
                bar.update()

    def _advance(self) -> None:
        """One optimiser step."""
        config = self.config
        if config.sampler == "frequency_aware" and self.step % config.sampler_every == 0:
            gradient = self.objective().gradient(dict(self.model.named_parameters()))["E"]
            self.sampler.refresh(gradient.norm(dim=1).cpu().double().numpy())
        if isinstance(config.lr_ratio, str) and self.step % config.lr_ratio_every == 0:
            self.lr_ratio = next_lr_ratio(config, self.model, self.f_E, self.curvatures)
        set_lr_ratio(self.optimizer, config.lr, self.lr_ratio)
        batch = self.sampler.draw()
        tokens, labels = self.train
        seen = np.zeros(config.vocabulary, bool)
        if batch is None:
            seen[self.train_tokens] = True
        else:
            seen[self.train_tokens[batch]] = True
            at = torch.from_numpy(batch).to(self.device)
            tokens, labels = tokens[at], labels[at]
        self.count += seen
        self.optimizer.zero_grad(set_to_none=True)
        cross_entropy(self.model(tokens), labels).mean().backward()
        if config.model == "embedding" and self.model.E.grad is not None:
            self.grad_norm += self.model.E.grad.norm(dim=1)
        self.optimizer.step()
        self.step += 1

    @property
    def f_E(self) -> float:
        """Mean over operand tokens of the share of steps whose batch held the token; NaN before the first."""
        return float(self.count[: self.config.p].mean() / self.step) if self.step else math.nan

    def objective(self, dtype: torch.dtype | None = None) -> Objective:
        """The data loss on the whole training set."""
        return Objective(self.model, *self.train, dtype=dtype or self.model.W.dtype)

    def curvatures(self) -> tuple[float, float]:
        """lambda_max of H_EE and of H_WW, to 1 %."""
        params = {n: p.detach() for n, p in self.model.named_parameters()}
        whole = HessianOperator(self.objective(torch.float64), params)
        found = (
            eigsh(whole.block([name]), 1, which="highest", method="lanczos", tol=1e-2, seed=self.config.seed)
            for name in ("E", "W")
        )
        lambda_E, lambda_W = (float(result.values[0, 0]) for result in found)
        return lambda_E, lambda_W

    def metrics(self) -> dict[str, float]:
        """One row of /metrics."""
        model, config = self.model, self.config
        gradient = self.objective().gradient(dict(model.named_parameters()))
        row = {
            "lr_E": 0.0 if config.freeze == "E" else config.lr * self.lr_ratio,
            "lr_W": 0.0 if config.freeze == "W" else config.lr,
            "f_E": self.f_E,
        }
        with torch.no_grad():
            for part, (tokens, labels) in (("train", self.train), ("test", self.test)):
                logits = model(tokens)
                row[f"{part}_loss"] = float(cross_entropy(logits, labels).mean())
                row[f"{part}_accuracy"] = float((logits.argmax(1) == labels).double().mean())
            for name in ("E", "W", "V"):
                if name in gradient:
                    row[f"grad_norm_{name}"] = float(gradient[name].norm())
                    row[f"weight_norm_{name}"] = float(getattr(model, name).norm())
            row["sigma_max_W"] = float(torch.linalg.matrix_norm(model.W, 2))
            if config.model == "embedding":
                row["sigma_max_E"] = float(torch.linalg.matrix_norm(model.E, 2))
                row["prop41_ratio"] = prop41_ratio(model.E, model.W, self.f_E)
        return row

    def state(self) -> dict[str, Any]:
        """One row of /resume."""
        return {
            "step": self.step,
            "stop_step": self.stop_step,
            "lr_ratio": self.lr_ratio,
            "count": self.count,
            "grad_norm": self.grad_norm.cpu().numpy(),
            **self.parameters(),
            **moments(self.optimizer, self.model),
            **self.sampler.state(),
        }

    def parameters(self) -> Arrays:
        """The model's parameters by name."""
        return {n: p.detach().cpu().numpy() for n, p in self.model.named_parameters()}

    def create(self, path: Path, fsync: bool) -> RunWriter:
        """A new run file for this run."""
        config = self.config
        return RunWriter.create(
            path,
            self._attrs(),
            {f.name: getattr(self.data, f.name) for f in dataclasses.fields(self.data)},
            {name: np.arange(size) for name, size in axes(config).items()},
            tuple(self.parameters()),
            "f4" if config.dtype == "float32" else "f8",
            self._capacity(),
            fsync,
        )

    def reopen(self, path: Path, fsync: bool) -> RunWriter:
        """Take the state of a run file's newest resume slot and make room for the steps to come."""
        with RunReader(path) as reader:
            state = reader.resume_state()
            same_stop = all(reader.config[k] == getattr(self.config, k) for k in ("stop_test_accuracy", "extra_steps"))
        self.step, self.lr_ratio = int(state["step"]), float(state["lr_ratio"])
        if self.step > self.config.steps:
            raise ConfigError(f"{path} is at step {self.step}, beyond --steps {self.config.steps}", "raise --steps")
        self.stop_step = int(state["stop_step"]) if same_stop else -1
        self.count = state["count"].copy()
        if "grad_norm" in state:
            self.grad_norm = torch.from_numpy(state["grad_norm"].copy()).to(self.device)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(torch.from_numpy(state[name]))
        restore_moments(self.optimizer, self.model, state, self.step)
        self.sampler.restore(state)
        return RunWriter.extend(path, self._attrs(), self._capacity(), fsync)

    def _attrs(self) -> dict[str, Any]:
        return {
            "status": "running",
            "config": to_json(self.config),
            "seed": self.config.seed,
            **provenance(str(self.device)),
        }

    def _capacity(self) -> dict[str, int]:
        """Rows the run can need; the last step may lie outside the schedule after an early stop."""
        rows = len(self.schedule) + 1
        return {
            "checkpoints": rows,
            "tokens": rows,
            "metrics": self.config.steps // self.config.metrics_every + 2,
            **({} if self.config.optimizer == "sgd" else {"moments": rows}),
        }

    def _commit(self, writer: RunWriter) -> None:
        tokens: Arrays = {"count": self.count}
        if self.config.model == "embedding":
            tokens["embedding_norm"] = self.model.E.detach().norm(dim=1).cpu().double().numpy()
            tokens["grad_norm"] = self.grad_norm.cpu().numpy()
        # First what a checkpoint is gone on from: a run with a checkpoint can always be resumed.
        writer.save_resume(self.state())
        writer.checkpoint(self.step, self.parameters(), tokens=tokens, moments=moments(self.optimizer, self.model))

    def _decide_stop(self, test_accuracy: float) -> bool:
        """Fix the last step once the test accuracy is reached; whether that was now."""
        threshold = self.config.stop_test_accuracy
        if threshold is None or self.stop_step >= 0 or test_accuracy < threshold:
            return False
        self.stop_step = self.step + self.config.extra_steps
        return True


_SHOWN = {"loss": "train_loss", "train": "train_accuracy", "test": "test_accuracy"}


def _to_device(data: TaskData, part: int, device: torch.device) -> tuple[Tensor, Tensor]:
    tokens, labels = (torch.from_numpy(array).to(device, torch.int64) for array in data.subset(part))
    return tokens, labels


def _clip_batch(config: TrainConfig) -> TrainConfig:
    """A batch is at most the training set."""
    size = int((make_data(config).split == TRAIN).sum())
    if config.batch_size == "full" or config.batch_size <= size:
        return config
    print(
        f"warning: batch_size {config.batch_size} exceeds the {size} training pairs; using {size}",
        file=sys.stderr,
    )
    return dataclasses.replace(config, batch_size=size)


def _check_resumable(config: TrainConfig, stored: dict[str, Any]) -> None:
    mine = json.loads(to_json(config))
    for key, value in mine.items():
        if key not in RESUMABLE and stored.get(key) != value:
            raise ConfigError(
                f"{key} is {value}, but the run was started with {stored.get(key)}",
                f"--resume can change only {', '.join(sorted(RESUMABLE))}; start another run with --out",
            )
