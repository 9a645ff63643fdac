"""The saddle index with its tolerance, its bracket and the level at which it is known (numerics.md, section 2)."""

from __future__ import annotations

import dataclasses

import numpy as np

from landscape.curvature.lanczos import EigenResult, eigsh
from landscape.curvature.operators import Operator
from landscape.errors import NumericsError

TAU_DENSE, TAU_LANCZOS = 1e-8, 1e-3


@dataclasses.dataclass(frozen=True)
class Inertia:
    """Counts of eigenvalues below -tolerance, within it and above it.

    lower <= saddle index <= upper. level "certified": negative == lower == upper; "bracketed": only the bracket is
    known, and negative, zero and positive are -1. tolerance is absolute.
    """

    negative: int
    zero: int
    positive: int
    lower: int
    upper: int
    tolerance: float
    level: str


def saddle_index(op: Operator, tau: float | None = None, seed: int = 0, upper: int | None = None) -> Inertia:
    """The inertia of a symmetric operator. tau: relative to |H|, default 1e-8 (dense) or 1e-3 (matrix-free)."""
    return inertia_of(eigsh(op, 10, seed=seed), op.shape[0], tau, upper=upper)


def inertia_of(
    eigen: EigenResult, n: int, tau: float | None = None, error: float = 0.0, upper: int | None = None
) -> Inertia:
    """The inertia of an n x n operator from what `eigsh` found.

    error: how far the matrix may be from the Hessian in norm (assembly). upper: a bound on the index known from
    theory, such as d * rank(G) (F14). Dense: every computed eigenvalue is within rho = n * eps * |H| + error of a
    true one (Weyl, backward stability), so counting at -tau -+ rho brackets the index. Matrix-free: eigenvalues
    of any projection Q^T H Q below -tau are at most as many as those of H (Cauchy).
    Raises NumericsError if tau is not above rho; the message names the smallest honest one.
    """
    norm = eigen.operator_norm
    dense = eigen.method == "dense"
    relative = tau if tau is not None else (TAU_DENSE if dense else TAU_LANCZOS)
    tolerance = relative * norm
    rho = n * np.finfo(float).eps * norm + error
    if norm > 0 and tolerance <= rho:
        raise NumericsError(
            f"tau {relative:.1e} is below the error of the computed Hessian, {rho / norm:.1e} relative",
            f"use tau >= {2 * rho / norm:.1e}",
        )
    ritz = eigen.ritz
    lower = int((ritz < -tolerance - rho).sum())
    bound = n if upper is None else min(n, upper)
    if not dense:
        return Inertia(-1, -1, -1, lower, bound, tolerance, "bracketed")
    found = int((ritz < -tolerance + rho).sum())
    if lower != found:
        return Inertia(-1, -1, -1, lower, min(found, bound), tolerance, "bracketed")
    positive = int((ritz > tolerance).sum())
    return Inertia(lower, n - lower - positive, positive, lower, lower, tolerance, "certified")
