"""The search for extreme eigenpairs by products alone: block thick-restart Lanczos, and proof that none is missed."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.operators import LinearMap
from landscape.curvature.random_start import End, search_complement

Which = Literal["both", "lowest", "highest"]
ENDS: dict[Which, tuple[End, ...]] = {"both": ("lowest", "highest"), "lowest": ("lowest",), "highest": ("highest",)}
BLOCK = 4
_EASY = 8
"""Restarts after which a search with more than a quarter of its pairs open is hard.

A basis twice as long then takes fewer products, seen: a tenth to a half.
"""
HIDDEN_FAILURE = 1e-6
"""Probability with which `EigenResult.hidden` may be wrong."""
_HIDDEN = 1e-3
"""What may stay hidden beyond ends that count as searched, relative to |H|; 10 tol where that is more."""
_SEARCHED_ONLY = 4
"""Share of the products, one in so many, that is kept for the complement of the ends that converged."""


class Search:
    """Block thick-restart Lanczos: Rayleigh-Ritz on a basis Q that is always fully orthogonalised.

    H Q is kept beside Q, so that T = Q^T H Q is the true projection and every residual a true one, also after
    restarts. A restart keeps the Ritz vectors at the wanted ends. Krylov spaces of few vectors can miss copies of a
    multiple eigenvalue, so that converged pairs are accepted only once a random run in their complement has
    converged, too; what it finds to belong among them is added, and the search goes on.
    beyond, searched, failure: what the last such run proved (cf. `Complement`).
    """

    def __init__(self, op: LinearMap, k: int, which: Which, tol: float, seed: int, max_products: int) -> None:
        self.op, self.n, self.k, self.which = op, op.shape[0], k, which
        self.tol, self.max_products = tol, max_products
        self.ends = ENDS[which]
        # Few are as hard to find as ten where k cuts a cluster: what is kept beyond k tells its members apart.
        self.reach = max(k, min(4 * k, 10))
        self.size, self.longest = (min(self.n, len(self.ends) * (m * self.reach + 2 * BLOCK)) for m in (3, 6))
        self.generator = torch.Generator(device="cpu").manual_seed(seed)
        self.Q = torch.zeros(self.n, self.size, dtype=op.dtype, device=op.device)
        self.HQ = torch.zeros_like(self.Q)
        self.filled = self.products = self.restarts = self.runs = 0
        self.theta: NDArray[np.float64] = np.zeros(0)
        self.S = self.Q[:0, :0]
        self.beyond, self.searched = dict.fromkeys(self.ends, float("inf")), set[End]()
        self.failure = HIDDEN_FAILURE

    def run(self, v0: Tensor | None) -> tuple[Tensor, Tensor]:
        """The k lowest and the k highest Ritz vectors, outermost first."""
        block = self._random(BLOCK) if v0 is None else self._mixed(v0) if v0.ndim == 3 else self._best(v0)
        missed = self.Q[:, :0]
        while True:
            self._fill(block, grow=missed.shape[1] == 0)
            wanted = self._ends(self.k)
            S = self.S[:, wanted]
            theta = torch.from_numpy(self.theta[wanted]).to(S)
            residual = self._basis(self.HQ) @ S - self._basis(self.Q) @ (S * theta)
            norm = float(np.abs(self.theta).max())
            limit = self.tol * norm
            open_ = residual.norm(dim=0) > 0.5 * limit
            if self.filled == self.n:
                self.beyond, self.searched, self.failure = dict.fromkeys(self.ends, 0.0), set(self.ends), 0.0
                return self._vectors()
            if self.products >= self.max_products:
                return self._vectors()
            ready = [e for e, part in zip(self.ends, open_.chunk(len(self.ends)), strict=True) if not bool(part.any())]
            converged = len(ready) == len(self.ends)
            missed = self.Q[:, :0]
            if converged or (ready and _SEARCHED_ONLY * (self.max_products - self.products) <= self.max_products):
                missed = self._missed(ready, norm)[:, : self.size - self.reach * len(self.ends)]
                if missed.shape[1] == 0:
                    return self._vectors()
                self.beyond, self.searched = dict.fromkeys(self.ends, float("inf")), set()
            self.restarts += 1
            if self.restarts >= _EASY and 4 * int(open_.sum()) > len(wanted):
                self.size = self.longest
            self._shrink(self.reach if converged else self.reach + self.reach // 2 + BLOCK)
            if missed.shape[1]:
                block = self._orthonormal(self._orthogonal(missed), 1.0, missed.shape[1])
            else:
                # In a Krylov space all residuals lie in the next block; after a warm start only they lead on.
                block = self._orthonormal(self._orthogonal(residual[:, open_]), norm)

    def _missed(self, ready: list[End], norm: float) -> Tensor:
        """What a random run in the complement found to belong among the Ritz vectors, (n, 0) if nothing."""
        ends = dict(zip(("lowest", "highest"), self._vectors(), strict=True))
        locked = torch.linalg.qr(torch.cat([ends[e] for e in self.ends], dim=1))[0]
        innermost: dict[End, float] = {"lowest": self.theta[self.k - 1], "highest": self.theta[-self.k]}
        self.runs += 1
        # All runs together fail with no more than the probability allowed.
        failure = self.failure / 2**self.runs
        # Rounding below float64 leaves no bound to prove: there the converged run is all that can be asked for.
        can_prove = self.op.dtype == torch.float64
        seen = search_complement(
            self.op,
            locked,
            {e: innermost[e] for e in self.ends},
            ready,
            limit=self.tol * norm,
            hidden=max(10 * self.tol, _HIDDEN) * norm if can_prove else float("inf"),
            failure=failure,
            max_products=self.max_products - self.products,
            generator=self.generator,
        )
        self.products += seen.num_products
        self.beyond, self.searched = seen.beyond, seen.searched
        return seen.found

    def _fill(self, block: Tensor, grow: bool = True) -> None:
        """Put `block` into the basis, grow it from there to its full size, and project."""
        while True:
            start, stop = self.filled, self.filled + block.shape[1]
            self.Q[:, start:stop] = block
            self.HQ[:, start:stop] = image = self.op @ block
            self.filled, self.products = stop, self.products + block.shape[1]
            # Never cut to fit: a dropped direction of the last block would end the Krylov relation.
            block = self._orthonormal(self._orthogonal(image), float(image.norm(dim=0).max()))
            if not grow or block.shape[1] == 0 or stop + block.shape[1] > self.size:
                T = self._basis(self.Q).T @ self._basis(self.HQ)
                theta, self.S = torch.linalg.eigh((T + T.T) / 2)
                self.theta = theta.double().cpu().numpy()
                return

    def _orthogonal(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        """x without its part in the basis (and in `beside`): one pass, to be followed by another."""
        x = _outside(x, self._basis(self.Q))
        return x if beside is None else _outside(x, beside)

    def _orthonormal(self, x: Tensor, scale: float, width: int = BLOCK) -> Tensor:
        """At most `width` orthonormal columns spanning x; directions lost to breakdown are replaced at random."""
        U, s, _ = torch.linalg.svd(x, full_matrices=False)
        breakdown = 10 * self.n**0.5 * torch.finfo(x.dtype).eps * scale
        width = min(width, self.n - self.filled)
        U = U[:, : min(width, int((s > breakdown).sum()))]
        # A nearly dependent column has lost digits, but no more than one further pass brings back (cf. `breakdown`).
        U = torch.linalg.qr(self._orthogonal(U))[0]
        return torch.cat([U, self._random(width - U.shape[1], U)], dim=1)

    def _random(self, width: int, beside: Tensor | None = None) -> Tensor:
        """Random orthonormal columns, orthogonal to the basis and to `beside`."""
        x = torch.randn(self.n, width, generator=self.generator, dtype=torch.float64).to(self.Q)
        for _ in range(2):
            x = torch.linalg.qr(self._orthogonal(x, beside))[0]
        return x

    def _mixed(self, v0: Tensor) -> Tensor:
        """Random mixtures of the vectors of both ends: a block as narrow as any, so that the Krylov relation holds."""
        weights = torch.randn(len(v0) * v0.shape[2], BLOCK, generator=self.generator, dtype=torch.float64)
        mixed = torch.cat(list(v0), dim=1).to(self.Q) @ weights.to(self.Q)
        return self._orthonormal(mixed, 1.0)

    def _best(self, v0: Tensor) -> Tensor:
        """Take the best Ritz vectors of the start vectors given; what leads on from them, and random ones beside."""
        Q = torch.linalg.qr(v0.to(self.Q))[0]
        HQ = self.op @ Q
        theta, self.S = torch.linalg.eigh(Q.T @ HQ)
        self.theta, self.products = theta.double().cpu().numpy(), Q.shape[1]
        S = self.S[:, self._ends(self.size // (4 if self.which == "both" else 2))]
        self.filled = S.shape[1]
        self.Q[:, : self.filled], self.HQ[:, : self.filled] = Q @ S, HQ @ S
        wanted = self.S[:, self._ends(self.k)]
        residual = self._orthogonal(HQ @ wanted)
        block = self._orthonormal(residual, float(np.abs(self.theta).max()), wanted.shape[1])
        return torch.cat([block, self._random(min(BLOCK, self.n - self.filled - block.shape[1]), block)], dim=1)

    def _ends(self, count: int) -> NDArray[np.int64]:
        """Indices of the `count` Ritz values at each wanted end."""
        m = len(self.theta)
        low = np.arange(min(count, m)) if self.which != "highest" else np.zeros(0, np.int64)
        high = np.arange(max(0, m - count), m) if self.which != "lowest" else np.zeros(0, np.int64)
        return np.union1d(low, high)

    def _shrink(self, count: int) -> None:
        """Keep only the Ritz vectors at the wanted ends, in a basis of `size`."""
        S = self.S[:, self._ends(count)]
        stores = [self.Q, self.HQ]
        if self.size > self.Q.shape[1]:
            self.Q, self.HQ = (self.Q.new_zeros(self.n, self.size) for _ in stores)
        for store, old in zip((self.Q, self.HQ), stores, strict=True):
            store[:, : S.shape[1]] = self._basis(old) @ S
        self.filled = S.shape[1]

    def _basis(self, store: Tensor) -> Tensor:
        return store[:, : self.filled]

    def _vectors(self) -> tuple[Tensor, Tensor]:
        Q = self._basis(self.Q)
        found = torch.cat([Q @ self.S[:, : self.k], Q @ self.S[:, -self.k :].flip(1)], dim=1)
        # Restarts in low precision let the basis drift from orthonormality; both ends overlap if the basis is small.
        low, high = (torch.linalg.qr(part)[0] for part in found.split(found.shape[1] // 2, dim=1))
        return low, high


def _outside(x: Tensor, basis: Tensor) -> Tensor:
    """x (n, m) without its part in the orthonormal columns of a basis (n, b): one pass of classical Gram-Schmidt."""
    # BLAS reads a tall basis twice as fast for x^T Q as for Q^T x.
    return torch.addmm(x, basis, (x.T @ basis).T, alpha=-1)
