"""Extreme eigenvalues with residuals: LAPACK for dense blocks, block thick-restart Lanczos for the rest."""

from __future__ import annotations

import dataclasses
from typing import Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.checks import require_choice, require_count, require_positive
from landscape.curvature.operators import LinearMap, Operator
from landscape.curvature.sound import Sound, require_range
from landscape.errors import ArgumentError

Which = Literal["both", "lowest", "highest"]
Method = Literal["auto", "dense", "lanczos"]
DENSE_LIMIT = 8000
BLOCK = 4
_EASY = 8
"""Restarts after which a search with more than a quarter of its pairs open is hard.

A basis twice as long then takes fewer products, seen: a tenth to a half.
"""
SMALL = 256
"""Order up to which all eigenvectors are as quick as a few."""


@dataclasses.dataclass(frozen=True)
class EigenResult:
    """Extreme eigenpairs of a symmetric operator, outermost first.

    values, residuals, converged (end, k); vectors (end, n, k): one end for "lowest" or "highest", lowest and
    highest for "both". residuals are |Hv - lambda v|_2 for the unit vectors returned, recomputed at the end.
    ritz: every eigenvalue if method is "dense", else every eigenvalue of the last projection, ascending.
    operator_norm: max |ritz|. orthonormality: max |V^T V - I| over the returned vectors. tol: the relative residual
    that counted as converged, never below what the precision can hold. error: of a matrix that was assembled, as its
    asymmetry shows it; eigenvalues are right to residual + error. Residuals of products show it themselves.
    """

    values: NDArray[np.float64]
    vectors: Tensor
    residuals: NDArray[np.float64]
    converged: NDArray[np.bool_]
    num_products: int
    method: str
    ritz: NDArray[np.float64]
    operator_norm: float
    orthonormality: float
    tol: float
    error: float = 0.0

    def clusters(self, end: int, gap: float = 1e-6) -> list[tuple[float, int]]:
        """Eigenvalues of one end as (mean, multiplicity), outermost first: apart by more than gap * |H|.

        The last cluster may go on beyond the k values that were asked for.
        """
        values = self.values[end]
        cuts = np.flatnonzero(np.abs(np.diff(values)) > gap * self.operator_norm) + 1
        return [(float(group.mean()), len(group)) for group in np.split(values, cuts)]


def eigsh(
    op: LinearMap,
    k: int,
    which: Which = "both",
    method: Method = "auto",
    tol: float = 1e-6,
    seed: int = 0,
    v0: Tensor | None = None,
    max_products: int = 3000,
) -> EigenResult:
    """The k lowest and/or k highest eigenvalues of a symmetric operator, at most n.

    tol: an eigenpair is converged once its residual is at most tol * |H|; at least 10 sqrt(n) eps. v0: where to begin
    instead of at random (`seed`): vectors (n, m), as many as there are, of which the best combinations are taken, or
    the vectors (end, n, m) of a neighbouring checkpoint, which random mixtures of them stand for.
    `auto` is dense up to 8000 rows. Raises ArgumentError for an operator that is rectangular or an off-diagonal block.
    """
    require_symmetric(op)
    require_count("k", k)
    require_choice("which", which, get_args(Which))
    require_choice("method", method, get_args(Method))
    require_positive("tol", tol)
    n = op.shape[0]
    k = min(k, n)
    tol = max(tol, 10 * n**0.5 * torch.finfo(op.dtype).eps)
    if method == "dense" or (method == "auto" and n <= DENSE_LIMIT):
        H = cast(Operator, op).symmetric()
        ritz, low, high = _dense(H.matrix, k)
        require_range(float(np.abs(ritz).max()), op.dtype)
        return _result(H, which, k, tol, ritz, low, high, 0, "dense", H.error)
    op = Sound(op)
    search = _Search(op, k, which, tol, seed, max_products)
    low, high = search.run(v0)
    return _result(op, which, k, tol, search.theta, low, high, search.products, "lanczos")


def operator_norm(op: LinearMap, tol: float = 1e-3, seed: int = 0) -> float:
    """max |lambda|, from one random vector: the largest |Ritz value| once its residual is at most tol times it."""
    op, generator = Sound(op), torch.Generator().manual_seed(seed)
    q = torch.randn(op.shape[0], generator=generator, dtype=torch.float64).to(op.device, op.dtype)
    Q, HQ = (torch.zeros(op.shape[0], 0, dtype=op.dtype, device=op.device) for _ in range(2))
    for _ in range(op.shape[0]):
        Q = torch.cat([Q, (q / q.norm())[:, None]], dim=1)
        HQ = torch.cat([HQ, op @ Q[:, -1:]], dim=1)
        T = Q.T @ HQ
        theta, S = torch.linalg.eigh((T + T.T) / 2)
        top = int(theta.abs().argmax())
        residual = HQ @ S[:, top] - Q @ S[:, top] * theta[top]
        if float(residual.norm()) <= tol * float(theta[top].abs()):
            break
        q = HQ[:, -1]
        for _ in range(2):
            q = q - Q @ (Q.T @ q)
    return float(theta[top].abs())


def outside(x: Tensor, basis: Tensor) -> Tensor:
    """x (n, m) without its part in the orthonormal columns of a basis (n, b): one pass of classical Gram-Schmidt."""
    # BLAS reads a tall basis twice as fast for x^T Q as for Q^T x.
    return torch.addmm(x, basis, (x.T @ basis).T, alpha=-1)


def require_symmetric(op: LinearMap) -> None:
    """Raise ArgumentError for an operator that has no eigenvalues to speak of."""
    hint = "name the same parameters for rows and columns: op.block(names)"
    if op.shape[0] != op.shape[1]:
        raise ArgumentError(f"eigenvalues of a {op.shape[0]} x {op.shape[1]} operator: take a diagonal block", hint)
    if op.shape[0] == 0:
        raise ArgumentError("eigenvalues of an operator without rows", "give at least one row")
    rows, cols = getattr(op, "rows", None), getattr(op, "cols", None)
    if rows != cols:
        raise ArgumentError(f"eigenvalues of the coupling {rows} x {cols}: take a diagonal block", hint)


def _dense(matrix: Tensor, k: int) -> tuple[NDArray[np.float64], Tensor, Tensor]:
    """All eigenvalues, and the k lowest and k highest eigenvectors, outermost first."""
    n = len(matrix)
    if not matrix.is_cuda and n > SMALL:
        # LAPACK finds eigenvalues alone several times faster than eigenvectors; k of those per end suffice.
        values = torch.linalg.eigvalsh(matrix)
        low, high = _end_vectors(matrix, values, k), _end_vectors(-matrix, -values.flip(0), k)
        if low is not None and high is not None:
            return values.double().cpu().numpy(), low, high
    values, vectors = torch.linalg.eigh(matrix)
    return values.double().cpu().numpy(), vectors[:, :k], vectors[:, n - k :].flip(1)


def _end_vectors(matrix: Tensor, values: Tensor, k: int) -> Tensor | None:
    """The k lowest eigenvectors by Lanczos on the inverse of the matrix shifted to be positive definite.

    values: all eigenvalues, ascending. None unless the vectors reproduce the k lowest, multiplicities and all.
    """
    norm = float(values.abs().max())
    shifted = matrix.clone()
    shifted.diagonal().add_(max(0.1 * float(values[k - 1] - values[0]), 1e-6 * norm) - float(values[0]))
    factor, failed = torch.linalg.cholesky_ex(shifted)
    if int(failed) != 0:
        return None
    inverse = Inverse(factor)
    _, vectors = _Search(inverse, k, "highest", 1e-10, seed=0, max_products=100 * k).run(None)
    # One more inverse iteration and a Rayleigh-Ritz step in H itself sharpen the vectors to rounding.
    Q = torch.linalg.qr(inverse @ vectors)[0]
    image = matrix @ Q
    theta, S = torch.linalg.eigh(Q.T @ image)
    residual = (image @ S - Q @ S * theta).norm(dim=0)
    good = (residual <= 1e-9 * norm).all() and ((theta - values[:k]).abs() <= 1e-11 * norm).all()
    return Q @ S if bool(good) else None


class Inverse:
    """The inverse of L L^T."""

    def __init__(self, factor: Tensor) -> None:
        self.factor, self.dtype, self.device = factor, factor.dtype, factor.device
        self.shape = (len(factor), len(factor))

    def __matmul__(self, vectors: Tensor) -> Tensor:
        # torch.cholesky_solve would copy the whole factor at every call.
        half = torch.linalg.solve_triangular(self.factor, vectors, upper=False)
        solved: Tensor = torch.linalg.solve_triangular(self.factor.mT, half, upper=True)
        return solved


def _result(
    op: LinearMap,
    which: Which,
    k: int,
    tol: float,
    ritz: NDArray[np.float64],
    low: Tensor,
    high: Tensor,
    products: int,
    method: str,
    error: float = 0.0,
) -> EigenResult:
    """Rayleigh quotients and true residuals of the vectors found."""
    ends = {"both": (low, high), "lowest": (low,), "highest": (high,)}[which]
    values, residuals, defects = [], [], []
    norm = max(abs(ritz[0]), abs(ritz[-1]))
    for vectors in ends:
        image = op @ vectors
        products += vectors.shape[1] if method == "lanczos" else 0
        theta = (vectors * image).sum(0) / vectors.square().sum(0)
        residuals.append((image - vectors * theta).norm(dim=0))
        values.append(theta)
        defects.append((vectors.T @ vectors - torch.eye(k).to(vectors)).abs().max())
    residual = torch.stack(residuals).double().cpu().numpy()
    return EigenResult(
        values=torch.stack(values).double().cpu().numpy(),
        vectors=torch.stack(ends),
        residuals=residual,
        converged=residual + error <= tol * norm,
        num_products=products,
        method=method,
        ritz=ritz,
        operator_norm=float(norm),
        orthonormality=float(torch.stack(defects).max()),
        tol=tol,
        error=error,
    )


class _Search:
    """Block thick-restart Lanczos: Rayleigh-Ritz on a basis Q that is always fully orthogonalised.

    H Q is kept beside Q, so that T = Q^T H Q is the true projection and every residual a true one, also after
    restarts. A restart keeps the Ritz vectors at the wanted ends. Once the wanted pairs converge, a fresh random
    block goes in; only when it brings nothing new are they accepted, because Krylov spaces of few vectors can miss
    copies of a multiple eigenvalue.
    """

    def __init__(self, op: LinearMap, k: int, which: Which, tol: float, seed: int, max_products: int) -> None:
        self.op, self.n, self.k, self.which = op, op.shape[0], k, which
        self.tol, self.max_products = tol, max_products
        ends = 2 if which == "both" else 1
        # Few are as hard to find as ten where k cuts a cluster: what is kept beyond k tells its members apart.
        self.reach = max(k, min(4 * k, 10))
        self.size, self.longest = (min(self.n, ends * (m * self.reach + 2 * BLOCK)) for m in (3, 6))
        self.generator = torch.Generator(device="cpu").manual_seed(seed)
        self.Q = torch.zeros(self.n, self.size, dtype=op.dtype, device=op.device)
        self.HQ = torch.zeros_like(self.Q)
        self.filled = self.products = self.restarts = 0
        self.theta: NDArray[np.float64] = np.zeros(0)
        self.S = self.Q[:0, :0]

    def run(self, v0: Tensor | None) -> tuple[Tensor, Tensor]:
        """The k lowest and the k highest Ritz vectors, outermost first."""
        block = self._random(BLOCK) if v0 is None else self._mixed(v0) if v0.ndim == 3 else self._best(v0)
        accepted: NDArray[np.float64] | None = None
        while True:
            self._fill(block)
            wanted = self._ends(self.k)
            S = self.S[:, wanted]
            theta = torch.from_numpy(self.theta[wanted]).to(S)
            residual = self._basis(self.HQ) @ S - self._basis(self.Q) @ (S * theta)
            norm = float(np.abs(self.theta).max())
            limit = self.tol * norm
            open_ = residual.norm(dim=0) > 0.5 * limit
            converged = not bool(open_.any())
            found = self.theta[wanted]
            confirmed = converged and accepted is not None and bool(np.all(abs(found - accepted) <= limit))
            if confirmed or self.filled == self.n or self.products >= self.max_products:
                return self._vectors()
            accepted = found if converged else accepted
            self.restarts += 1
            if self.restarts >= _EASY and 4 * int(open_.sum()) > len(found):
                self.size = self.longest
            self._shrink(self.reach if converged else self.reach + self.reach // 2 + BLOCK)
            # In a Krylov space all residuals lie in the block that comes next; after a warm start only they lead on.
            block = self._random(BLOCK) if converged else self._orthonormal(self._orthogonal(residual[:, open_]), norm)

    def _fill(self, block: Tensor) -> None:
        """Grow the basis from `block` to its full size and project."""
        while True:
            start, stop = self.filled, self.filled + block.shape[1]
            self.Q[:, start:stop] = block
            self.HQ[:, start:stop] = image = self.op @ block
            self.filled, self.products = stop, self.products + block.shape[1]
            # Never cut to fit: a dropped direction of the last block would end the Krylov relation.
            block = self._orthonormal(self._orthogonal(image), float(image.norm(dim=0).max()))
            if block.shape[1] == 0 or stop + block.shape[1] > self.size:
                T = self._basis(self.Q).T @ self._basis(self.HQ)
                theta, self.S = torch.linalg.eigh((T + T.T) / 2)
                self.theta = theta.double().cpu().numpy()
                return

    def _orthogonal(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        """x without its part in the basis (and in `beside`): one pass, to be followed by another."""
        x = outside(x, self._basis(self.Q))
        return x if beside is None else outside(x, beside)

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
