"""The Krylov engine: an orthonormal basis that grows block by block, its projection, Ritz pairs and thick restarts.

The engine does not multiply: callers multiply the next block and pass in its image, so that several runs can share one
product (`advance`) and vectors can be distributed (`VectorSpace`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.operators import LinearMap
from landscape.curvature.sound import require_finite
from landscape.curvature.spaces import VectorSpace
from landscape.curvature.vectors import Array

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
_ROUNDING = 10
"""Rounding of one step, in units of eps * |H|."""
TINY = float(np.finfo(float).tiny)
_ONE = np.ones((1, 1))


class Krylov:
    """An orthonormal basis (rows, filled) outside of `locked` columns, and the next block, orthonormal to both.

    T is the projection of P H P, P = 1 - locked locked^T, on the basis, and coupling = block^T H basis. Both follow
    from the recurrence as long as each block is what `take` made of the one before, restarts included. With
    `keep_images` H basis is kept, `project` computes T from it, and `lead` may choose any other block.
    width: columns of the blocks that `take` makes; there are fewer once the Krylov space is exhausted to rounding.
    """

    def __init__(
        self, space: VectorSpace, columns: int, width: int = 1, locked: Tensor | None = None, keep_images: bool = False
    ) -> None:
        self.space, self.columns, self.width = space, columns, width
        self.basis = self._store()
        self.images = self._store() if keep_images else None
        self.locked = self.basis[:, :0] if locked is None else locked
        self.order = space.order - self.locked.shape[1]
        self.block = self.basis[:, :0]
        self.filled = 0
        # The first basis vector that the next block couples with, as far as is known.
        self.near = 0
        self.T, self.coupling = np.zeros((columns, columns)), np.zeros((0, 0))
        self.theta, self.S = np.zeros(0), np.zeros((0, 0))
        # The size of H seen so far, and what of it is rounding in a new direction.
        self.scale = 0.0
        self.rounding = 10 * space.order**0.5 * torch.finfo(space.dtype).eps

    @property
    def exhausted(self) -> bool:
        """Whether there is no next block: the basis spans an invariant space, to rounding."""
        return self.block.shape[1] == 0

    def lead(self, x: Tensor, width: int | None = None, scale: float = 0.0) -> None:
        """Make the leading directions of x (rows, m) outside of the basis the next block, at most `width`.

        scale: size of what x was computed from, in which its rounding is measured, if larger than x.
        """
        self.block, _ = self._orthonormal(x, self.width if width is None else width, scale)
        self.coupling, self.near = np.zeros((self.block.shape[1], self.filled)), self.filled

    def fill(self, generator: torch.Generator, width: int | None = None) -> None:
        """Widen the next block to `width` columns by random ones, as far as the space has room."""
        missing = min(width or self.width, self.order - self.filled) - self.block.shape[1]
        if missing > 0:
            fresh, _ = self._orthonormal(self.space.randn(missing, generator), missing, beside=self.block)
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
        found: Array = np.linalg.norm(self.coupling @ self.S, axis=0)
        return found

    def vectors(self, indices: NDArray[np.int64]) -> Tensor:
        """Ritz vectors (rows, m)."""
        return self.basis[:, : self.filled] @ self._small(self.S[:, indices])

    def residual_vectors(self, indices: NDArray[np.int64]) -> Tensor:
        """H v - theta v (rows, m) of Ritz pairs, from the images kept."""
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
                C = self.space.inner(x, B).T
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
        found: Array = np.sqrt(np.maximum(self._inner(x, x).diagonal(), 0))
        return found

    def _inner(self, X: Tensor, Y: Tensor) -> Array:
        found: Array = self.space.inner(X, Y).to("cpu", torch.float64).numpy()
        return found

    def _small(self, S: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(S)).to(self.basis)

    def _turned(self, store: Tensor, S: Array) -> Tensor:
        found = store[:, : self.filled] @ self._small(S)
        if self.columns != store.shape[1]:
            store = self._store()
        store[:, : found.shape[1]] = found
        return store

    def _store(self) -> Tensor:
        """Storage for vectors: by rows for blocks, by columns where steps read single vectors."""
        at = self.space
        if self.width > 1:
            return torch.empty(at.rows, self.columns, dtype=at.dtype, device=at.device)
        return torch.empty(self.columns, at.rows, dtype=at.dtype, device=at.device).T


class Lanczos(Krylov):
    """Steps of single vectors; with `partial`, partially reorthogonalised (Simon 1984).

    A step is orthogonalised against the basis only where his recurrence expects an inner product above `_DRIFT`, and
    the step after it: about one in four. T is the same to rounding; `lost` sums the components of H basis that it then
    lacks. Below float64 every step is orthogonalised. Where products are not symmetric, the inner product of a step
    with the vector before, which the recurrence says is 0, shows by how much: it drifts by that.
    """

    def __init__(self, space: VectorSpace, columns: int, locked: Tensor | None = None, partial: bool = True) -> None:
        super().__init__(space, columns, locked=locked)
        self.partial, self.lost, self.asymmetry = partial and space.dtype == torch.float64, 0.0, 0.0
        # Estimated inner products of the basis with its next vector and with the last one.
        self.drift, self.last_drift, self.is_due = np.zeros(0), np.zeros(0), True

    @property
    def noise(self) -> float:
        """Rounding of one step."""
        return _ROUNDING * torch.finfo(self.space.dtype).eps * self.scale

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


def orthonormal(space: VectorSpace, x: Tensor) -> Tensor:
    """Orthonormal columns that span those of x one after the other, which are nearly orthonormal already."""
    R = torch.linalg.cholesky(space.inner(x, x)).mT
    found: Tensor = torch.linalg.solve_triangular(R, x, upper=True, left=False)
    return found


def advance(op: LinearMap, runs: Sequence[Krylov]) -> None:
    """Multiply the next blocks of all runs at once."""
    block = runs[0].block if len(runs) == 1 else torch.cat([run.block for run in runs], dim=1)
    start, images = 0, op @ block
    for run in runs:
        width = run.block.shape[1]
        run.take(images[:, start : start + width])
        start += width
