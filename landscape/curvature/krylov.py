"""Krylov spaces of a symmetric operator: thick restarts, searches from random starts, and the ends that they find."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature import storage
from landscape.curvature.operators import LinearOperator
from landscape.curvature.vectors import (
    Array,
    gaussian,
    inner,
    require_finite,
    seeded,
    to_array,
)

_MOST = 0.7
"""Share of every direction that a Gram-Schmidt pass must keep to be the last one (Daniel et al. 1976)."""
_ENOUGH = 0.1
"""Share of the largest vector that a pass must leave of each so that the block's own columns are all that is left."""
_REMOVED = 1e-2
"""Share of what a pass leaves that it may have removed, to be the last one against the basis.

A basis that is orthonormal to d leaves d times what is removed. By more than this share, d would grow from step to step
where products are not symmetric.
"""
_PASSES = 3
_DRIFT = 1e-8
"""Inner product with the basis at which a step is orthogonalised: below sqrt(eps), T keeps all of its digits."""
_ROWS = 1 << 20
"""Rows of vectors that a restart computes at once."""
_ROUNDING = 10
"""Rounding of one step, in units of eps * |H|."""
TINY = float(np.finfo(float).tiny)
_ONE = np.ones((1, 1))


class Krylov:
    """An orthonormal basis (n, filled) outside of `locked` columns, and the next block, orthonormal to both.

    T is the projection of P H P, P = 1 - locked locked^T, on the basis, and coupling = block^T H basis. Both follow
    from the recurrence as long as each block is what `take` made of the one before, restarts included. With
    `keep_images` H basis is kept, `project` computes T from it, and `lead` may choose any other block.
    width: columns of the blocks that `take` makes; there are fewer once the Krylov space is exhausted to rounding.
    """

    def __init__(
        self, op: LinearOperator, columns: int, width: int = 1, locked: Tensor | None = None, keep_images: bool = False
    ) -> None:
        self.op, self.columns, self.width, self._spaces = op, columns, width, 2 if keep_images else 1
        self.basis = self._store()
        self.images = self._store() if keep_images else None
        self.locked = self.basis[:, :0] if locked is None else locked
        self.order = op.shape[0] - self.locked.shape[1]
        self.block = self.basis[:, :0]
        self.filled = 0
        # The first basis vector that the next block couples with, as far as is known.
        self.near = 0
        self.T, self.coupling = np.zeros((columns, columns)), np.zeros((0, 0))
        self.theta, self.S = np.zeros(0), np.zeros((0, 0))
        # The size of H seen so far, and the share of it up to which a new direction is rounding.
        self.scale = 0.0
        self.rounding = 10 * op.shape[0] ** 0.5 * torch.finfo(op.dtype).eps

    @property
    def exhausted(self) -> bool:
        """Whether there is no next block: the basis spans an invariant space, to rounding."""
        return self.block.shape[1] == 0

    def lead(self, x: Tensor, width: int | None = None, scale: float = 0.0) -> None:
        """Make the leading directions of x (n, m) outside of the basis the next block, at most `width`.

        scale: size of what x was computed from, in which its rounding is measured, if larger than x.
        """
        self.block, _ = self._orthonormal(x, self.width if width is None else width, scale)
        self.coupling, self.near = np.zeros((self.block.shape[1], self.filled)), self.filled

    def fill(self, generator: torch.Generator, width: int | None = None) -> None:
        """Widen the next block to `width` columns by random ones, as far as the space has room."""
        missing = min(width or self.width, self.order - self.filled) - self.block.shape[1]
        if missing > 0:
            random = gaussian(self.op.shape[0], missing, generator).to(self.basis)
            fresh, _ = self._orthonormal(random, missing, beside=self.block)
            self.block = torch.cat([self.block, fresh], dim=1)
            self.coupling = np.concatenate([self.coupling, np.zeros((fresh.shape[1], self.filled))])

    def take(self, image: Tensor) -> None:
        """Take H block: the block joins the basis, and what is new in its image is the next one.

        Raises NumericsError for NaN or infinity, which would otherwise pass for an exhausted space.
        """
        start, stop = self.filled, self.filled + self.block.shape[1]
        self.basis[:, start:stop] = self.block
        if self.images is not None:
            self.images[:, start:stop] = image
        A = self._inner(self.block, image)
        size = float(np.abs(A).max())
        require_finite(size)
        self.T[start:stop, start:stop] = (A + A.T) / 2
        self.T[start:stop, :start], self.T[:start, start:stop] = self.coupling, self.coupling.T
        # Subtract known components first, so that one Gram-Schmidt pass mostly suffices.
        known = self._small(self.T[self.near : stop, start:stop])
        x = torch.addmm(image, self.basis[:, self.near : stop], known, alpha=-1)
        self.filled, self.near, self.scale = stop, start, max(self.scale, size)
        self.block, R = self._orthonormal(x, self.width, self.scale, without_basis=self._is_apart(x))
        self.coupling = np.zeros((len(R), stop))
        self.coupling[:, start:] = R
        self.scale = max(self.scale, float(np.abs(R).max(initial=0.0)))

    def project(self) -> None:
        """Compute the Ritz values theta, ascending, and their coordinates S."""
        m = self.filled
        if self.images is not None:
            T = self._inner(self.basis[:, :m], self.images[:, :m])
            self.T[:m, :m] = (T + T.T) / 2
        self.theta, self.S = np.linalg.eigh(self.T[:m, :m])

    def residuals(self) -> Array:
        """Norms of the residuals of all Ritz pairs in the complement of `locked`, by the recurrence."""
        norms: Array = np.linalg.norm(self.coupling @ self.S, axis=0)
        return norms

    def vectors(self, indices: NDArray[np.int64]) -> Tensor:
        """Ritz vectors (n, m)."""
        return self.basis[:, : self.filled] @ self._small(self.S[:, indices])

    def residual_vectors(self, indices: NDArray[np.int64]) -> Tensor:
        """H v - theta v (n, m) of Ritz pairs, from the images kept."""
        assert self.images is not None
        S = self.S[:, indices]
        image = self.images[:, : self.filled] @ self._small(S)
        return image.addmm_(self.basis[:, : self.filled], self._small(S * self.theta[indices]), alpha=-1)

    def restart(self, keep: NDArray[np.int64], columns: int | None = None) -> None:
        """Keep only these Ritz vectors of the last projection, in a basis with room for `columns`."""
        S, self.columns = self.S[:, keep], columns or self.columns
        self.basis = self._turned(self.basis, S)
        if self.images is not None:
            self.images = self._turned(self.images, S)
        self.coupling = self.coupling @ S
        self.T = np.zeros((self.columns, self.columns))
        self.filled, self.near = len(keep), 0
        np.fill_diagonal(self.T[: self.filled, : self.filled], self.theta[keep])

    def _is_apart(self, x: Tensor) -> bool:
        """Whether x needs no orthogonalisation against the basis: a product less its known components."""
        return False

    def _orthonormal(
        self, x: Tensor, width: int, scale: float = 0.0, beside: Tensor | None = None, without_basis: bool = False
    ) -> tuple[Tensor, Array]:
        """Orthonormal U of at most `width` columns and R with x = U R + (basis, locked, beside, and rounding)."""
        basis = None if without_basis else self.basis[:, : self.filled]
        bases = [B for B in (self.locked, basis, beside) if B is not None and B.shape[1]]
        R, floor, before = np.eye(x.shape[1]), 0.0, float(self.lengths(x).max(initial=0.0))
        width = min(width, x.shape[1], self.order - self.filled)
        for _ in range(_PASSES):
            if width == 0:
                break
            removed = 0.0
            for B in bases:
                C = inner(x, B).T
                x = torch.addmm(x, B, C, alpha=-1)
                removed = max(removed, float(C.norm()))
            gram = self._inner(x, x)
            squared, V = np.linalg.eigh(gram) if len(gram) > 1 else (gram[0], _ONE)
            s = np.sqrt(np.maximum(squared, 0))
            if s[0] < 1e-3 * s[-1]:
                # The Gram matrix loses the digits of short directions.
                s = self.lengths(x @ self._small(V))
            R = s[:, None] * (V.T @ R)
            sizes = np.sqrt((R * R).sum(1))
            floor = floor or self.rounding * max(scale, sizes.max())
            kept = np.argsort(-sizes)[:width]
            kept = kept[(sizes[kept] > floor) & (s[kept] > self.rounding * before)]
            width, R = len(kept), R[kept]
            if width == 0:
                break
            x = x / float(s[0]) if len(s) == 1 else x @ self._small(V[:, kept] / s[kept])
            is_apart = removed <= _REMOVED * s[kept].min()
            if is_apart and s[kept].min() > _MOST * before:
                break
            if is_apart and s[kept].min() > _ENOUGH * before:
                bases = []
            before = 1.0
        return x[:, :width], R[:width]

    def lengths(self, x: Tensor) -> Array:
        """Norms of columns."""
        norms: Array = np.sqrt(np.maximum(self._inner(x, x).diagonal(), 0))
        return norms

    def _inner(self, X: Tensor, Y: Tensor) -> Array:
        return to_array(inner(X, Y))

    def _small(self, S: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(S)).to(self.basis)

    def _turned(self, store: Tensor, S: Array) -> Tensor:
        turned = store if self.columns == store.shape[1] else self._store()
        small = self._small(S)
        # By pieces of vectors: all at once would take as much memory again.
        for old, new in zip(store.split(_ROWS), turned.split(_ROWS), strict=True):
            new[:, : S.shape[1]] = old[:, : self.filled] @ small
        return turned

    def _store(self) -> Tensor:
        """Storage for vectors: by rows for blocks, by columns where steps read single vectors."""
        n, op = self.op.shape[0], self.op
        vectors = storage.vectors(n, self.columns, op.dtype, op.device, self._spaces)
        return vectors.view(n, self.columns) if self.width > 1 else vectors.T


class Lanczos(Krylov):
    """Steps of single vectors; with `partial`, partially reorthogonalised (Simon 1984).

    A step is orthogonalised against the basis only where his recurrence expects an inner product above `_DRIFT`, and
    the step after it: about one in four. T is the same to rounding; `lost` sums the components of H basis that it then
    lacks. Below float64 every step is orthogonalised. Where products are not symmetric, the inner product of a step
    with the vector before, which the recurrence says is 0, shows by how much: it drifts by that.
    """

    def __init__(self, op: LinearOperator, columns: int, locked: Tensor | None = None, partial: bool = True) -> None:
        super().__init__(op, columns, locked=locked)
        self.partial, self.lost, self.asymmetry = partial and op.dtype == torch.float64, 0.0, 0.0
        # Estimated inner products of the basis with its next vector and with the last one.
        self.drift, self.last_drift, self.is_due = np.zeros(0), np.zeros(0), True

    @property
    def noise(self) -> float:
        """Rounding of one step."""
        return _ROUNDING * torch.finfo(self.op.dtype).eps * self.scale

    def restart(self, keep: NDArray[np.int64], columns: int | None = None) -> None:
        super().restart(keep, columns)
        self.drift, self.last_drift, self.is_due = np.full(self.filled, _DRIFT), np.zeros(0), True

    def _is_apart(self, x: Tensor) -> bool:
        if not self.partial:
            return False
        last = self.filled - 1
        if last:
            self.asymmetry = max(self.asymmetry, abs(float(self._inner(x, self.basis[:, last - 1 : last])[0, 0])))
        T, alpha, size = self.T[:last, :last], self.T[last, last], float(self.lengths(x)[0])
        noise = max(self.noise, self.asymmetry)
        beta = self.T[last - 1, last] if last else 0.0
        before, self.last_drift = np.pad(self.last_drift, (0, last - len(self.last_drift))), self.drift
        drift = np.append(T @ self.drift - alpha * self.drift - beta * before, 0.0)
        self.drift = drift + np.copysign(noise, drift)
        is_due, self.is_due = self.is_due, float(np.abs(self.drift).max()) > _DRIFT * size
        if is_due or self.is_due:
            self.lost += float(np.linalg.norm(self._inner(x, self.basis[:, : self.filled])))
            self.drift[:] = noise
        self.drift /= max(size, noise, TINY)
        return not (is_due or self.is_due)


def orthonormal(x: Tensor) -> Tensor:
    """Orthonormal columns that span those of x one after the other, which are nearly orthonormal already."""
    R = torch.linalg.cholesky(inner(x, x)).mT
    Q: Tensor = torch.linalg.solve_triangular(R, x, upper=True, left=False)
    return Q


def advance(op: LinearOperator, runs: Sequence[Krylov]) -> None:
    """Multiply the next blocks of all runs at once."""
    block = runs[0].block if len(runs) == 1 else torch.cat([run.block for run in runs], dim=1)
    start, images = 0, op @ block
    for run in runs:
        width = run.block.shape[1]
        run.take(images[:, start : start + width])
        start += width


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


def _columns(n: int) -> int:
    """Of the basis of a random run."""
    return min(_LONGEST, max(_SHORTEST, _BASIS_BYTES // (8 * n)))


class RandomRun(Lanczos):
    """Lanczos with thick restarts from a random vector in the complement of `locked` (n, m), if given.

    After a restart the run is still a polynomial in P H P applied to the start vector; its zeros are `theta` and the
    Ritz values dropped on the way.
    """

    def __init__(
        self,
        op: LinearOperator,
        locked: Tensor | None,
        generator: torch.Generator,
        columns: int | None = None,
        partial: bool = False,
    ) -> None:
        n = op.shape[0]
        columns = columns or _columns(n)
        room = n if locked is None else n - locked.shape[1]
        super().__init__(op, min(room, columns), locked, partial)
        self.num_products, self.log_beta = 0, 0.0
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

    def projections(self, max_hvps: float) -> Iterator[bool]:
        """Step, project after every tenth and the last product; returns whether it was the last."""
        while True:
            self.step()
            last = self.exhausted or self.num_products >= max_hvps
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
        distances: Array = zeros - zeros.min() if end == "lowest" else zeros.max() - zeros
        return distances

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
    probability `failure`; searched: the ends whose own outermost pair converged or was shown not to belong; missed:
    Ritz vectors (n, m) that belong among the locked ones.
    """

    beyond: dict[End, float]
    searched: set[End]
    missed: Tensor
    num_products: int


def search_complement(
    op: LinearOperator,
    locked: Tensor,
    innermost: Mapping[End, float],
    ready: Collection[End],
    limit: float,
    hidden: float,
    failure: float,
    max_hvps: int,
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
    for last in run.projections(max_hvps):
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


def _sizes(n: int, k: int, which: Which) -> tuple[int, int, int]:
    """Vectors at each end that a search keeps at a restart, in its basis, and in the basis of a hard one."""
    # Few are as hard to find as ten where k cuts a cluster: what is kept beyond k tells its members apart.
    reach = max(k, min(4 * k, 10))
    shorter, longer = (min(n, len(ENDS[which]) * (m * reach + 2 * BLOCK)) for m in (3, 6))
    return reach, shorter, longer


def num_vectors(n: int, k: int, which: Which = "both") -> int:
    """The most vectors that a search for k pairs keeps: a basis and its images, and a random run's basis."""
    return 2 * _sizes(n, k, which)[2] + _columns(n)


class Search:
    """Thick-restart Lanczos, whose every residual is a true one, also after restarts and warm starts.

    A restart keeps the Ritz vectors at the wanted ends. Krylov spaces of few vectors can miss copies of a multiple
    eigenvalue, so that converged pairs are accepted only once a random run in their complement has converged, too;
    what it finds to belong among them is added, and the search goes on.
    width: vectors multiplied at once.
    sought: how many pairs of each end have to converge; the others of the k are as the search leaves them.
    beyond, searched, failure: what the last such run proved (cf. `Complement`).
    rule: nodes and weights of the Gauss quadrature of a Gaussian start's spectral measure, once the basis is full.
    """

    def __init__(
        self, op: LinearOperator, k: int, which: Which, tol: float, seed: int, max_hvps: int, sought: int | None = None
    ) -> None:
        self.op, self.n, self.k, self.which = op, op.shape[0], k, which
        self.sought = k if sought is None else sought
        self.mass, self.rule = 0.0, cast(tuple[Array, Array] | None, None)
        self.tol, self.max_hvps = tol, max_hvps
        self.ends = ENDS[which]
        self.reach, self.size, self.longest = _sizes(self.n, k, which)
        self.generator = seeded(seed)
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
            if self.mass and self.rule is None:
                weights = self.mass * krylov.S[0] ** 2
                # Directions that replace a breakdown have no weight, and are none of the rule.
                has_weight = weights > krylov.rounding**2 * self.mass
                self.rule = krylov.theta[has_weight], weights[has_weight]
            wanted = self._ends(self.k)
            residual = krylov.residual_vectors(wanted)
            norm = float(np.abs(krylov.theta).max())
            is_open = krylov.lengths(residual) > 0.5 * self.tol * norm
            for name, part in zip(self.ends, np.array_split(np.arange(len(wanted)), len(self.ends)), strict=True):
                is_open[part[self.sought :] if name == "lowest" else part[: max(len(part) - self.sought, 0)]] = False
            if krylov.filled == self.n:
                self.beyond, self.searched, self.failure = dict.fromkeys(self.ends, 0.0), set(self.ends), 0.0
                return self._vectors()
            if self.products >= self.max_hvps:
                return self._vectors()
            parts = np.array_split(is_open, len(self.ends))
            ready = [end for end, part in zip(self.ends, parts, strict=True) if not part.any()]
            converged, is_missed = len(ready) == len(self.ends), False
            if converged or (ready and _SEARCHED_ONLY * (self.max_hvps - self.products) <= self.max_hvps):
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
        innermost: dict[End, float] = {"lowest": theta[self.sought - 1], "highest": theta[-self.sought]}
        self.runs += 1
        # All runs together must not exceed the allowed failure probability.
        failure = self.failure / 2**self.runs
        # Below float64 rounding prevents a bound, and a converged run has to suffice.
        can_prove = self.op.dtype == torch.float64
        seen = search_complement(
            self.op,
            orthonormal(torch.cat([ends[e][:, : self.sought] for e in self.ends], dim=1)),
            {e: innermost[e] for e in self.ends},
            ready,
            limit=self.tol * norm,
            hidden=max(10 * self.tol, HIDDEN) * norm if can_prove else float("inf"),
            failure=failure,
            max_hvps=self.max_hvps - self.products,
            generator=self.generator,
        )
        self.products += seen.num_products
        self.beyond, self.searched = seen.beyond, seen.searched
        return seen.missed

    def _begin(self, v0: Tensor | None) -> None:
        """Choose the first block: at random; random mixtures of the vectors of both ends; the best of `v0`."""
        num_vectors = v0.shape[1] if v0 is not None and v0.ndim == 2 else 0
        self.width = BLOCK if num_vectors else 1
        self.krylov = Krylov(self.op, max(self.size, num_vectors), self.width, keep_images=True)
        if v0 is None:
            z = gaussian(self.n, 1, self.generator).to(self.krylov.basis)
            self.mass = float(inner(z, z))
            self.krylov.lead(z)
        elif v0.ndim == 3:
            # A block as narrow as any, so that the Krylov relation holds.
            weights = gaussian(len(v0) * v0.shape[2], self.width, self.generator).to(self.krylov.basis)
            self._lead(torch.cat(list(v0), dim=1).to(self.krylov.basis) @ weights, self.width)
        else:
            self._lead(v0.to(self.krylov.basis), num_vectors)
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
        low = orthonormal(self.krylov.vectors(np.arange(self.k)))
        return low, orthonormal(self.krylov.vectors(np.arange(m - 1, m - self.k - 1, -1)))
