"""The samples of a run, pairs of numbers mod p or places of a text: labels, input tokens and the split."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from landscape.choices.samplers import SAMPLERS, Samples
from landscape.choices.tasks import TASKS
from landscape.config import TrainConfig
from landscape.errors import ConfigError
from landscape.models.text import choose_places
from landscape.options import flag_of

TRAIN, TEST, UNUSED = 0, 1, 2
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class TaskData:
    """All samples of a task: tokens (sample, slot), labels (sample), split (sample: 0 train, 1 test, 2 unused)."""

    tokens: NDArray[np.int32]
    labels: NDArray[np.int32]
    split: NDArray[np.int8]

    def subset(self, part: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Tokens and labels of one part of the split."""
        return self.tokens[self.split == part], self.labels[self.split == part]


def make_data(config: TrainConfig) -> TaskData:
    """Every pair (a, b) or chosen place with its answer, split by the config's seed, fractions and sampler."""
    p, task = config.p, TASKS[config.task]
    if task.answer is None:
        contexts, followed, counts = choose_places(config)
        split = np.repeat(np.array([TRAIN, TEST, UNUSED], np.int8), counts)
        _require_both(config, split)
        return TaskData(contexts, followed, split)
    a, b = (grid.ravel() for grid in np.meshgrid(np.arange(p), np.arange(p), indexing="ij"))
    if task.divides:
        a, b = a[b != 0], b[b != 0]
    marks = [np.full_like(a, mark) for mark in range(p, config.num_tokens)]
    columns = [a, marks[0], b, marks[1]] if config.tokens == 4 else [a, b, *marks]
    tokens = np.stack(columns, axis=1).astype(np.int32)
    labels = task.answer(a, b, p) % p
    return TaskData(tokens, labels.astype(np.int32), _split(config, a, b))


def operands(tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """The operands (sample, 2) of input tokens (sample, slot)."""
    return tokens[:, [0, 2 if tokens.shape[1] == 4 else 1]]


def _split(config: TrainConfig, a: Ints, b: Ints) -> NDArray[np.int8]:
    """Draw test pairs first, if their share is given, so that no sampler affects the test set."""
    rng = np.random.default_rng([config.seed, 0])
    split = np.full(len(a), UNUSED, np.int8)
    if config.test_fraction is not None:
        split[rng.permutation(len(a))[: round(config.test_fraction * len(a))]] = TEST
    free = np.flatnonzero(split == UNUSED)
    count = min(round(config.train_fraction * len(a)), len(free))
    samples = Samples(np.stack([a[free], b[free]], axis=1), config.p, config.skew)
    split[free[SAMPLERS[config.sampler].choose(samples, count, rng)]] = TRAIN
    if config.test_fraction is None:
        split[split == UNUSED] = TEST
    _require_both(config, split)
    return split


def _require_both(config: TrainConfig, split: NDArray[np.int8]) -> None:
    """Raise ConfigError for a split that leaves nothing to learn from or nothing to test on."""
    what, more = ("samples", "samples") if config.reads_text else ("pairs", "p")
    for part, name in ((TRAIN, "train_fraction"), (TEST, "test_fraction")):
        if (split == part).any():
            continue
        if getattr(config, name) is None:
            raise ConfigError(
                f"all {len(split)} {what} are trained on: none is left to test on",
                "lower --train-fraction, or set --test-fraction",
            )
        raise ConfigError(
            f"{name} {getattr(config, name)} of {len(split)} {what} leaves none",
            f"raise {flag_of(name)} or --{more}",
        )
