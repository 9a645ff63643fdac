"""Extreme eigenpairs of a matrix without its spectrum: the lowest from the inverse of a Cholesky factor."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.ends import inverse
from landscape.curvature.lanczos import EigenResult, eigsh
from landscape.curvature.operators import LinearMap, MatrixOperator, Product
from landscape.curvature.random_start import RandomRun
from landscape.curvature.rounding import RUNS, rounding_change
from landscape.curvature.search import HIDDEN
from landscape.curvature.solve import shifted_factor
from landscape.curvature.sound import Sound
from landscape.curvature.vectors import Array, column_norms, gaussian, probe_bound, seeded, to_array

_CLOSE = 3e-4
"""Residual of the estimate of the lowest eigenvalue, relative to the spectrum's width.

At three times as much, estimates are often further above it than the first distance: a second factorisation, and three
times as many solves from a shift so far away, take longer than all products of the estimate.
"""
_AWAY = (1e-4, 1e-3, 3e-2)
"""Distances of the shift below the estimate, relative to |H|, one after the other until the matrix is definite."""
_MOST = 600
"""Solves after which the inverse is given up."""


def shifted_ends(op: LinearMap, H: MatrixOperator, k: int, rtol: float, seed: int, max_hvps: int) -> EigenResult:
    """The k lowest and k highest eigenpairs of H, with which `op` multiplies in less time (cf. `eigsh`).

    The highest take few products. The lowest are often clusters, which take thousands of products; they are the highest
    of (H - s)^-1 with s just below the spectrum, which take a Cholesky factorisation and some hundred solves. Values
    and residuals are those of products. `hidden` allows for what the search in the inverse may have missed and for the
    rounding of solves. Where a pair does not converge, both ends are found by products.
    """
    high = eigsh(op, k, "highest", "lanczos", rtol, seed, max_hvps=max_hvps)
    run = _lowest(op, seed, max_hvps)
    spent = high.num_products + run.num_products
    if below := _inverse(H.matrix, run):
        inverted, shift = below
        low = eigsh(inverted, k, "highest", "lanczos", 0.1 * rtol, seed, max_hvps=_MOST)
        vectors = low.vectors[0]
        image = op @ vectors
        values = (vectors * image).sum(0)
        residual = to_array(
            column_norms(image - vectors * values) + rounding_change(op.__matmul__, vectors, image, seed)
        )
        spent += (1 + RUNS) * vectors.shape[1]
        norm = max(high.operator_norm, float(values.abs().max()))
        # Products and the assembled matrix differ by the error of that.
        hidden = _hidden(H.matrix, shift, inverted, low, to_array(values)) + H.error
        converged = low.converged[0] & (residual <= high.tol * norm)
        if converged.all() and hidden <= max(10 * high.tol, HIDDEN) * norm:
            return dataclasses.replace(
                high,
                values=np.stack([to_array(values), high.values[0]]),
                vectors=torch.stack([vectors, high.vectors[0]]),
                residuals=np.stack([residual, high.residuals[0]]),
                converged=np.stack([converged, high.converged[0]]),
                num_products=spent,
                ritz=np.union1d(to_array(values), high.ritz),
                operator_norm=norm,
                orthonormality=max(low.orthonormality, high.orthonormality),
                hidden=np.array([hidden, high.hidden[0]]),
                which="both",
                hidden_failure_probability=max(low.hidden_failure_probability, high.hidden_failure_probability),
            )
    found = eigsh(op, k, "both", "lanczos", rtol, seed, max_hvps=max_hvps)
    return dataclasses.replace(found, num_products=found.num_products + spent)


def _lowest(op: LinearMap, seed: int, max_hvps: int) -> RandomRun:
    """A run whose first Ritz value is near the lowest eigenvalue, and above it."""
    run = RandomRun(Sound(op), None, seeded(seed), partial=True)
    for last in run.projections(max_hvps):
        if last or run.residuals()[0] <= _CLOSE * (run.theta[-1] - run.theta[0]):
            break
    return run


def _inverse(matrix: Tensor, run: RandomRun) -> tuple[Product, float] | None:
    """The inverse of H - s with s below the spectrum; None if none of a few s is."""
    for away in _AWAY:
        shift = float(run.theta[0]) - away * float(np.abs(run.theta).max())
        if (factor := shifted_factor(matrix, -shift)) is not None:
            return inverse(factor), shift
    return None


def _hidden(matrix: Tensor, shift: float, inverted: LinearMap, found: EigenResult, values: Array) -> float:
    """How far the i-th of `values` may be from the i-th lowest eigenvalue of the matrix; infinity if that is unknown.

    With A = H - s, positive definite, and B as the inverse is applied, |A B - 1| <= r < 1 is measured by probes. Then
    |A^-1| <= |B| / (1 - r), and eigenvalues of B are within r |A^-1| of those of A^-1 (Weyl).
    """
    X = gaussian(len(matrix), 8).to(matrix)
    solved = inverted @ X
    r = probe_bound(matrix @ solved - shift * solved - X)
    inverses, missed = found.values[0], float(found.hidden[0])
    apart = missed + r / (1 - r) * (inverses[0] + missed) if r < 1 else np.inf
    if not apart < inverses[-1]:
        return float("inf")
    return float(max(np.abs(shift + 1 / (inverses + sign * apart) - values).max() for sign in (-1, 1)))
