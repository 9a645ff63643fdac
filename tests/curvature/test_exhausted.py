"""A Krylov space that ends early shows all there is to rounding only: what hides below that is not counted out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.matrices import matrix
from torch import Tensor

from landscape.curvature.density import quadrature
from landscape.curvature.inertia import Inertia, saddle_index
from landscape.curvature.operators import LinearOperator, MatrixOperator


class Diagonal(LinearOperator):
    """An operator of given eigenvalues in their own precision."""

    def __init__(self, values: Tensor) -> None:
        self.values, self.shape = values[:, None], (len(values), len(values))
        self.dtype, self.device = values.dtype, values.device

    def _matmat(self, vectors: Tensor) -> Tensor:
        return self.values * vectors


def holds(inertia: Inertia, index: int) -> bool:
    """Whether the bracket holds the index, and the interval of the estimate, too."""
    assert inertia.estimate is not None
    return inertia.lower <= index <= inertia.upper and inertia.estimate.low <= index <= inertia.estimate.high


@pytest.mark.parametrize("seed", range(3))
def test_an_eigenvalue_below_rounding_is_not_counted_out(seed: int) -> None:
    """Half 1, half 0 and one at -2 tau: three distinct values, of which a random start shows two in float64."""
    values = torch.zeros(10_000, dtype=torch.float64)
    values[:5_000], values[-1] = 1, -2e-12
    inertia = saddle_index(Diagonal(values), rel_tau=1e-12, method="lanczos", seed=seed)
    assert inertia.num_products < 50
    assert holds(inertia, 1)
    assert (inertia.level, inertia.upper) == ("estimated", 10_000)


def test_twenty_eigenvalues_below_the_rounding_of_single_precision_are_not_counted_out() -> None:
    """At the default tau, which is not refused: they make up 3e-5 of the image of a random vector."""
    values = torch.zeros(100_000)
    values[:50_000], values[-20:] = 1, -2e-3
    inertia = saddle_index(Diagonal(values), method="lanczos")
    assert inertia.num_products < 50
    assert holds(inertia, 20)
    assert inertia.upper > 20


@pytest.mark.parametrize("kind", ["identity", "rank 20", "cluster below ones"])
def test_few_distinct_values_are_still_answered(kind: str) -> None:
    """A miss is so unlikely in float64 that the bracket closes, though not with a probability of 0."""
    values = {
        "identity": np.ones(400),
        "rank 20": np.r_[np.linspace(1, 20, 20), np.zeros(380)],
        "cluster below ones": np.r_[-np.ones(6), np.ones(394)],
    }[kind]
    inertia = saddle_index(MatrixOperator(matrix(values)), method="lanczos")
    assert (inertia.negative, inertia.level) == (int((values < 0).sum()), "bracketed")
    assert 0 < inertia.failure_probability <= 1e-6
    assert inertia.estimate is not None
    assert inertia.estimate.high <= 12


def test_a_basis_that_is_the_whole_space_proves() -> None:
    """Of nine values nothing is left to hide in when a bound is first asked for: the probability is 0."""
    values = np.r_[-1.0, np.linspace(0.1, 1, 8)]
    inertia = saddle_index(MatrixOperator(matrix(values)), method="lanczos")
    assert (inertia.negative, inertia.failure_probability) == (1, 0)
    assert not quadrature(MatrixOperator(matrix(values))).left_over.any()
