"""The training of runs, alone or many side by side, with exact resume."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch

from landscape.config import TrainConfig
from landscape.devices import free_memory, keep_freed_memory, one_thread, pick_device
from landscape.errors import (
    ArgumentError,
    ConfigError,
    DoesNotFitError,
    LandscapeError,
    NumericsError,
    kind_of,
    require_config,
    warn,
)
from landscape.files import schema
from landscape.files.files import as_path, make_folder, output, refuse_existing, refuse_foreign
from landscape.files.runs import GROK, MEMORISE, RunReader
from landscape.files.writer import require_room
from landscape.files.writing import sole_writer
from landscape.models.fields import axes, number_of_parameters, parameters
from landscape.progress import Bar
from landscape.results import Result
from landscape.signals import stop_signals
from landscape.training.ensemble import VARIABLE
from landscape.training.group import Group
from landscape.training.member import RESUMABLE, UNSTORED, Member, difference, rooms
from landscape.training.tables import scales

TOGETHER = 4
"""Members of one group on a CPU: of more, the arrays leave the cache, which costs what the larger operations save."""


@dataclasses.dataclass(frozen=True, repr=False)
class RunSummary(Result):
    """How a run ended. Accuracies are those of the last row of metrics; steps are None for thresholds not reached.

    status: complete, interrupted or diverged; diverged_step: the first record that was not finite; seconds: None if
    the file was only read, as that of a run that had ended before.
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
    """Train a network and write its run file.

    A run that diverges ends with the status "diverged" and a warning, and keeps its finite checkpoints.

    Args:
        config: options of the run.
        path: the run file.
        resume: continue an existing file.
        overwrite: replace an existing file.
        quiet: show no progress bar.
        fsync: sync every commit to disk, so that it survives a power failure.

    Returns:
        When the run memorised and grokked, and how it ended.

    Raises:
        FileError: if `path` exists, and neither `resume` nor `overwrite` is set.
        ConfigError: if both are set, or if a resumed run differs in an option that changes its numbers.
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

    Finished runs stay as they are. A run that ends early does not stop the others.

    Args:
        runs: options by run file. They may differ in seed, lr, lr_E, lr_ratio, weight_decay, init_scale_E and
            init_scale_W (see `ensemble`).
        resume: continue existing files.
        overwrite: replace existing files.
        quiet: show no progress bar.
        fsync: sync every commit to disk.

    Returns:
        A summary of each run, in their order.

    Raises:
        LandscapeError: as `train`, and for runs that differ in other options.
    """
    started = time.monotonic()
    if resume and overwrite:
        raise ConfigError(
            "resume and overwrite exclude each other", "--resume continues the file, --overwrite replaces it"
        )
    _require_alike(runs)
    named = {as_path(path): config for path, config in runs.items()}
    runs = {output(path): config for path, config in named.items()}
    if len(runs) < len(named):
        raise ConfigError(
            f"of {', '.join(map(str, named))} two are links to one file", "give each run a file of its own"
        )
    for path, config in runs.items():
        make_folder(path.parent)
        if not (resume and path.exists()):
            require_room(path, rooms(config), scales(config))
    runs = clip_batch(runs)
    device = pick_device(next(iter(runs.values())).device)
    with contextlib.ExitStack() as files:
        for path in runs:
            # First, as another process may be about to make it.
            files.enter_context(sole_writer(path))
            if not (resume or overwrite):
                refuse_existing(path, "use --resume to resume it, --overwrite to replace it, or another --out")
            elif overwrite:
                refuse_foreign(path, schema.RUN)
        members = [Member(config, path) for path, config in runs.items()]
        members = [m for m in members if not (resume and m.path.exists() and m.is_finished())]
        states = {}
        for member in members:
            states[member] = member.open(resume and member.path.exists(), str(device), fsync)
            files.enter_context(member.writer)
        _train_all(states, device, files.enter_context(stop_signals()), quiet)
    trained = {member.path for member in members}
    return [summarise(path, started if path in trained else None) for path in runs]


def is_begun(runs: Mapping[Path, TrainConfig]) -> bool:
    """Whether some of the files exist, and every one that does holds the run that is asked for, begun or finished."""
    existing = {path: config for path, config in runs.items() if path.exists()}
    try:
        return bool(existing) and not any(_is_another(path, config) for path, config in existing.items())
    except LandscapeError:
        return False


def _is_another(path: Path, config: TrainConfig) -> bool:
    with RunReader(path) as reader:
        return reader.is_recorded or bool(difference(config, reader.config, UNSTORED))


def summarise(path: Path, started: float | None = None) -> RunSummary:
    """The summary of a run file; `started` is a time.monotonic() reading."""
    with RunReader(path) as reader:
        metrics = reader.metrics()
        diverged_step = None
        if reader.attrs["status"] == "diverged":
            bad = ~np.isfinite(metrics["train_loss"])
            diverged_step = int(metrics["metric_step"][bad.argmax() if bad.any() else -1])
        steps = int(reader.resume_state()["step"]) if diverged_step is None else diverged_step
        return RunSummary(
            path=str(path),
            status=str(reader.attrs["status"]),
            steps=steps,
            train_accuracy=float(metrics["train_accuracy"][-1]) if len(metrics["metric_step"]) else math.nan,
            test_accuracy=float(metrics["test_accuracy"][-1]) if len(metrics["metric_step"]) else math.nan,
            memorise_step=reader.first_step(*MEMORISE),
            grok_step=reader.first_step(*GROK),
            checkpoints=len(reader.steps),
            seconds=None if started is None else time.monotonic() - started,
            diverged_step=diverged_step,
        )


def _require_alike(runs: object) -> None:
    """Raise ArgumentError for what is no config by path, and ConfigError for runs that no ensemble can train."""
    hint = "give a config for each path: {path: config}"
    if not isinstance(runs, Mapping):
        raise ArgumentError(f"runs are {kind_of(runs)}", hint)
    if not runs:
        raise ArgumentError("no runs to train", hint)
    for config in runs.values():
        require_config(config, TrainConfig)
    free = {"seed", *VARIABLE, *RESUMABLE}
    for field in dataclasses.fields(TrainConfig):
        one, *others = dict.fromkeys(getattr(config, field.name) for config in runs.values())
        if others and field.name not in free:
            raise ConfigError(
                f"{field.name} is {one} in one run and {others[0]} in another",
                f"train them one after another: side by side only {', '.join(('seed', *VARIABLE))} may differ",
            )


def _train_all(states: dict[Member, dict[str, Any]], device: torch.device, stop: threading.Event, quiet: bool) -> None:
    """Train every member from its state to its end, or to a stop signal.

    Which members are batched together does not depend on the machine, as the last bits of their files may.
    """
    keep_freed_memory()
    size = TOGETHER if device.type == "cpu" else max(1, len(states))
    members = list(states)
    groups = [{m: states[m] for m in members[i : i + size]} for i in range(0, len(members), size)]
    done, total = sum(int(state["step"]) for state in states.values()), sum(member.steps for member in states)
    with Bar(total, "step", quiet, initial=done) as bar:
        if len(groups) <= 1:
            return _train_together(states, device, stop, bar)
        cores = torch.get_num_threads()
        # Groups on a core each keep it busier than operations that are divided among cores.
        with one_thread(), ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            work = [pool.submit(_train_together, group, device, stop, bar) for group in groups]
            try:
                for ended in as_completed(work):
                    ended.result()
            except BaseException:
                stop.set()
                raise


def _train_together(
    states: dict[Member, dict[str, Any]], device: torch.device, stop: threading.Event, bar: Bar
) -> None:
    """Train members side by side."""
    while states and not stop.is_set():
        # Train the members furthest behind first, until they reach the next ones.
        levels = sorted({int(state["step"]) for state in states.values()})
        members = [member for member, state in states.items() if state["step"] == levels[0]]
        group = Group(members, [states.pop(member) for member in members], device)
        finished = group.run(levels[1] if len(levels) > 1 else None, stop, bar)
        states |= {m: group.state(i) for i, m in enumerate(members) if m not in finished}
        for member in finished:
            member.writer.finish("diverged" if member.has_diverged else "complete")
    for member, state in states.items():
        if _is_finite(member, state):
            member.writer.save(state)
        member.writer.finish("interrupted")


def _is_finite(member: Member, state: Mapping[str, Any]) -> bool:
    """Whether all parameters of a state are finite, so that a run can be resumed from it."""
    return all(np.isfinite(state[field.name]).all() for field in parameters(member.config))


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
    needed = samples * (32 + 4 * config.slots) + number * (4 * weights + samples * (config.hidden + config.classes))
    free = free_memory(torch.device("cpu"))
    if needed > free:
        size = "vocabulary" if config.reads_text else "p"
        raise DoesNotFitError(
            f"a run of {size} {config.classes}, hidden {config.hidden} and embed_dim {config.embed_dim} needs at least "
            f"{needed / 1e9:.1f} GB; {free / 1e9:.1f} GB are free",
            f"lower --{size}, --hidden or --embed-dim",
        )
