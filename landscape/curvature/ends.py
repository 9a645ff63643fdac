"""All eigenvalues and the eigenvectors at the ends of a matrix: by LAPACK, or by shift-and-invert Lanczos."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.curvature.krylov import Krylov, advance, orthonormal
from landscape.curvature.operators import LinearMap, Product
from landscape.curvature.spaces import VectorSpace
from landscape.curvature.vectors import Array, column_norms, to_array

_BLOCK = 8
_CLOSE = 1e-14
"""Residual in the inverse, relative to its norm, at which a vector is right."""
_RIGHT = 1e-11
"""Largest residual, and distance from the known eigenvalue, relative to |H|."""
_LEAST = 1e-6
"""Least distance of the shift from the spectrum, relative to |H|: the inverse keeps ten digits."""
_REACH = 0.1
"""Distance of the shift from the outermost eigenvalue, relative to the width of the wanted end."""


def tridiagonal_ends(matrix: Tensor, k: int) -> tuple[Array, Tensor, Tensor]:
    """All eigenvalues of a symmetric matrix, ascending, and its k lowest and k highest eigenvectors, from one form.

    Vectors are (n, k), outermost first. float64, on the CPU. Raises ValueError where LAPACK fails.
    """
    from scipy.linalg import eigh_tridiagonal, lapack

    n = len(matrix)
    work = int(lapack.dsytrd_lwork(n, lower=1)[0])
    form, diagonal, beside, scales, _ = lapack.dsytrd(matrix.clone().numpy().T, lower=1, lwork=work, overwrite_a=1)
    values, failed = lapack.dsterf(diagonal, beside)
    if failed:
        raise ValueError(f"dsterf: {failed} eigenvalues did not converge")
    # Reflectors below the diagonal, the first of them acting on row 1 and below.
    reflectors, ends = np.asfortranarray(form[1:, :-1]), []
    for first in (0, n - k):
        wanted = {"select": "i", "select_range": (first, first + k - 1)}
        vectors = np.asfortranarray(eigh_tridiagonal(diagonal, beside, lapack_driver="stebz", **wanted)[1])
        vectors[1:] = lapack.dormqr("L", "N", reflectors, scales, vectors[1:], lwork=64 * k)[0]
        ends.append(torch.from_numpy(vectors))
    return values, ends[0], ends[1].flip(1)


def end_vectors(matrix: Tensor, values: Array, k: int, lowest: bool) -> Tensor | None:
    """The k lowest or highest eigenvectors (n, k) of a symmetric matrix, outermost first.

    values: every eigenvalue, ascending. The vectors are accepted only with the right eigenvalues, copies counted, and
    small residuals; None where that fails. Costs a Cholesky factorisation and some hundred solves: much less than all
    eigenvectors.
    """
    known = values if lowest else -values[::-1]
    n, sign, norm = len(known), 1 if lowest else -1, float(np.abs(known).max())
    shift = known[0] - max(_REACH * (known[min(k, n - 1)] - known[0]), _LEAST * norm)
    inverse = _inverse(matrix, sign, shift)
    if inverse is None:
        return None
    space, generator = VectorSpace(inverse), torch.Generator().manual_seed(0)
    found = matrix.new_zeros(n, 0)
    # A Krylov space holds few copies of an eigenvalue: what is missing lies outside of all that was found.
    for _ in range(k + 1):
        fresh = _run(inverse, Krylov(space, min(n, 60 * _BLOCK), _BLOCK, locked=found), k, generator)
        # Another product removes what a residual of the inverse hides: components of large eigenvalues.
        found = orthonormal(space, torch.linalg.qr(inverse @ torch.cat([found, fresh], 1)).Q)
        image = sign * (matrix @ found)
        theta, turn = torch.linalg.eigh(found.T @ image)
        found, image = found @ turn[:, :k], image @ turn[:, :k]
        theta = theta[:k]
        residual = to_array(column_norms(image - found * theta))
        missed = np.abs(to_array(theta) - known[: len(theta)]) > _RIGHT * norm
        if len(theta) == k and not missed.any():
            return found if residual.max() <= _RIGHT * norm else None
    return None


def _run(inverse: LinearMap, krylov: Krylov, k: int, generator: torch.Generator) -> Tensor:
    """The k outermost Ritz vectors of one Krylov space, converged as far as a few restarts let them."""
    krylov.fill(generator)
    restarts = 0
    while True:
        advance(inverse, [krylov])
        krylov.fill(generator)
        full = krylov.exhausted or krylov.filled + krylov.block.shape[1] > krylov.columns
        if not full and krylov.filled < 2 * k:
            continue
        krylov.project()
        top = _top(krylov, k)
        close = krylov.residuals()[top] <= _CLOSE * np.abs(krylov.theta).max()
        if close.all() or krylov.exhausted or restarts == 3:
            return krylov.vectors(top)
        if full:
            krylov.restart(_top(krylov, 2 * k))
            restarts += 1


def _top(krylov: Krylov, count: int) -> NDArray[np.int64]:
    m = len(krylov.theta)
    return np.arange(max(0, m - count), m)


def _inverse(matrix: Tensor, sign: int, shift: float) -> Product | None:
    """(sign * H - shift)^-1 by a Cholesky factorisation; None unless that is positive definite."""
    shifted = matrix * sign
    shifted.diagonal().sub_(shift)
    factor, failed = torch.linalg.cholesky_ex(shifted)
    del shifted
    return None if int(failed) else inverse(factor)


def inverse(factor: Tensor) -> Product:
    """The inverse of L L^T."""

    def apply(vectors: Tensor) -> Tensor:
        # torch.cholesky_solve would copy the whole factor at every call.
        half = torch.linalg.solve_triangular(factor, vectors, upper=False)
        solved: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
        return solved

    return Product.square(apply, len(factor), factor)
