"""Tasks: the right answer to each pair of operands mod p."""

from __future__ import annotations

import dataclasses
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
    """The answers to pairs (a, b) mod p; divides: b = 0 has no answer, and p has to be a prime."""

    answer: Answer
    divides: bool

    def count(self, p: int) -> int:
        """How many pairs have an answer."""
        return p * (p - 1) if self.divides else p * p


TASKS: Registry[Task] = Registry("task")


def task(divides: bool = False) -> Callable[[Answer], Answer]:
    """Register a function of a, b (sample) and p as a task of its name; the remainder mod p of its result is taken."""

    def register(answer: Answer) -> Answer:
        TASKS.add(answer.__name__, Task(answer, divides), answer.__doc__)
        return answer

    return register


@task()
def add(a: Ints, b: Ints, p: int) -> Ints:
    """a+b"""
    return a + b


@task()
def sub(a: Ints, b: Ints, p: int) -> Ints:
    """a-b"""
    return a - b


@task()
def mul(a: Ints, b: Ints, p: int) -> Ints:
    """a*b"""
    return a * b


@task(divides=True)
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
