"""Tasks: the right answer to each pair of operands mod p, or the next word of a text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from landscape.choices.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Answer = Callable[[Ints, Ints, int], Ints]


@dataclasses.dataclass(frozen=True)
class Task:
    """The answers to pairs (a, b) mod p; None: samples are of a text, and answered by it.

    divides: b = 0 has no answer, and p has to be a prime.
    multiplies: the group is that of multiplication, whose circle runs through the discrete logarithm. sign: the answer
    stands at a + sign b on that circle; 0: it is no such sum.
    """

    answer: Answer | None
    divides: bool = False
    multiplies: bool = False
    sign: int = 0

    def count(self, p: int) -> int:
        """How many pairs have an answer."""
        return p * (p - 1) if self.divides else p * p


TASKS: Registry[Task] = Registry("task")
TEXT = "text"
"""The task whose samples are places of a text."""
MODULUS = 1 << 16
"""Largest p: all p^2 pairs are stored."""


def task(divides: bool = False, multiplies: bool = False, sign: int = 0) -> Callable[[Answer], Answer]:
    """Register a function of a, b (sample) and p as a task of its name; the remainder mod p of its result is taken."""

    def register(answer: Answer) -> Answer:
        TASKS.add(answer.__name__, Task(answer, divides, multiplies, sign), answer.__doc__)
        return answer

    return register


@task(sign=1)
def add(a: Ints, b: Ints, p: int) -> Ints:
    """a+b"""
    return a + b


@task(sign=-1)
def sub(a: Ints, b: Ints, p: int) -> Ints:
    """a-b"""
    return a - b


@task(multiplies=True, sign=1)
def mul(a: Ints, b: Ints, p: int) -> Ints:
    """a*b"""
    return a * b


@task(divides=True, multiplies=True, sign=-1)
def div(a: Ints, b: Ints, p: int) -> Ints:
    """a/b (b != 0)"""
    import numpy as np

    inverse: Ints = np.array([pow(x, -1, p) if x else 0 for x in range(p)])
    product: Ints = a * inverse[b]
    return product


@task()
def squares(a: Ints, b: Ints, p: int) -> Ints:
    """a^2+b^2"""
    return a * a + b * b


TASKS.add(TEXT, Task(None), "the next word of a text")


def is_prime(n: int) -> bool:
    """Whether n is a prime, by trial division."""
    return n >= 2 and all(n % q for q in range(2, math.isqrt(n) + 1))
