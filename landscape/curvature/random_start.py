"""Lanczos from a random vector, with bounds on eigenvalues that it did not find."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.krylov import TINY, Lanczos, advance
from landscape.curvature.operators import LinearMap
from landscape.curvature.spaces import space_of
from landscape.curvature.vectors import Array

End = Literal["lowest", "highest"]
_CHECK_EVERY = 10
_BASIS_BYTES = 1 << 28
_SHORTEST, _LONGEST = 64, 400


def kuczynski_wozniakowski(n: int, steps: int, eps: float) -> float:
    """Probability that a run misses the extreme eigenvalue by more than eps of the spectrum's width.

    1.648 sqrt(n) exp(-sqrt(eps) (2 steps - 1)) at most, for `steps` steps without restart from a random vector of
    order n, whatever the spectrum (Kuczynski & Wozniakowski 1992, theorem 4.2, shifted to a semidefinite matrix).
    """
    return float(min(1.0, 1.648 * n**0.5 * np.exp(-(eps**0.5) * (2 * steps - 1))))


def least_component(n: int, failure: float) -> float:
    """A length that |<u, v>| falls below with a probability of at most `failure`, for random unit v of order n.

    The density of <u, v> on [-1, 1] is at most sqrt(n / (2 pi)); this is the random event of Kuczynski & Wozniakowski.
    """
    return float(failure * (np.pi / (2 * n)) ** 0.5)


class RandomRun(Lanczos):
    """Lanczos with thick restarts from a random vector in the complement of `locked` (n, m), if given.

    After a restart the run is still a polynomial in P H P applied to the start vector; its zeros are `theta` and the
    Ritz values dropped on the way.
    """

    def __init__(
        self,
        op: LinearMap,
        locked: Tensor | None,
        generator: torch.Generator,
        columns: int | None = None,
        partial: bool = False,
    ) -> None:
        n = op.shape[0]
        columns = columns or min(_LONGEST, max(_SHORTEST, _BASIS_BYTES // (8 * n)))
        room = n if locked is None else n - locked.shape[1]
        super().__init__(space_of(op), min(room, columns), locked, partial)
        self.op, self.num_products, self.log_beta = op, 0, 0.0
        self.dropped: list[float] = []
        self.fill(generator)

    def step(self) -> None:
        """Multiply once. Only while the run is not exhausted; restarts where the basis is full."""
        if self.filled == self.columns:
            self.project()
            share = self.columns // 6
            keep = np.r_[:share, self.filled - share : self.filled]
            self.dropped.extend(np.delete(self.theta, keep))
            self.restart(keep)
        advance(self.op, [self])
        self.num_products += 1
        beta = float(self.coupling[:, -1].sum())
        self.log_beta += math.log(max(beta, self.rounding * self.scale, TINY))

    def projections(self, max_products: float) -> Iterator[bool]:
        """Step, project after every tenth and the last product; returns whether it was the last."""
        while True:
            self.step()
            last = self.exhausted or self.num_products >= max_products
            if last or self.num_products % _CHECK_EVERY == 0:
                self.project()
                yield last

    def reach(self, end: End, failure: float) -> float:
        """How far beyond the outermost Ritz value of an end the complement may have an eigenvalue.

        Let q = p(P H P) v be the vector that the run would multiply next, p of degree num_products. An eigenvector u
        of eigenvalue x has |<u, v>| |p(x)| = |<u, q>| <= 1, and |<u, v>| >= least_component with probability
        1 - failure. Outside of its zeros |p| = prod |x - zero| / prod beta grows without bound, so that it says how
        far out x can lie (van Dorsselaer, Hochstenbach & van der Vorst 2000; here with restarts, which drop zeros
        from the basis but not from p). Rounding may hide as much again as `noise`. What T lacks
        changes |p|, a determinant, by a factor of at least 1 - lost / d at a distance d from the zeros.
        """
        if self._sees_all:
            return self.noise
        away = self._away(end)
        width, log_failure = float(away.max()) or self.scale, np.log(failure)
        low, high = -16.0, 16.0
        for _ in range(50):
            middle = (low + high) / 2
            is_seen = self._log_missed(away, width * 10.0**middle) < log_failure
            low, high = (low, middle) if is_seen else (middle, high)
        return float(width * 10.0**high)

    def missed(self, end: End, distance: float) -> float:
        """The smallest probability with which `reach` is within `distance`; 1 where it cannot be."""
        if self._sees_all:
            return float(distance <= self.noise)
        return float(np.exp(min(0.0, self._log_missed(self._away(end), distance))))

    @property
    def _sees_all(self) -> bool:
        """Whether the basis is the whole space, or the operator zero, as no rounding makes an image of a random v."""
        return self.filled == self.order or self.noise == 0

    def _away(self, end: End) -> Array:
        """Distances of the zeros of p from the outermost of them."""
        zeros = np.concatenate([self.theta, self.dropped])
        found: Array = zeros - zeros.min() if end == "lowest" else zeros.max() - zeros
        return found

    def _log_missed(self, away: Array, d: float) -> float:
        """Logarithm of the probability that |<u, v>| is as small as an eigenvalue so far out as d takes."""
        if not self.lost < d:
            return np.inf
        most = np.logaddexp(self.log_beta - np.log(away + d).sum(), np.log(self.noise / d))
        return float(most - np.log1p(-self.lost / d) - np.log(least_component(self.order, 1.0)))


@dataclasses.dataclass(frozen=True)
class Complement:
    """The result of a random run in the complement of locked eigenvectors.

    beyond: by end, how far outside the innermost locked value the complement may have an eigenvalue, but with
    probability `failure`; searched: the ends whose own outermost pair converged or was shown not to belong; found:
    Ritz vectors (n, m) that belong among the locked ones.
    """

    beyond: dict[End, float]
    searched: set[End]
    found: Tensor
    num_products: int


def search_complement(
    op: LinearMap,
    locked: Tensor,
    innermost: Mapping[End, float],
    ready: Collection[End],
    limit: float,
    hidden: float,
    failure: float,
    max_products: int,
    generator: torch.Generator,
) -> Complement:
    """Run in the complement of `locked` until its outermost pair at every `ready` end has converged.

    innermost: by end that is wanted, the innermost locked eigenvalue. A pair outside of it by more than `limit`
    belongs among the locked ones, and ends the run once it has converged. An end is searched once its own outermost
    pair does not belong, has a residual of `limit`, and leaves no more than `hidden` beyond it; or once nothing can
    be there by more than `limit`.
    """
    run = RandomRun(op, locked, generator, partial=True)
    beyond = dict.fromkeys(innermost, float("inf"))
    for last in run.projections(max_products):
        residuals = run.residuals()
        searched, belongs = set[End](), np.zeros(len(run.theta), bool)
        for end, value in innermost.items():
            sign, at = (1, 0) if end == "lowest" else (-1, -1)
            outward = sign * (value - run.theta)
            beyond[end] = min(beyond[end], max(0.0, outward[at] + run.reach(end, failure)))
            if end in ready:
                belongs |= outward > limit
            has_converged = residuals[at] <= limit and beyond[end] <= hidden
            if outward[at] <= limit and (has_converged or beyond[end] <= limit):
                searched.add(end)
        if last or (residuals[belongs] <= limit / 4).any() or searched.issuperset(ready):
            break
    return Complement(beyond, searched, run.vectors(np.flatnonzero(belongs)), run.num_products)
