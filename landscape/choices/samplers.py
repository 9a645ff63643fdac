"""Samplers: which pairs a run is trained on, and how often (arXiv 2505.15624, section 4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from landscape.choices.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Choose = Callable[["Pairs", int, np.random.Generator], Ints]
    Follow = Callable[[Floats], Floats]


@dataclasses.dataclass(frozen=True)
class Pairs:
    """What is chosen from: pairs a, b (sample) of operands below p; skew: as in the config."""

    a: Ints
    b: Ints
    p: int
    skew: float


@dataclasses.dataclass(frozen=True)
class Sampler:
    """How pairs are chosen.

    choose: indices of a number of pairs, without replacement. follow: sampling probabilities of the operands from the
    norms of their embeddings' gradients; None: batches come from shuffled epochs.
    """

    choose: Choose
    follow: Follow | None


SAMPLERS: Registry[Sampler] = Registry("sampler")


def sampler(follow: Follow | None = None) -> Callable[[Choose], Choose]:
    """Register a function that chooses pairs as a sampler of its name."""

    def register(choose: Choose) -> Choose:
        SAMPLERS.add(choose.__name__, Sampler(choose, follow), choose.__doc__)
        return choose

    return register


@sampler()
def uniform(pairs: Pairs, count: int, rng: np.random.Generator) -> Ints:
    """every operand equally often"""
    import numpy as np

    # Shuffled diagonals of the table; each contains every operand once per slot.
    p = int(max(pairs.a.max(), pairs.b.max())) + 1
    row, column, diagonal = (rng.permutation(p) for _ in range(3))
    return np.lexsort((row[pairs.a], diagonal[(column[pairs.b] - row[pairs.a]) % p]))[:count]


@sampler()
def random(pairs: Pairs, count: int, rng: np.random.Generator) -> Ints:
    """every pair equally likely"""
    return _by_rank(pairs, count, rng, exponent=0.0)


@sampler()
def skewed(pairs: Pairs, count: int, rng: np.random.Generator) -> Ints:
    """token probability ~ rank^-skew"""
    return _by_rank(pairs, count, rng, exponent=pairs.skew)


@sampler()
def zipf(pairs: Pairs, count: int, rng: np.random.Generator) -> Ints:
    """token probability ~ 1/rank"""
    return _by_rank(pairs, count, rng, exponent=1.0)


def _softmax(gradient_norm: Floats) -> Floats:
    """p_i ~ softmax(|grad_i|^2 / gamma), gamma the mean of |grad_i|^2 (the paper gives no value)."""
    import numpy as np

    score = gradient_norm**2
    score = score / max(score.mean(), np.finfo(float).tiny)
    weight = np.exp(score - score.max())
    probability: Floats = weight / weight.sum()
    return probability


@sampler(follow=_softmax)
def frequency_aware(pairs: Pairs, count: int, rng: np.random.Generator) -> Ints:
    """as random, and batches smaller than the training set favour tokens with large gradients"""
    return random(pairs, count, rng)


def token_weights(p: int, exponent: float, rng: np.random.Generator) -> Floats:
    """Probability of each operand ~ rank^-exponent, with ranks assigned at random."""
    import numpy as np

    weight = np.arange(1, p + 1, dtype=float) ** -exponent
    shuffled: Floats = rng.permutation(weight / weight.sum())
    return shuffled


def _by_rank(pairs: Pairs, count: int, rng: np.random.Generator, exponent: float) -> Ints:
    import numpy as np

    weight = token_weights(pairs.p, exponent, rng)
    # Efraimidis and Spirakis (2006): the largest u^(1/w) are a weighted sample without replacement.
    key = np.log(rng.random(len(pairs.a))) / (weight[pairs.a] * weight[pairs.b])
    return np.argsort(-key)[:count]
