"""A Krylov space that ends early shows all there is to rounding only: what hides below that is not counted out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.matrices import matrix
from torch import Tensor

from landscape.curvature.density import quadrature
from landscape.curvature.eigsh import ACCEPTED, unseen
from landscape.curvature.inertia import Inertia, saddle_index
from landscape.curvature.krylov import RandomRun
from landscape.curvature.operators import MatrixOperator


class Diagonal:
    """An operator of given eigenvalues in their own precision."""

    def __init__(self, values: Tensor) -> None:
        self.values, self.shape = values[:, None], (len(values), len(values))
        self.dtype, self.device = values.dtype, values.device

    def __matmul__(self, vectors: Tensor) -> Tensor:
        return self.values * vectors if vectors.ndim == 2 else self.values[:, 0] * vectors


def holds(found: Inertia, index: int) -> bool:
    """Whether the bracket holds the index, and the interval of the estimate, too."""
    assert found.estimate is not None
    return found.lower <= index <= found.upper and found.estimate.low <= index <= found.estimate.high


@pytest.mark.parametrize("seed", range(3))
def test_an_eigenvalue_below_rounding_is_not_counted_out(seed: int) -> None:
    """Half 1, half 0 and one at -2 tau: three distinct values, of which a random start shows two in float64."""
    values = torch.zeros(10_000, dtype=torch.float64)
    values[:5_000], values[-1] = 1, -2e-12
    found = saddle_index(Diagonal(values), rel_tau=1e-12, method="lanczos", seed=seed)
    assert found.num_products < 50
    assert holds(found, 1)
    assert (found.level, found.upper) == ("estimated", 10_000)


def test_twenty_eigenvalues_below_the_rounding_of_single_precision_are_not_counted_out() -> None:
    """At the default tau, which is not refused: they make up 3e-5 of the image of a random vector."""
    values = torch.zeros(100_000)
    values[:50_000], values[-20:] = 1, -2e-3
    found = saddle_index(Diagonal(values), method="lanczos")
    assert found.num_products < 50
    assert holds(found, 20)
    assert found.upper > 20


@pytest.mark.parametrize("kind", ["identity", "rank 20", "cluster below ones"])
def test_few_distinct_values_are_still_answered(kind: str) -> None:
    """A miss is so unlikely in float64 that the bracket closes, though not with a probability of 0."""
    values = {
        "identity": np.ones(400),
        "rank 20": np.r_[np.linspace(1, 20, 20), np.zeros(380)],
        "cluster below ones": np.r_[-np.ones(6), np.ones(394)],
    }[kind]
    found = saddle_index(MatrixOperator(matrix(values)), method="lanczos")
    assert (found.negative, found.level) == (int((values < 0).sum()), "bracketed")
    assert 0 < found.failure_probability <= 1e-6
    assert found.estimate is not None
    assert found.estimate.high <= 12


def test_a_basis_that_is_the_whole_space_proves() -> None:
    """Of nine values nothing is left to hide in when a bound is first asked for: the probability is 0."""
    values = np.r_[-1.0, np.linspace(0.1, 1, 8)]
    found = saddle_index(MatrixOperator(matrix(values)), method="lanczos")
    assert (found.negative, found.failure_probability) == (1, 0)
    assert not quadrature(MatrixOperator(matrix(values))).left_over.any()


def test_a_missed_eigenvalue_is_as_likely_as_the_reach_says() -> None:
    """The probability at a distance is the inverse of the distance at a probability."""
    run = RandomRun(MatrixOperator(matrix(np.linspace(-1, 1, 300))), None, torch.Generator().manual_seed(0))
    next(last for last in run.projections(60) if last)
    for failure in (1e-9, 1e-6, 1e-3):
        for end in ("lowest", "highest"):
            assert run.missed(end, run.reach(end, failure)) == pytest.approx(failure, rel=1e-6)  # type: ignore[arg-type]
    assert run.missed("lowest", 1e-12) == 1


def test_unseen_takes_no_exhaustion_for_a_proof() -> None:
    """The projector has two values; a limit below the rounding of its images cannot be shown, one above can."""
    values = torch.zeros(10_000, dtype=torch.float64)
    values[:5_000] = 1
    nothing = torch.zeros(10_000, 0, dtype=torch.float64)
    assert not unseen(Diagonal(values), nothing, 1e-12, ACCEPTED, 400, 0)[0]
    assert unseen(Diagonal(values), nothing, 1e-3, 1e-6, 400, 0)[0]
