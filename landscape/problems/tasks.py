"""Arithmetic mod p: pairs, labels, input tokens and the split into training and test pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from landscape.config import TrainConfig
from landscape.errors import ConfigError, lookup

TRAIN, TEST, UNUSED = 0, 1, 2
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class TaskData:
    """All pairs of a task: tokens (sample, slot), labels (sample), split (sample: 0 train, 1 test, 2 unused)."""

    tokens: NDArray[np.int32]
    labels: NDArray[np.int32]
    split: NDArray[np.int8]

    def subset(self, part: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Tokens and labels of one part of the split."""
        return self.tokens[self.split == part], self.labels[self.split == part]


def make_data(config: TrainConfig) -> TaskData:
    """Every pair (a, b) with its answer, split by the config's seed, fractions and sampler."""
    p = config.p
    a, b = (grid.ravel() for grid in np.meshgrid(np.arange(p), np.arange(p), indexing="ij"))
    if config.task == "div":
        a, b = a[b != 0], b[b != 0]
    columns = [a, np.full_like(a, p), b, np.full_like(a, p + 1)] if config.tokens == 4 else [a, b]
    tokens = np.stack(columns, axis=1).astype(np.int32)
    labels = lookup(ANSWERS, "task", config.task)(a, b, p) % p
    return TaskData(tokens, labels.astype(np.int32), _split(config, a, b))


def _divided(a: Ints, b: Ints, p: int) -> Ints:
    inverse: Ints = np.array([pow(int(x), -1, p) if x else 0 for x in range(p)])
    product: Ints = a * inverse[b]
    return product


ANSWERS: dict[str, Callable[[Ints, Ints, int], Ints]] = {
    "add": lambda a, b, p: a + b,
    "sub": lambda a, b, p: a - b,
    "mul": lambda a, b, p: a * b,
    "div": _divided,
    "squares": lambda a, b, p: a * a + b * b,
}
"""The answer to a pair by task, before reduction mod p."""


def _split(config: TrainConfig, a: Ints, b: Ints) -> NDArray[np.int8]:
    """Draw test pairs first, if their share is given, so that no sampler affects the test set."""
    rng = np.random.default_rng([config.seed, 0])
    split = np.full(len(a), UNUSED, np.int8)
    if config.test_fraction is not None:
        split[rng.permutation(len(a))[: round(config.test_fraction * len(a))]] = TEST
    free = np.flatnonzero(split == UNUSED)
    count = min(round(config.train_fraction * len(a)), len(free))
    split[free[choose_pairs(config, a[free], b[free], count, rng)]] = TRAIN
    if config.test_fraction is None:
        split[split == UNUSED] = TEST
    for part, name in ((TRAIN, "train_fraction"), (TEST, "test_fraction")):
        if not (split == part).any():
            raise ConfigError(
                f"{name} {getattr(config, name)} of {len(a)} pairs leaves none",
                f"raise --{name.replace('_', '-')} or --p",
            )
    return split


def choose_pairs(config: TrainConfig, a: Ints, b: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Indices of `count` pairs, chosen without replacement by the config's sampler."""
    if config.sampler == "uniform":
        return _spread_evenly(a, b, count, rng)
    exponents = {"random": 0.0, "skewed": config.skew, "zipf": 1.0, "frequency_aware": 0.0}
    exponent = lookup(exponents, "sampler", config.sampler)
    weight = token_weights(config.p, exponent, rng)
    # Efraimidis and Spirakis (2006): the largest u^(1/w) are a weighted sample without replacement.
    key = np.log(rng.random(len(a))) / (weight[a] * weight[b])
    return np.argsort(-key)[:count]


def token_weights(p: int, exponent: float, rng: np.random.Generator) -> Floats:
    """Probability of each operand ~ rank^-exponent, with ranks assigned at random."""
    weight = np.arange(1, p + 1, dtype=float) ** -exponent
    shuffled: Floats = rng.permutation(weight / weight.sum())
    return shuffled


def _spread_evenly(a: Ints, b: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Take pairs from shuffled diagonals of the table; each contains every operand once per slot."""
    p = int(max(a.max(), b.max())) + 1
    row, column, diagonal = (rng.permutation(p) for _ in range(3))
    return np.lexsort((row[a], diagonal[(column[b] - row[a]) % p]))[:count]
