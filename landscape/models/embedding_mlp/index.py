"""Brackets of the saddle index of the embedding MLP at any size and tolerance."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from landscape.curvature.inertia import count_below
from landscape.curvature.operators import BlockOperator
from landscape.curvature.schur import WIDTH
from landscape.models.embedding_mlp.closed_form import EmbeddingMLP
from landscape.models.embedding_mlp.complement import (
    Count,
    Embedding,
    Factorisation,
    Output,
    Progress,
    Rest,
    Slot,
    most_few,
)

_APART = (1e-4, 0.1)
"""Shares by which the tolerances of two factorisations lie on either side of the one that is asked for.

The second is taken where rounding is more than the first.
"""
_WRITTEN = 8000
"""Order of a block of E up to which it is written out without being asked to factorise."""


@dataclasses.dataclass(frozen=True)
class Orders:
    """Orders of the exact and of the token-wise factor, each with the rest, and the bytes that one takes.

    token_wise: None where the rows of E in some slot depend on each other.
    """

    exact: int
    token_wise: int | None
    rest: int

    @classmethod
    def of(cls, tokens: Tensor, d: int, h: int, rest: int) -> Orders:
        """For samples of these tokens (n, slot), an embedding of d columns, h hidden units and a rest of this order."""
        used = [len(of_slot.unique()) for of_slot in tokens.T]
        token_wise = h * sum(used[1:]) + rest + h * most_few(rest, h) if max(used) <= d else None
        return cls(h * sum(min(count, d) for count in used) + rest, token_wise, rest)

    def within(self, limit: int) -> int:
        """The order of the factor up to a limit, exact if it can be; 0: there is none."""
        return next((order for order in (self.exact, self.token_wise) if order is not None and order <= limit), 0)

    def bytes(self, limit: int) -> int:
        """Peak memory of that factor."""
        order = self.within(limit)
        # The triangle, a quarter more for panels and what they are made from; at the end the rest, its copies for
        # L D L^T, and what solves with it.
        return 8 * max(5 * order * order // 8 + 2 * order * WIDTH, 6 * self.rest**2) if order else 0


class StructuredIndex:
    """Brackets of the saddle index of `E,W`, of rows of E with W, or of `W,V`, at any tolerance.

    What one tolerance has shown bounds the others: the index falls as the tolerance rises.

    Args:
        net: the network, of a piecewise-linear activation; hessian: products of the whole Hessian of the data loss.
        G: dL/dT_k (token, h) by slot.
        rows: rows of E that are in the block (n,); None: the block is `W,V`.
        limit: the largest order of a factor.
        gauge: count on the complement of the gauge tangents (F7); for all rows of E.
    """

    def __init__(
        self,
        net: EmbeddingMLP,
        hessian: BlockOperator,
        G: Sequence[Tensor],
        rows: Tensor | None,
        limit: int,
        gauge: bool = False,
    ) -> None:
        self.net, self._G, self.rows, self.limit, self.gauge = net, G, rows, limit, gauge
        self.slots = [
            Slot(net.E, W, tokens.unique()) for W, tokens in zip(net.W.split(net.d, 1), net.tokens.T, strict=True)
        ]
        self.rest: Rest = Output(net) if rows is None else Embedding(net, self.slots, G, rows, gauge)
        self._factorisation = Factorisation(net, hessian, self.slots, self.rest)
        self._counts: list[Count] = []

    @functools.cached_property
    def orders(self) -> Orders:
        """Of the factors that may count."""
        return Orders.of(self.net.tokens, self.net.d, self.net.h, self.rest.order)

    def brackets(self, tolerances: Sequence[float], progress: Progress, share: float = 0.0) -> list[tuple[int, int]]:
        """Bounds of the index at each tolerance.

        share: of an upper bound, to which it need be known where the factor is of an order above _WRITTEN.
        """
        ends = zip(self._floors(tolerances), map(self._ceiling, tolerances), strict=True)
        theory = dict(zip(tolerances, ends, strict=True))

        def known(tau: float) -> tuple[int, int]:
            lower = [theory[t][0] for t in tolerances if t >= tau] + [c.negative for c in self._counts if c.low >= tau]
            upper = [theory[t][1] for t in tolerances if t <= tau] + [c.negative for c in self._counts if c.high <= tau]
            return max(lower), min(upper)

        order = self.orders.within(self.limit)
        may_count = order and (self._is_exact or all(slot.is_independent for slot in self.slots))
        least = share if order > _WRITTEN else 0.0
        for tau, above in itertools.product(_bisecting(sorted(tolerances)), (True, False)):
            lower, upper = known(tau)
            if may_count and upper - lower > least * upper:
                self._counts += self._counted(tau, above, progress)
        return [known(tau) for tau in tolerances]

    @property
    def _is_exact(self) -> bool:
        return self.orders.within(self.limit) == self.orders.exact

    def _counted(self, tau: float, above: bool, progress: Progress) -> list[Count]:
        """Counts that bound the index at a tolerance from below, or else from above."""
        counts: list[Count] = []
        for apart in _APART:
            at = tau * (1 + apart if above else 1 - apart)
            count = self.factorised(at, above, progress)
            counts += [count] if count else []
            if count and (count.low >= tau if above else count.high <= tau):
                break
        return counts

    def factorised(self, tau: float, above: bool, progress: Progress = lambda share: None) -> Count | None:
        """The count of one factor, None if rounding leaves none: exact, or at a tau of at least, else at most, this."""
        done = self._factorisation
        return done.exactly(tau, progress) if self._is_exact else done.by_tokens(tau, above, progress)

    def _ceiling(self, tau: float) -> int:
        """F14, F14b: the Hessian is at least K0, whose negative eigenvalues are singular values of gradients."""
        sigma, times = self._sigma
        return times * int((sigma > tau - max(self.net.W.shape) * torch.finfo(sigma.dtype).eps * sigma.max()).sum())

    @functools.cached_property
    def _sigma(self) -> tuple[Tensor, int]:
        """Singular values of the gradient that the coupling of the factors has, and how often each counts."""
        if self.rows is not None:
            return torch.linalg.svdvals(torch.cat([g[self.rows].T for g in self._G])), self.net.d
        samples = self.net.samples(slice(None))
        inputs = self.net.E[samples.x].flatten(1)
        return torch.cat([torch.linalg.svdvals((samples.r * D[:, None]).T @ inputs) for D in samples.D.T]), 1

    def _floors(self, tolerances: Sequence[float]) -> list[int]:
        """F18: the index of E and of what W's null space adds is at most that of the block."""
        if self.rows is None or self.gauge or self.rest.order > max(self.limit, _WRITTEN):
            return [0] * len(tolerances)
        rows, d = self.rows, self.net.d
        places = (rows[:, None] * d + torch.arange(d).to(rows)).flatten()
        H = self.net.hessian(["E"], keep=False)[places][:, places]

        def floor(tau: float) -> int:
            matrix = H.clone()
            for slot, G in zip(self.slots, self._G, strict=True):
                pairs = matrix.view(len(rows), d, len(rows), d)
                pairs -= torch.einsum("tu,il->tiul", G[rows] @ G[rows].T, slot.null / tau)
            matrix.diagonal().add_(tau)
            return count_below(matrix, -10 * torch.finfo(H.dtype).eps * float(matrix.norm())) or 0

        floors: dict[float, int] = {}
        ordered = sorted(set(tolerances))
        for tau in dict.fromkeys([*ordered[:1], *ordered[-1:], *_bisecting(ordered)]):
            # What is below a larger tolerance is below this one; between two that agree nothing is left to count.
            larger = max((floors[t] for t in floors if t > tau), default=0)
            smaller = min((floors[t] for t in floors if t < tau), default=larger + 1)
            floors[tau] = larger if larger == smaller else floor(tau)
        return [floors[tau] for tau in tolerances]


def _bisecting(values: Sequence[float]) -> list[float]:
    """The values, the middle of each range before what is on either side: counts between equal ones are not needed."""
    if not values:
        return []
    half = len(values) // 2
    return [values[half], *_bisecting(values[:half]), *_bisecting(values[half + 1 :])]
