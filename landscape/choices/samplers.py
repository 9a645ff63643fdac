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
    Choose = Callable[["Samples", int, np.random.Generator], Ints]
    Follow = Callable[[Floats], Floats]


@dataclasses.dataclass(frozen=True)
class Samples:
    """What is chosen from: operands (sample, slot) below p, pairs of numbers or words; skew: as in the config."""

    operands: Ints
    p: int
    skew: float
    is_text: bool = False


@dataclasses.dataclass(frozen=True)
class Sampler:
    """How pairs are chosen.

    choose: indices of a number of pairs, without replacement. follow: sampling probabilities of the operands from the
    norms of their embeddings' gradients; None: batches come from shuffled epochs. ranks: whether it gives operands
    ranks, which the words of a text have already.
    """

    choose: Choose
    follow: Follow | None
    ranks: bool


SAMPLERS: Registry[Sampler] = Registry("sampler")


def sampler(follow: Follow | None = None, ranks: bool = False) -> Callable[[Choose], Choose]:
    """Register a function that chooses samples as a sampler of its name."""

    def register(choose: Choose) -> Choose:
        SAMPLERS.add(choose.__name__, Sampler(choose, follow, ranks), choose.__doc__)
        return choose

    return register


@sampler()
def uniform(samples: Samples, count: int, rng: np.random.Generator) -> Ints:
    """every operand equally often, of words as the last of the context"""
    import numpy as np

    if samples.is_text:
        return _in_turn(samples.operands[:, -1], count, rng)
    # Shuffled diagonals of the table; each contains every operand once per slot.
    a, b = samples.operands.T
    p = int(samples.operands.max()) + 1
    row, column, diagonal = (rng.permutation(p) for _ in range(3))
    return np.lexsort((row[a], diagonal[(column[b] - row[a]) % p]))[:count]


@sampler()
def random(samples: Samples, count: int, rng: np.random.Generator) -> Ints:
    """every pair or place of a text equally likely"""
    return _by_rank(samples, count, rng, exponent=0.0)


@sampler(ranks=True)
def skewed(samples: Samples, count: int, rng: np.random.Generator) -> Ints:
    """token probability ~ rank^-skew"""
    return _by_rank(samples, count, rng, exponent=samples.skew)


@sampler(ranks=True)
def zipf(samples: Samples, count: int, rng: np.random.Generator) -> Ints:
    """token probability ~ 1/rank"""
    return _by_rank(samples, count, rng, exponent=1.0)


def _softmax(gradient_norm: Floats) -> Floats:
    """p_i ~ softmax(|grad_i|^2 / gamma), gamma the mean of |grad_i|^2 (the paper gives no value)."""
    import numpy as np

    score = gradient_norm**2
    score = score / max(score.mean(), np.finfo(float).tiny)
    weight = np.exp(score - score.max())
    probability: Floats = weight / weight.sum()
    return probability


@sampler(follow=_softmax)
def frequency_aware(samples: Samples, count: int, rng: np.random.Generator) -> Ints:
    """as random, and batches smaller than the training set favour tokens with large gradients"""
    return random(samples, count, rng)


def token_weights(p: int, exponent: float, rng: np.random.Generator) -> Floats:
    """Probability of each operand ~ rank^-exponent, with ranks assigned at random."""
    import numpy as np

    weight = np.arange(1, p + 1, dtype=float) ** -exponent
    shuffled: Floats = rng.permutation(weight / weight.sum())
    return shuffled


def _by_rank(samples: Samples, count: int, rng: np.random.Generator, exponent: float) -> Ints:
    import numpy as np

    weight = token_weights(samples.p, exponent, rng)
    # Efraimidis and Spirakis (2006): the largest u^(1/w) are a weighted sample without replacement.
    key = np.log(rng.random(len(samples.operands))) / weight[samples.operands].prod(axis=1)
    return np.argsort(-key)[:count]


def _in_turn(words: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Indices of a number of words, every word once before any is taken again."""
    import numpy as np

    shuffled = rng.permutation(len(words))
    by_word = shuffled[words[shuffled].argsort(kind="stable")]
    _, firsts, counts = np.unique(words[by_word], return_index=True, return_counts=True)
    turn = np.arange(len(words)) - firsts.repeat(counts)
    chosen: Ints = by_word[np.lexsort((rng.random(len(words)), turn))][:count]
    return chosen
