"""The training loop, top to bottom: one run or many side by side, with exact resume."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from landscape import problems
from landscape.choices.samplers import SAMPLERS
from landscape.config import TrainConfig
from landscape.curvature.lanczos import eigsh
from landscape.curvature.objective import Objective
from landscape.curvature.operators import HessianOperator
from landscape.devices import free_memory, keep_freed_memory, pick_device
from landscape.errors import ConfigError, DoesNotFitError, LandscapeError, NumericsError, warn
from landscape.problems.embedding_mlp.model import MLP
from landscape.problems.fields import axes, number_of_parameters, parameters
from landscape.problems.networks import Batch, scores
from landscape.problems.tasks import TRAIN
from landscape.signals import stop_signals
from landscape.storage import schema
from landscape.storage.files import as_path, make_folder, output, refuse_existing, refuse_foreign
from landscape.storage.making import require_room
from landscape.storage.runs import GROKKED, MEMORISED, Arrays, RunReader
from landscape.storage.writing import sole_writer
from landscape.training.member import Member, rooms
from landscape.training.optimizers import Optimizer
from landscape.training.tables import SIGMA, scales


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """How a run ended. Accuracies are those of the last row of metrics; steps are None for thresholds not reached.

    status: complete, interrupted or diverged; diverged_step: the first record that was not finite; seconds: None if
    the file was only read.
    """

    path: str
    status: str
    steps: int
    train_accuracy: float
    test_accuracy: float
    memorise_step: int | None
    grok_step: int | None
    checkpoints: int
    seconds: float | None
    diverged_step: int | None = None

    @property
    def divergence(self) -> NumericsError | None:
        """The error of a run that diverged; None for others."""
        if self.diverged_step is None:
            return None
        return NumericsError(
            f"{self.path}: training diverged: the loss or a parameter is not finite at step {self.diverged_step}",
            "the checkpoints before are kept and finite; lower --lr or the initial scales and use --overwrite",
        )


def train(
    config: TrainConfig,
    path: Path | str,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    fsync: bool = False,
) -> RunSummary:
    """Train and write the run file `path`; `resume` resumes an existing file.

    fsync: sync every commit to disk, so that it survives a power failure. A run that diverges ends with status
    "diverged" and a warning, and keeps its finite checkpoints. Raises FileError if `path` exists and neither `resume`
    nor `overwrite` is set, ConfigError if a resumed run's config differs in an option that affects its numbers.
    """
    return train_ensemble({as_path(path): config}, resume, overwrite, quiet, fsync)[0]


def train_ensemble(
    runs: Mapping[Path, TrainConfig] | Mapping[str, TrainConfig],
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    fsync: bool = False,
) -> list[RunSummary]:
    """Train runs of one shape side by side; up to rounding, every file equals that of `train`.

    The configs may differ in seed, lr, lr_ratio, weight_decay, init_scale_E and init_scale_W (see `ensemble`).
    Finished runs stay as they are; a run that ends early does not stop the others. Raises as `train`.
    """
    started = time.monotonic()
    named = {as_path(path): config for path, config in runs.items()}
    runs = {output(path): config for path, config in named.items()}
    if len(runs) < len(named):
        raise ConfigError(
            f"of {', '.join(map(str, named))} two are links to one file", "give each run a file of its own"
        )
    for path, config in runs.items():
        if not (resume or overwrite):
            refuse_existing(path, "use --resume to resume it, --overwrite to replace it, or another --out")
        elif overwrite:
            refuse_foreign(path, schema.RUN)
        make_folder(path.parent)
        if not (resume and path.exists()):
            require_room(path, rooms(config), scales(config))
    runs = clip_batch(runs)
    device = pick_device(next(iter(runs.values())).device)
    with contextlib.ExitStack() as files:
        for path in runs:
            files.enter_context(sole_writer(path))
        members = [Member(config, path) for path, config in runs.items()]
        members = [m for m in members if not (resume and m.path.exists() and m.is_finished())]
        states = {}
        for member in members:
            states[member] = member.open(resume and member.path.exists(), str(device), fsync)
            files.enter_context(member.writer)
        _train_all(states, device, files.enter_context(stop_signals()), quiet)
    return [summarise(path, started) for path in runs]


def summarise(path: Path, started: float | None = None) -> RunSummary:
    """The summary of a run file; `started` is a time.monotonic() reading."""
    with RunReader(path) as reader:
        metrics = reader.metrics()
        has_metrics = len(metrics["metric_step"]) > 0
        diverged_step = None
        if reader.attrs["status"] == "diverged":
            bad = ~np.isfinite(metrics["train_loss"])
            diverged_step = int(metrics["metric_step"][bad.argmax() if bad.any() else -1])
        return RunSummary(
            path=str(path),
            status=str(reader.attrs["status"]),
            steps=int(reader.resume_state()["step"]) if diverged_step is None else diverged_step,
            train_accuracy=float(metrics["train_accuracy"][-1]) if has_metrics else math.nan,
            test_accuracy=float(metrics["test_accuracy"][-1]) if has_metrics else math.nan,
            memorise_step=reader.first_step("train_accuracy", MEMORISED),
            grok_step=reader.first_step("test_accuracy", GROKKED),
            checkpoints=len(reader.steps),
            seconds=None if started is None else time.monotonic() - started,
            diverged_step=diverged_step,
        )


def _train_all(states: dict[Member, dict[str, Any]], device: torch.device, stop: threading.Event, quiet: bool) -> None:
    """Train every member from its state to its end, or to a stop signal."""
    keep_freed_memory()
    done, total = sum(int(state["step"]) for state in states.values()), sum(member.steps for member in states)
    with tqdm(total=total, initial=done, unit="step", disable=quiet, file=sys.stderr) as bar:
        while states and not stop.is_set():
            # Train the members furthest behind first, until they reach the next ones.
            levels = sorted({int(state["step"]) for state in states.values()})
            group = [member for member, state in states.items() if state["step"] == levels[0]]
            loop = _Loop(group, [states.pop(member) for member in group], device)
            finished = loop.run(levels[1] if len(levels) > 1 else None, stop, bar)
            states |= {m: loop.state(i) for i, m in enumerate(group) if m not in finished}
            for member in finished:
                member.writer.finish("diverged" if member.has_diverged else "complete")
    for member, state in states.items():
        if _is_finite(member, state):
            member.writer.save(state)
        member.writer.finish("interrupted")


def _is_finite(member: Member, state: Mapping[str, Any]) -> bool:
    """Whether all parameters of a state are finite, so that a run can be resumed from it."""
    return all(np.isfinite(state[field.name]).all() for field in parameters(member.config))


class _Loop:
    """The state of members at the same step."""

    def __init__(self, members: Sequence[Member], states: Sequence[dict[str, Any]], device: torch.device) -> None:
        self.members, self.config, self.device = members, members[0].config, device
        self.step = int(states[0]["step"])
        data = members[0].data
        self.networks = problems.make_networks(self.config, states, data.tokens, data.labels, device)
        self.optimizer = Optimizer(
            [m.config for m in members],
            self.networks,
            *(self.networks.stack(states, moment) for moment in ("m_", "v_")),
        )
        self._set_rates()
        self.train, self.test = (
            self.networks.batch(np.stack(pairs)) for pairs in ([m.train for m in members], [m.test for m in members])
        )
        self.has_E = "E" in self.networks.shapes
        if self.has_E:
            self.grad_norm = torch.from_numpy(np.stack([s["grad_norm"] for s in states])).to(device)

    def run(self, until: int | None, stop: threading.Event, bar: tqdm[Any]) -> list[Member]:
        """Train to step `until`, a stop signal, or the end of some members, which are returned."""
        # A sixth of a small step is bookkeeping for autograd, which nothing here asks for.
        with torch.inference_mode(self.networks.by_hand):
            while not stop.is_set() and self.step != until:
                finished = self._record(bar)
                if finished:
                    return finished
                self._advance()
                bar.update(len(self.members))
        return []

    def _record(self, bar: tqdm[Any]) -> list[Member]:
        """Write the records due at this step; returns the members that end with it.

        A run diverges at the first record whose training loss or parameters are not finite. Its row of metrics is
        written, its parameters are not.
        """
        is_due = self.step % self.config.metrics_every == 0
        ends = [m.is_last(self.step) for m in self.members]
        stored = [end or self.step in m.schedule for end, m in zip(ends, self.members, strict=True)]
        if not is_due and not any(stored):
            return []
        is_finite = self.networks.flat.isfinite().all(1).tolist()
        if is_due or any(ends) or not all(is_finite):
            rows = self.metrics()
            shown = {k: f"{np.mean([row[v] for row in rows]):.3g}" for k, v in _SHOWN.items()}
            bar.set_postfix(shown, refresh=False)
            for i, (member, row) in enumerate(zip(self.members, rows, strict=True)):
                member.has_diverged = not (is_finite[i] and math.isfinite(row["train_loss"]))
                if is_due or ends[i] or member.has_diverged:
                    member.writer.append_to("metrics", self.step, row)
                    before = member.steps
                    member.decide_stop(self.step, row["test_accuracy"])
                    bar.total -= before - (self.step if member.has_diverged else member.steps)
        for i, member in enumerate(self.members):
            if is_finite[i] and (stored[i] or member.is_last(self.step)):
                member.commit(self.step, self.state(i), self._tokens(i))
        return [m for m in self.members if m.has_diverged or m.is_last(self.step)]

    def _advance(self) -> None:
        """One optimiser step."""
        config = self.config
        if SAMPLERS[config.sampler].follow and self.step % config.sampler_every == 0:
            self.networks.backward(self.train)
            norms = self.networks.grads["E"].norm(dim=2).cpu().double().numpy()
            for member, norm in zip(self.members, norms, strict=True):
                if np.isfinite(norm).all():
                    member.sampler.refresh(norm)
        if self.step % config.lr_ratio_every == 0:
            self._measure_lr_ratios()
        if 0 < self.step < self.config.warmup:
            self._set_rates()
        batch = self._draw()
        for member, seen in zip(self.members, batch.seen, strict=True):
            member.count += seen
        self.networks.backward(batch)
        if self.has_E and config.freeze != "E":
            self.grad_norm += torch.linalg.vector_norm(self.networks.grads["E"], dim=2)
        self.step += 1
        self.optimizer.step(self.step)

    def _draw(self) -> Batch:
        drawn = [member.draw() for member in self.members]
        pairs = [d for d in drawn if d is not None]
        return self.networks.batch(np.stack(pairs)) if pairs else self.train

    def _set_rates(self) -> None:
        rates = [{name: m.rate(name, self.step) for name in self.networks.shapes} for m in self.members]
        self.optimizer.set_rates(rates)

    def _measure_lr_ratios(self) -> None:
        """Set lr_E / lr_W of the members that measure it.

        The curvature policy equalises lr^2 * lambda_max, the second-order loss change of a step of size lr. In a
        bilinear least-squares model (F1) this is sigma_max(E) / sigma_max(W), as in Proposition 4.1. Without a finite
        positive ratio, as at E = 0 or W = 0, the ratio keeps its value.
        """
        measured = [i for i, m in enumerate(self.members) if isinstance(m.config.lr_ratio, str)]
        if not measured:
            return
        sigma = self._sigma()
        for i in measured:
            member = self.members[i]
            if member.config.lr_ratio == "prop41":
                found = prop41_ratio(sigma["E"][i], sigma["W"][i], member.f_E(self.step) if self.step else 1.0)
            else:
                found = self._curvature_ratio(i)
            if 0 < found < math.inf:
                member.lr_ratio = found
        self._set_rates()

    @torch.inference_mode(False)
    def _curvature_ratio(self, i: int) -> float:
        """sqrt(lambda_max(H_WW) / lambda_max(H_EE)) of a member, both to 1 %; NaN where there is none."""
        params = {name: part[i] for name, part in self.networks.params.items()}
        config, data = self.members[i].config, self.members[i].data
        tokens, labels = (torch.from_numpy(array).to(self.device, torch.int64) for array in data.subset(TRAIN))
        try:
            whole = HessianOperator(Objective(MLP(config).to(self.device), tokens, labels), params)
            lambda_E, lambda_W = (
                float(eigsh(whole.block([n]), 1, "highest", "lanczos", rtol=1e-2, seed=config.seed).values[0, 0])
                for n in ("E", "W")
            )
        except (np.linalg.LinAlgError, torch.linalg.LinAlgError, LandscapeError):  # type: ignore[attr-defined]
            # Numbers out of range: the next record says that the run diverged.
            return math.nan
        return math.sqrt(lambda_W / lambda_E) if lambda_E > 0 and lambda_W > 0 else math.nan

    def _sigma(self) -> dict[str, list[float]]:
        """Largest singular values of E and W by member."""
        found = self.networks.params
        return {name: largest_singular_value(found[name]).tolist() for name in SIGMA if name in found}

    def metrics(self) -> list[dict[str, float]]:
        """One row of /metrics a member."""
        columns: dict[str, list[float]] = {}
        on_train, on_test = self.networks.backward(self.train), self.networks.logits(self.test)
        for part, batch, logits in (("train", self.train, on_train), ("test", self.test, on_test)):
            losses, shares = scores(logits, batch.labels)
            columns[f"{part}_loss"], columns[f"{part}_accuracy"] = losses.tolist(), shares.tolist()
        weights, gradient = self.networks.params, self.networks.grads
        for name, shape in self.networks.shapes.items():
            if len(shape) == 2:
                columns[f"grad_norm_{name}"] = gradient[name].norm(dim=(1, 2)).tolist()
                columns[f"weight_norm_{name}"] = weights[name].norm(dim=(1, 2)).tolist()
        columns |= {f"sigma_max_{name}": values for name, values in self._sigma().items()}
        rows = []
        for i, member in enumerate(self.members):
            row = {name: values[i] for name, values in columns.items()}
            rest = member.rate("W", self.step)
            row |= {"lr_E": member.rate("E", self.step), "lr_W": rest, "lr": rest, "f_E": member.f_E(self.step)}
            if "E" in weights and "W" in weights:
                row["prop41_ratio"] = prop41_ratio(row["sigma_max_E"], row["sigma_max_W"], row["f_E"])
            rows.append(row)
        return rows

    def state(self, i: int) -> dict[str, Any]:
        """A member's row of /resume: parameters by name, moments m_NAME and v_NAME, and its own state."""
        optimizer = self.optimizer
        held = (("", self.networks.flat), ("m_", optimizer.m), ("v_", optimizer.v))
        tensors = {
            prefix + name: part[i].cpu().numpy()
            for prefix, flat in held
            for name, part in self.networks.parts(flat).items()
        }
        accumulated = {"grad_norm": self.grad_norm[i].cpu().numpy()} if self.has_E else {}
        return {"step": self.step, **accumulated, **tensors, **self.members[i].state()}

    def _tokens(self, i: int) -> Arrays:
        tokens: Arrays = {"count": self.members[i].count}
        if self.has_E:
            E = self.networks.params["E"][i]
            tokens["embedding_norm"] = E.norm(dim=1).cpu().double().numpy()
            tokens["grad_norm"] = self.grad_norm[i].cpu().numpy()
        return tokens


def largest_singular_value(matrices: Tensor) -> Tensor:
    """sigma_max of each matrix (..., m, n), from the smaller Gram matrix in float64; NaN where not all is finite."""
    matrices = matrices.double()
    gram = matrices.mT @ matrices if matrices.shape[-2] > matrices.shape[-1] else matrices @ matrices.mT
    is_bad = ~gram.isfinite().all(-1).all(-1)
    found: Tensor = torch.linalg.eigvalsh(gram.masked_fill(is_bad[..., None, None], 0.0))[..., -1]
    return found.clamp(min=0).sqrt().masked_fill(is_bad, torch.nan)


def prop41_ratio(sigma_E: float, sigma_W: float, f_E: float) -> float:
    """(sigma_max(E) / sigma_max(W)) * (f_W / f_E) with f_W = 1 (arXiv 2505.15624, Proposition 4.1); NaN for W = 0."""
    return sigma_E / sigma_W / f_E if sigma_W else math.nan


_SHOWN = {"loss": "train_loss", "train": "train_accuracy", "test": "test_accuracy"}


def clip_batch(runs: Mapping[Path, TrainConfig]) -> dict[Path, TrainConfig]:
    """The runs of an ensemble with batches clipped to the size of their training set, with a warning."""
    first = next(iter(runs.values()))
    _require_memory(first)
    size = axes(first)["train_sample"]
    # An empty training set is refused elsewhere, by its train_fraction.
    if first.batch_size == "full" or first.batch_size <= size or not size:
        return dict(runs)
    warn(f"batch_size {first.batch_size} exceeds the {size} training pairs; using {size}")
    return {path: dataclasses.replace(config, batch_size=size) for path, config in runs.items()}


def _require_memory(config: TrainConfig) -> None:
    """Raise DoesNotFitError for a run that cannot fit in memory."""
    lengths, number = axes(config), 4 if config.dtype == "float32" else 8
    samples, weights = lengths["sample"], number_of_parameters(config)
    # All pairs and their temporaries, weights with gradients and moments, hidden layer and logits of every pair.
    needed = samples * (32 + 4 * config.tokens) + number * (4 * weights + samples * (config.hidden + config.p))
    free = free_memory(torch.device("cpu"))
    if needed > free:
        raise DoesNotFitError(
            f"a run of p {config.p}, hidden {config.hidden} and embed_dim {config.embed_dim} needs at least "
            f"{needed / 1e9:.1f} GB; {free / 1e9:.1f} GB are free",
            "lower --p, --hidden or --embed-dim",
        )
