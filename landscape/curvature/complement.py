"""Bounds of a matrix-free saddle index, from negative directions found and random runs that find no others."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from landscape.curvature.lanczos import EigenResult
from landscape.curvature.operators import LinearMap
from landscape.curvature.random_start import RandomRun, kuczynski_wozniakowski
from landscape.curvature.vectors import seeded

ACCEPTED = 1e-3
"""Largest failure probability of an upper bound."""
GATHERED = 0.25
"""Share of the tolerance beyond which directions are gathered, and equally the gap to all others."""
_FEWEST_STEPS, _MAX_STEPS = 10, 400
_EACH = 8
"""Typical products per gathered direction; more if there are many."""
_PER_PRODUCT = 64
"""Gathered directions against which one step is orthogonalised at about the cost of one product."""
_BASIS_BYTES = 5 << 28
_EXACT = 1e-8
"""Error of products, relative to the tolerance, up to which a run of them is one of exact products, to rounding."""
_WIDTH = 0.01
"""Share of the spectrum's width that a run may miss at an end without its being known."""


@dataclasses.dataclass(frozen=True)
class Bounds:
    """lower <= index; index <= upper except with probability failure_probability, or upper is None."""

    lower: int
    upper: int | None
    failure_probability: float
    num_products: int


def index_bounds(
    op: LinearMap,
    eigen: EigenResult,
    tolerance: float,
    error: float,
    failure: float,
    max_products: int,
    seed: int,
    expected: float = 0.0,
) -> Bounds:
    """Bounds of the number of eigenvalues below -tolerance, for products that are right to `error` in norm.

    Directions Q are gathered until a random Lanczos run in their complement shows, except with a probability bounded
    after Kuczynski & Wozniakowski (1992), that H is above -tolerance + gamma there. By Haynsworth's inertia
    additivity the index is then at most that of Q^T H Q + tolerance - R^T R / gamma with R = (1 - Q Q^T) H Q; by
    Cauchy's interlacing it is at least that of Q^T H Q + tolerance. Without such a run within `max_products` there
    is no upper bound; a step in the complement of many directions counts as several of these, and each direction that
    the last run found takes one more. expected: estimated number of directions to gather; a search that exceeds
    `max_products` is not started.
    """
    n = op.shape[0]
    Q = eigen.vectors[0][:, torch.as_tensor(eigen.values[0] < -GATHERED * tolerance)]
    generator = seeded(seed, 1)
    columns = max(64, _BASIS_BYTES // (8 * n))
    runs, products, spent, chance = 0, 0, 0.0, 1.0
    while True:
        left = max_products - spent - Q.shape[1]
        steps = min(_MAX_STEPS, columns - Q.shape[1], int(left / _step_cost(Q.shape[1])))
        missing = expected - Q.shape[1]
        hopeless = _EACH * missing * _step_cost(Q.shape[1] + missing / 2) > left
        if Q.shape[1] == n:
            chance = 0.0
        if steps < _FEWEST_STEPS or Q.shape[1] == n or hopeless:
            break
        steps = min(steps, n - Q.shape[1])
        is_exact = error <= _EXACT * tolerance
        runs += 1
        # Any of the runs may fail: the shares 1/2, 1/6, 1/12 and so on sum to 1.
        share = 1 / (runs * (runs + 1))
        found, chance, used = _run(op, Q, tolerance, error, share * failure, steps, generator, is_exact)
        chance = min(1.0, chance / share)
        products += used
        spent += used * _step_cost(Q.shape[1])
        if chance <= ACCEPTED or found.shape[1] == 0:
            break
        Q = torch.linalg.qr(torch.cat([Q, found], dim=1))[0]
    proved = chance <= ACCEPTED
    if Q.shape[1] == 0:
        return Bounds(0, 0 if proved else None, chance if proved else 0.0, products)
    image = op @ Q
    A = Q.T @ image
    R = image - Q @ A
    lower = _negative(A, -tolerance - error)
    upper = _negative(A - R.T @ R / (GATHERED * tolerance), -tolerance + error) if proved else None
    return Bounds(lower, upper, chance if proved else 0.0, products + Q.shape[1])


def _step_cost(gathered: float) -> float:
    """Products that a step in the complement of so many directions counts as."""
    return 1 + gathered / _PER_PRODUCT


def unseen(op: LinearMap, Q: Tensor, limit: float, failure: float, steps: int, seed: int) -> tuple[bool, int]:
    """Whether a random run shows, except with probability `failure`, no eigenvalue below -limit outside Q."""
    rest = op.shape[0] - Q.shape[1]
    if rest == 0:
        return True, 0
    if steps < 1 or limit <= 0:
        return False, 0
    generator = seeded(seed, 1)
    _, chance, used = _run(op, Q, limit / (1 - GATHERED), 0.0, failure, min(steps, rest, _MAX_STEPS), generator)
    return chance <= failure, used


def _run(
    op: LinearMap,
    Q: Tensor,
    tolerance: float,
    error: float,
    failure: float,
    steps: int,
    generator: torch.Generator,
    is_exact: bool = False,
) -> tuple[Tensor, float, int]:
    """One Lanczos run: Ritz vectors to gather, the probability of a missed one, products used."""
    run = RandomRun(op, Q, generator, columns=steps, partial=is_exact)
    limit = (1 - GATHERED) * tolerance - error
    for last in run.projections(steps):
        # The projection of H is known but for what partial reorthogonalisation left out.
        chance = _chance(run, limit - run.lost, is_exact)
        if last or chance <= failure:
            break
    worth = np.flatnonzero(run.theta < -GATHERED * tolerance)
    return run.vectors(worth), chance, run.num_products


def _chance(run: RandomRun, limit: float, is_exact: bool) -> float:
    """Probability of a missed eigenvalue below -limit.

    Where products are right to rounding the run's own polynomial says it, in a fraction of the steps that the bound
    for all spectra takes. That one needs the width of the spectrum too, which it shows to be seen but for _WIDTH at an
    end.
    """
    lowest, highest = run.theta[0], run.theta[-1]
    if lowest <= -limit:
        return 1.0
    if is_exact or run.exhausted:
        # To rounding, which hides directions that the start vector has little of, unless the basis is all there is.
        return run.missed("lowest", lowest + limit)
    if lowest == highest:
        return 1.0  # A single step shows no width.
    width = (highest - lowest) / (1 - 2 * _WIDTH)
    missed, unseen_end = (
        kuczynski_wozniakowski(run.order, run.num_products, eps) for eps in ((lowest + limit) / width, _WIDTH)
    )
    return min(1.0, missed + 2 * unseen_end)


def _negative(matrix: Tensor, below: float) -> int:
    return int((torch.linalg.eigvalsh((matrix + matrix.T) / 2) < below).sum())
