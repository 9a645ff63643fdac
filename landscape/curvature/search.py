"""Matrix-free search for extreme eigenpairs: thick-restart Lanczos, with bounds on what it missed."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.krylov import Krylov, advance, orthonormal
from landscape.curvature.operators import LinearMap
from landscape.curvature.random_start import End, search_complement
from landscape.curvature.spaces import space_of
from landscape.curvature.vectors import gaussian, seeded

Which = Literal["both", "lowest", "highest"]
ENDS: dict[Which, tuple[End, ...]] = {"both": ("lowest", "highest"), "lowest": ("lowest",), "highest": ("highest",)}
BLOCK = 4
"""Vectors that are multiplied at once where vectors near the wanted ones are known.

From random starts a single vector needs up to half as many products, also where eigenvalues come in copies: it finds
one of each, and searches of the complement the others.
"""
_EASY = 8
"""Restarts after which a search with more than a quarter of its pairs open is hard.

A basis twice as long then takes a tenth to a half fewer products.
"""
HIDDEN_FAILURE = 1e-6
"""Probability with which `EigenResult.hidden` may be wrong."""
HIDDEN = 1e-3
"""Largest `hidden` of ends that count as searched, relative to |H|, or 10 tol if larger."""
_SEARCHED_ONLY = 4
"""One in this many products is reserved for the complement."""


class Search:
    """Thick-restart Lanczos, whose every residual is a true one, also after restarts and warm starts.

    A restart keeps the Ritz vectors at the wanted ends. Krylov spaces of few vectors can miss copies of a multiple
    eigenvalue, so that converged pairs are accepted only once a random run in their complement has converged, too;
    what it finds to belong among them is added, and the search goes on.
    width: vectors multiplied at once.
    beyond, searched, failure: what the last such run proved (cf. `Complement`).
    """

    def __init__(self, op: LinearMap, k: int, which: Which, tol: float, seed: int, max_products: int) -> None:
        self.op, self.n, self.k, self.which = op, op.shape[0], k, which
        self.tol, self.max_products = tol, max_products
        self.ends = ENDS[which]
        # Few are as hard to find as ten where k cuts a cluster: what is kept beyond k tells its members apart.
        self.reach = max(k, min(4 * k, 10))
        self.size, self.longest = (min(self.n, len(self.ends) * (m * self.reach + 2 * BLOCK)) for m in (3, 6))
        self.generator = seeded(seed)
        self.space = space_of(op)
        self.width = 1
        self.products = self.restarts = self.runs = 0
        self.beyond, self.searched = dict.fromkeys(self.ends, float("inf")), set[End]()
        self.failure = HIDDEN_FAILURE

    def run(self, v0: Tensor | None) -> tuple[Tensor, Tensor]:
        """The k lowest and the k highest Ritz vectors, outermost first."""
        self._begin(v0)
        krylov, is_missed = self.krylov, False
        while True:
            self._grow(once=is_missed)
            wanted = self._ends(self.k)
            residual = krylov.residual_vectors(wanted)
            norm = float(np.abs(krylov.theta).max())
            is_open = krylov.lengths(residual) > 0.5 * self.tol * norm
            if krylov.filled == self.n:
                self.beyond, self.searched, self.failure = dict.fromkeys(self.ends, 0.0), set(self.ends), 0.0
                return self._vectors()
            if self.products >= self.max_products:
                return self._vectors()
            parts = np.array_split(is_open, len(self.ends))
            ready = [end for end, part in zip(self.ends, parts, strict=True) if not part.any()]
            converged, is_missed = len(ready) == len(self.ends), False
            if converged or (ready and _SEARCHED_ONLY * (self.max_products - self.products) <= self.max_products):
                missed = self._missed(ready, norm)[:, : self.size - self.reach * len(self.ends)]
                is_missed = missed.shape[1] > 0
                if not is_missed:
                    return self._vectors()
                self.beyond, self.searched = dict.fromkeys(self.ends, float("inf")), set()
            self.restarts += 1
            if self.restarts >= _EASY and 4 * is_open.sum() > len(wanted):
                self.size = self.longest
            krylov.restart(self._ends(self.reach if converged else self.reach + self.reach // 2 + BLOCK), self.size)
            # In a Krylov space all residuals lie in the next block; after a warm start only they lead on.
            # At the tolerance that the precision allows, none that is open may pass for rounding.
            if is_missed:
                self._lead(missed, missed.shape[1])
            else:
                self._lead(residual[:, torch.from_numpy(is_open)], self.width, 0.25 * norm)

    def _missed(self, ready: list[End], norm: float) -> Tensor:
        """Vectors from a random run in the complement that belong among the Ritz vectors; (n, 0) if none."""
        ends, theta = dict(zip(("lowest", "highest"), self._vectors(), strict=True)), self.krylov.theta
        innermost: dict[End, float] = {"lowest": theta[self.k - 1], "highest": theta[-self.k]}
        self.runs += 1
        # All runs together must not exceed the allowed failure probability.
        failure = self.failure / 2**self.runs
        # Below float64 rounding prevents a bound, and a converged run has to suffice.
        can_prove = self.op.dtype == torch.float64
        seen = search_complement(
            self.op,
            orthonormal(self.space, torch.cat([ends[e] for e in self.ends], dim=1)),
            {e: innermost[e] for e in self.ends},
            ready,
            limit=self.tol * norm,
            hidden=max(10 * self.tol, HIDDEN) * norm if can_prove else float("inf"),
            failure=failure,
            max_products=self.max_products - self.products,
            generator=self.generator,
        )
        self.products += seen.num_products
        self.beyond, self.searched = seen.beyond, seen.searched
        return seen.found

    def _begin(self, v0: Tensor | None) -> None:
        """Choose the first block: at random; random mixtures of the vectors of both ends; the best of those given."""
        given = v0.shape[1] if v0 is not None and v0.ndim == 2 else 0
        self.width = BLOCK if given else 1
        self.krylov = Krylov(self.space, max(self.size, given), self.width, keep_images=True)
        if v0 is None:
            self.krylov.fill(self.generator)
        elif v0.ndim == 3:
            # A block as narrow as any, so that the Krylov relation holds.
            weights = gaussian(len(v0) * v0.shape[2], self.width, self.generator).to(self.krylov.basis)
            self._lead(torch.cat(list(v0), dim=1).to(self.krylov.basis) @ weights, self.width)
        else:
            self._lead(v0.to(self.krylov.basis), given)
            self._multiply()
            self.krylov.project()
            residual, norm = self.krylov.residual_vectors(self._ends(self.k)), float(np.abs(self.krylov.theta).max())
            self.krylov.restart(self._ends(self.size // (4 if self.which == "both" else 2)), self.size)
            self._lead(residual, residual.shape[1], norm)
            self.krylov.fill(self.generator, residual.shape[1] + BLOCK)

    def _lead(self, x: Tensor, width: int, scale: float = 0.0) -> None:
        """Continue with x; directions lost to breakdown are replaced at random."""
        self.krylov.lead(x, width, scale)
        self.krylov.fill(self.generator, width)

    def _multiply(self) -> None:
        self.products += self.krylov.block.shape[1]
        advance(self.op, [self.krylov])

    def _grow(self, once: bool) -> None:
        """Grow the basis by one block, or to its full size, and project."""
        krylov = self.krylov
        while True:
            self._multiply()
            krylov.fill(self.generator)
            # Never cut to fit: a dropped direction of the last block would end the Krylov relation.
            if once or krylov.exhausted or krylov.filled + krylov.block.shape[1] > krylov.columns:
                return krylov.project()

    def _ends(self, count: int) -> NDArray[np.int64]:
        """Indices of the `count` Ritz values at each wanted end."""
        m = len(self.krylov.theta)
        low = np.arange(min(count, m)) if self.which != "highest" else np.zeros(0, np.int64)
        high = np.arange(max(0, m - count), m) if self.which != "lowest" else np.zeros(0, np.int64)
        return np.union1d(low, high)

    def _vectors(self) -> tuple[Tensor, Tensor]:
        m = len(self.krylov.theta)
        # Restarts in low precision let the basis drift from orthonormality.
        low = orthonormal(self.space, self.krylov.vectors(np.arange(self.k)))
        return low, orthonormal(self.space, self.krylov.vectors(np.arange(m - 1, m - self.k - 1, -1)))
