"""The saddle index outside of a few directions, by a low-rank correction of one factorisation."""

from __future__ import annotations

import torch
from torch import Tensor

from landscape.curvature.deflation import Deflated, Spanned
from landscape.curvature.inertia import Inertia, certified, require_honest
from landscape.curvature.ldl import ShiftedLDL
from landscape.curvature.operators import MatrixOperator
from landscape.curvature.vectors import gaussian, probe_bound


def certified_outside(
    H: MatrixOperator, directions: Spanned, tolerance: float, norm: float, factored: ShiftedLDL | None = None
) -> Inertia:
    """The certified index of H on the complement of some directions; zero and positive are not counted.

    With orthonormal columns U and A = H + tolerance = L D L^T, the matrix [[A, U], [U^T, 0]] has the inertia of A and
    that of -U^T A^-1 U, and equally that of A on the complement and as many eigenvalues of either sign as U has
    columns (Haynsworth). Where probes do not prove both counts, the projected matrix is factorised.
    factored: A, if known.
    """
    if directions.dimension == 0:
        return certified(H.matrix, tolerance, norm, H.error, negative_only=True, factored=factored)
    found = _corrected(H, directions, tolerance, norm, factored) if norm else None
    if found is None:
        rest = Deflated(H, directions).symmetric()
        return certified(rest.matrix, tolerance, norm, rest.error, negative_only=True)
    return Inertia(found, -1, -1, found, found, tolerance, "certified", H.error)


def _corrected(
    H: MatrixOperator, directions: Spanned, tolerance: float, norm: float, factored: ShiftedLDL | None
) -> int | None:
    """The index by one factorisation; None where it is not certain."""
    n, U = H.shape[0], directions.basis()
    rho = 2 * H.error + 10 * n * torch.finfo(H.dtype).eps * norm
    require_honest(tolerance, rho, norm)
    if float(directions.remove(U).norm()) > 1e-12 * U.shape[1] ** 0.5:
        return None
    factored = factored or ShiftedLDL(H.matrix, -tolerance)
    # In units of its scale, as everything below.
    A, off = factored.matrix, (H.error + rho) / factored.scale
    X = gaussian(n, 8).to(A)
    Y, solved, once = factored.solve(torch.cat([U, A @ X, X], 1)).split([U.shape[1], 8, 8], 1)
    if not bool(torch.isfinite(Y).all()):
        return None
    # What parts L D L^T from A, relative to it (see count_below), and S from U^T A^-1 U.
    moved = probe_bound(X - solved)
    away = float(Y.norm()) * float((U - A @ Y).norm())
    S = U.T @ Y
    S = (S + S.T) / 2
    known = torch.linalg.eigvalsh(S)
    smallest = float(known.abs().min())
    if not 2 * away < smallest:
        # Also where S is singular, which the complement would be divided by.
        return None

    def inside(solved: Tensor) -> Tensor:
        """The inverse of A on the complement, from that of A."""
        found: Tensor = solved - Y @ torch.linalg.solve(S, U.T @ solved)
        return found

    twice = inside(factored.solve(inside(once)))
    # The nearest eigenvalue to -tolerance on the complement.
    gap = float((10 * twice.norm(dim=0).max()) ** -0.5)
    if not (moved < 0.5 and 2 * off < gap):
        return None
    return factored.negative + int((known > 0).sum()) - U.shape[1]
