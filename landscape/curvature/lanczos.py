"""Extreme eigenvalues with residuals: LAPACK for dense blocks, thick-restart Lanczos for the rest."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.arguments import (
    require_choice,
    require_count,
    require_positive,
    require_symmetric,
    require_vectors,
)
from landscape.curvature.ends import end_vectors, tridiagonal_ends
from landscape.curvature.operators import UNDERFLOW, LinearMap, MatrixOperator, known_error, written_out
from landscape.curvature.random_start import RandomRun, kuczynski_wozniakowski
from landscape.curvature.rounding import RUNS, rounding_change
from landscape.curvature.search import ENDS, HIDDEN_FAILURE, Search, Which
from landscape.curvature.sound import Sound, require_range
from landscape.curvature.spaces import space_of
from landscape.curvature.vectors import Array, seeded, to_array
from landscape.results import Curve

Method = Literal["auto", "dense", "lanczos"]
DENSE_LIMIT = 8000
SMALL = 256
"""Order up to which all eigenvectors are as fast as a few."""
_NORM_PRODUCTS = 3000
"""Products after which a norm is taken as it is: noise as large as the tolerance leaves residuals that never fall."""
_TRIDIAGONAL = 3500
"""Order up to which LAPACK's own tridiagonal form, which can be kept, costs no more than torch's and two inverses."""


@dataclasses.dataclass(frozen=True, repr=False)
class EigenResult(Curve):
    """Extreme eigenpairs of a symmetric operator, outermost first.

    values, residuals, converged (end, k); vectors (end, n, k): one end for "lowest" or "highest", lowest and
    highest for `which` "both". residuals are |Hv - lambda v|_2 for the unit vectors returned, recomputed at the end,
    and, where H was not written out, what rounding may have moved Hv by.
    ritz: every eigenvalue if method is "dense", else every eigenvalue of the last projection, ascending.
    operator_norm: max |ritz|. orthonormality: max |V^T V - I| over the returned vectors. tol: the relative residual
    that counted as converged, never below what the precision can hold. error: of a matrix that was assembled, as its
    asymmetry shows it, or what an operator states; eigenvalues are right to residual + error. Residuals of products
    include it. converged also says that a random search of the complement of all vectors converged and found
    no pair that belongs among them. hidden (end,): the i-th value is within `hidden` of the i-th eigenvalue of the
    operator as it is, copies counted, except with probability hidden_failure_probability: no eigenvalue that is not
    listed lies further out than the k-th value by more. 0 if method is "dense"; infinite if max_hvps left none for the
    complement. Where converged it is at most 1e-3 |H|, or 10 tol |H| if larger, in float64 alone: rounding in float32
    mostly leaves no bound, so that `converged` does not wait for one.
    """

    axes = {
        "values": ("end", "rank"),
        "vectors": ("end", "row", "rank"),
        "residuals": ("end", "rank"),
        "converged": ("end", "rank"),
        "hidden": ("end",),
        "ritz": ("ritz_rank",),
    }
    x, y, by, spread = "rank", "values", "end", "residuals"
    words = {"values": "eigenvalue"}

    values: Array
    vectors: Tensor
    residuals: Array
    converged: NDArray[np.bool_]
    num_products: int
    method: str
    ritz: Array
    operator_norm: float
    orthonormality: float
    tol: float
    hidden: Array
    hidden_failure_probability: float
    error: float = 0.0
    which: Which = "both"

    def _labels(self) -> Mapping[str, Sequence[str]]:
        return {"end": list(ENDS[self.which])}

    def clusters(self, end: int, gap: float = 1e-6) -> list[tuple[float, int]]:
        """Eigenvalues of one end as (mean, multiplicity), outermost first: apart by more than gap * |H|.

        end: its row in `values`. The last cluster may continue beyond the k requested values.
        """
        values = self.values[end]
        cuts = np.flatnonzero(np.abs(np.diff(values)) > gap * self.operator_norm) + 1
        return [(float(group.mean()), len(group)) for group in np.split(values, cuts)]


def eigsh(
    op: LinearMap,
    k: int,
    which: Which = "both",
    method: Method = "auto",
    rtol: float = 1e-6,
    seed: int = 0,
    v0: Tensor | None = None,
    max_hvps: int = 3000,
) -> EigenResult:
    """The k lowest and/or k highest eigenvalues of a symmetric operator, at most n.

    method: `auto` is dense up to 8000 rows. rtol: an eigenpair is converged once its residual is at most rtol * |H|, at
    least 10 sqrt(n) eps, and the outermost pair that a random vector finds in the complement has come as far and does
    not belong among the k. v0: where to begin instead of at random (`seed`): vectors (n, m), as many as there are, of
    which the best combinations are taken, or the vectors (end, n, m) of a neighbouring checkpoint, which random
    mixtures of them stand for. max_hvps: products after which the search ends, and reports what has converged; the
    first basis is always filled.
    Raises ArgumentError for an operator that is rectangular or an off-diagonal block.
    """
    require_symmetric(op)
    require_count("k", k)
    require_choice("which", which, get_args(Which))
    require_positive("rtol", rtol)
    require_count("max_hvps", max_hvps, 0)
    if v0 is not None:
        require_vectors("v0", v0, space_of(op).rows, "end")
    n = op.shape[0]
    k = min(k, n)
    tol = max(rtol, 10 * n**0.5 * torch.finfo(op.dtype).eps)
    if is_dense(method, n):
        H = written_out(op)
        ritz, low, high = _dense(H.matrix, k)
        require_range(float(np.abs(ritz).max()), op.dtype)
        return _result(H, which, k, tol, ritz, low, high, error=H.error)
    given, error, op = op, known_error(op), Sound(op)
    search = Search(op, k, which, tol, seed, max_hvps)
    low, high = search.run(v0)
    is_matrix = isinstance(given, MatrixOperator)
    return _result(op, which, k, tol, search.krylov.theta, low, high, search, error, is_matrix)


def operator_norm(op: LinearMap, tol: float = 1e-3, seed: int = 0) -> float:
    """max |lambda|, from one random vector: the largest |Ritz value| once its residual is at most tol times it.

    At most a tenth too small, except with probability 1e-6, for any spectrum, but for rounding below float64.
    """
    run = RandomRun(Sound(op), None, seeded(seed))
    for last in run.projections(_NORM_PRODUCTS):
        top = int(np.abs(run.theta).argmax())
        norm = float(abs(run.theta[top]))
        # Both ends are no wider apart than twice the norm. Below float64 rounding prevents the other bound.
        missed = kuczynski_wozniakowski(run.order, run.num_products, 0.05)
        low, high = (run.reach(end, HIDDEN_FAILURE / 2) for end in ("lowest", "highest"))
        most = max(low - run.theta[0], high + run.theta[-1])
        is_shown = most <= 1.1 * norm or missed <= HIDDEN_FAILURE / 2
        if last or (run.residuals()[top] <= tol * norm and is_shown):
            break
    return norm


def is_dense(method: Method, n: int) -> bool:
    """Whether an operator of order n is written out. Raises ArgumentError for an unknown method."""
    require_choice("method", method, get_args(Method))
    return method == "dense" or (method == "auto" and n <= DENSE_LIMIT)


def _dense(matrix: Tensor, k: int) -> tuple[Array, Tensor, Tensor]:
    """All eigenvalues, and the k lowest and k highest eigenvectors, outermost first."""
    n = len(matrix)
    if matrix.dtype == torch.float64 and not matrix.is_cuda and n > SMALL and 4 * k < n:
        # Numbers too large to square are refused later.
        with contextlib.suppress(RuntimeError, ValueError):
            if n <= _TRIDIAGONAL:
                return tridiagonal_ends(matrix, k)
            values = to_array(torch.linalg.eigvalsh(matrix))
            low, high = (end_vectors(matrix, values, k, lowest) for lowest in (True, False))
            if low is not None and high is not None:
                return values, low, high
    values, vectors = torch.linalg.eigh(matrix)
    return to_array(values), vectors[:, :k], vectors[:, n - k :].flip(1)


def _result(
    op: LinearMap,
    which: Which,
    k: int,
    tol: float,
    ritz: Array,
    low: Tensor,
    high: Tensor,
    search: Search | None = None,
    error: float = 0.0,
    is_matrix: bool = False,
) -> EigenResult:
    """Rayleigh quotients and true residuals of the vectors found; without a search the matrix was factorised."""
    names = ENDS[which]
    ends = [{"lowest": low, "highest": high}[name] for name in names]
    values, residuals, defects = [], [], []
    norm, space = max(abs(ritz[0]), abs(ritz[-1])), space_of(op)

    def norms(X: Tensor) -> Tensor:
        return space.inner(X, X).diagonal().clamp_min(0).sqrt()

    for vectors in ends:
        image, gram = op @ vectors, space.inner(vectors, vectors)
        theta = space.inner(vectors, image).diagonal() / gram.diagonal()
        left_over = image - vectors * theta
        residual = norms(left_over)
        if search is not None and not is_matrix:
            residual = residual + rounding_change(op.__matmul__, vectors, image, 0, norms).to(residual)
        residuals.append(residual)
        values.append(theta)
        defects.append((gram - torch.eye(k).to(gram)).abs().max())
    found = to_array(torch.stack(residuals))
    converged, hidden = found + error <= max(tol * norm, UNDERFLOW), np.zeros(len(ends))
    if search is not None:
        converged &= np.array([[name in search.searched] for name in names])
        # Weyl: the projection on the vectors and on their complement differs from H by their residuals.
        hidden += [search.beyond[name] for name in names]
        hidden += np.linalg.norm(found) if search.failure else 0.0
    return EigenResult(
        values=to_array(torch.stack(values)),
        vectors=torch.stack(ends),
        residuals=found,
        converged=converged,
        num_products=search.products + (1 + RUNS) * len(ends) * k if search else 0,
        method="lanczos" if search else "dense",
        ritz=ritz,
        operator_norm=float(norm),
        orthonormality=float(torch.stack(defects).max()),
        tol=tol,
        hidden=hidden,
        hidden_failure_probability=search.failure if search else 0.0,
        error=error,
        which=which,
    )
