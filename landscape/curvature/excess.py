"""The excess index of two blocks: what their coupling adds to the saddle indices that they have by themselves."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from landscape.curvature.arguments import require_count, require_pair
from landscape.curvature.coupling import joint
from landscape.curvature.density import quadrature
from landscape.curvature.inertia import TAU_DENSE, TAU_LANCZOS, Inertia, bracketed, certified
from landscape.curvature.lanczos import Method, eigsh, is_dense, operator_norm
from landscape.curvature.operators import LinearMap, MatrixOperator, Operator, coupling_error, matrix_of, written_out
from landscape.errors import ArgumentError
from landscape.results import Interval

_LEVELS = ("vanished", "estimated", "bracketed", "certified")


@dataclasses.dataclass(frozen=True, repr=False)
class Excess(Interval):
    """n_-(H_[1,2]) - n_-(H_11) - n_-(H_22), all of them counts below the same -tolerance.

    lower <= excess index <= upper, but for failure_probability. level: that of the least known of the three indices.
    estimate: from their stochastic counts, inside of estimate_low ... estimate_high with a probability of at least
    85 %; NaN at level "certified".
    """

    interval = ("estimate", "lower", "upper")

    lower: int
    upper: int
    level: str
    failure_probability: float
    tolerance: float
    estimate: float = np.nan
    estimate_low: float = np.nan
    estimate_high: float = np.nan

    @property
    def index(self) -> int | None:
        """The excess index, None where only a bracket is known."""
        return self.lower if self.lower == self.upper else None


def excess_index(
    H_11: Operator,
    H_12: Operator,
    H_22: Operator,
    abs_tau: float | None = None,
    method: Method = "auto",
    seed: int = 0,
    max_hvps: int = 3000,
) -> Excess:
    """The excess index of two blocks, whatever the curvature of their own.

    H_11 (m, m), H_12 (m, n), H_22 (n, n). abs_tau: tau itself; default 1e-8 (dense) or 1e-3 (matrix-free) of the
    joint block's norm. dense (auto: up to 8000 rows in all): certified, by three L D L^T factorisations; lanczos:
    brackets and estimates, by up to max_hvps products and some 640 for each of the three blocks. Raises
    NumericsError if tau is not above the error of a block, ArgumentError for shapes that do not belong together.
    """
    require_pair(H_11, H_12, H_22, abs_tau)
    require_count("max_hvps", max_hvps, 0)
    m, n = H_12.shape
    dense = is_dense(method, m + n)
    blocks: list[LinearMap] = [joint(H_11, H_12, H_22), H_11, H_22]
    if dense:
        first, second, B = written_out(H_11), written_out(H_22), matrix_of(H_12)
        whole = torch.cat([torch.cat([first.matrix, B], 1), torch.cat([B.T, second.matrix], 1)])
        error = max(first.error, second.error) + coupling_error(H_12, H_12.T, seed)
        blocks = [MatrixOperator(whole, error), first, second]
    norms = [operator_norm(block, seed=seed) for block in blocks]
    tolerance = abs_tau
    if tolerance is None:
        tolerance = (TAU_DENSE if dense else TAU_LANCZOS) * norms[0]
    counted = []
    for block, norm in zip(blocks, norms, strict=True):
        if isinstance(block, MatrixOperator):
            counted.append(certified(block.matrix, tolerance, norm, block.error, negative_only=True))
        else:
            eigen = eigsh(block, 10, method="lanczos", seed=seed, max_hvps=max_hvps)
            rule = quadrature(block, seed=seed)
            counted.append(bracketed(block, eigen, rule, seed=seed, max_products=max_hvps, tolerance=tolerance))
    return combined(counted[0], counted[1], counted[2], (m, n))


def combined(joint: Inertia, first: Inertia, second: Inertia, sizes: tuple[int, int]) -> Excess:
    """The excess index from indices or brackets of them at one tolerance.

    sizes: m and n. The bounds use, besides the brackets, that the joint block has at least the larger index of the two,
    and at most that of either with all directions of the other (Cauchy; docs/curvature.md). Raises ArgumentError for
    different tolerances.
    """
    tolerances = [found.tolerance for found in (joint, first, second) if found.upper > 0]
    if tolerances and max(tolerances) > min(tolerances) * (1 + 1e-9):
        raise ArgumentError(f"indices at tolerances {tolerances}", "count all three below the same -tau, absolute")
    m, n = sizes
    a, c = min(first.upper, joint.upper), min(second.upper, joint.upper)
    lower = max(joint.lower, a, c) - a - c
    a, c = first.lower, second.lower
    upper = min(joint.upper - a - c, m - a, n - c)
    level = min((found.level for found in (joint, first, second)), key=_LEVELS.index)
    failure = min(1.0, sum(found.failure_probability for found in (joint, first, second)))
    if level == "certified":
        return Excess(lower, upper, level, failure, joint.tolerance)
    (value, low, high), *parts = map(_estimated, (joint, first, second))
    value -= sum(part[0] for part in parts)
    low, high = low - sum(part[2] for part in parts), high - sum(part[1] for part in parts)
    estimates = (float(np.clip(x, lower, upper)) for x in (value, low, high))
    return Excess(lower, upper, level, failure, joint.tolerance, *estimates)


def _estimated(found: Inertia) -> tuple[float, float, float]:
    """An index with its interval: exact where it is known, else as it is estimated, or the bracket."""
    if found.lower == found.upper:
        return found.lower, found.lower, found.lower
    if found.estimate is None:
        return (found.lower + found.upper) / 2, found.lower, found.upper
    return found.estimate.value, found.estimate.low, found.estimate.high
