"""Counts of the matrix products and bytes that one Hessian-vector product needs."""

from __future__ import annotations

import dataclasses

OPERANDS = 2
"""Slots that vary between samples; `op` and `=` are constant."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of an embedding MLP and of its training set: samples N, vocabulary V, slots s, width d, hidden h, C."""

    N: int
    V: int
    s: int
    d: int
    h: int
    C: int

    @property
    def parameters(self) -> int:
        """E, W, b1, V and b2."""
        return self.V * self.d + self.h * (self.s * self.d + 1) + self.C * (self.h + 1)

    def gemms(self) -> list[tuple[int, int, int, int]]:
        """(rows, inner, columns, how often) of the matrix products in one product with the whole Hessian.

        With the first layer through the tables T_k = E W_k^T: three pairs between samples, hidden units and classes,
        and by operand slot two products each for the perturbed tables, the rows of E and the rows of W.
        """
        by_slot = 2 * OPERANDS
        return [
            (self.C, self.h, self.N, 2),
            (self.C, self.N, self.h, 2),
            (self.N, self.C, self.h, 2),
            (self.V, self.d, self.h, by_slot),
            (self.V, self.h, self.d, by_slot),
            (self.h, self.V, self.d, by_slot),
        ]

    def flops(self) -> int:
        """Multiplications and additions of `gemms`."""
        return sum(2 * rows * inner * columns * times for rows, inner, columns, times in self.gemms())

    def bytes(self, itemsize: int) -> int:
        """Least bytes that one product reads and writes: the point's arrays, the parameters, v and H v."""
        return itemsize * (2 * self.N * (self.h + self.C) + 3 * self.parameters)
