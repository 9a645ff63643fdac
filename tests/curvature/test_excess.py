"""The excess index of two blocks: its bounds, and what is known of it, against dense spectra and closed forms."""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest
import torch
from helpers.matrices import Hidden
from torch import Tensor

from landscape.curvature.coupling import combined, coupling, excess_index, joint
from landscape.curvature.eigsh import Method
from landscape.curvature.inertia import Inertia, saddle_index
from landscape.curvature.operators import MatrixOperator
from landscape.errors import ArgumentError, NumericsError


def symmetric(n: int, seed: int, shift: float = 0.0) -> Tensor:
    """A random symmetric matrix, indefinite unless it is shifted far."""
    A = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (A + A.T) / 2 + shift * torch.eye(n, dtype=torch.float64)


def of_rank(m: int, n: int, r: int, seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 1000)
    left, right = (torch.randn(k, r, generator=generator, dtype=torch.float64) for k in (m, n))
    return scale * left @ right.T


def whole(A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    return torch.cat([torch.cat([A, B], 1), torch.cat([B.T, C], 1)])


def negatives(H: Tensor, tau: float = 0.0) -> int:
    return int((torch.linalg.eigvalsh(H) < -tau).sum())


def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Blocks of any size, curvature and coupling, and the rank of their coupling."""
    rng = np.random.default_rng(seed)
    m, n = (int(x) for x in rng.integers(2, 25, 2))
    r = int(rng.integers(0, min(m, n) + 1))
    A, C = (symmetric(k, seed + i, float(rng.uniform(-3, 3))) for i, k in enumerate((m, n)))
    return A, of_rank(m, n, r, seed, 10 ** rng.uniform(-2, 1)), C, r


@pytest.mark.parametrize("seed", range(60))
def test_it_is_certified_and_within_its_bounds(seed: int) -> None:
    """-min(r, n_-(A), n_-(C)) <= excess <= min(r, m - n_-(A), n - n_-(C)), and n_- of the joint block by Cauchy."""
    A, B, C, r = drawn(seed)
    a, c, joint = negatives(A), negatives(C), negatives(whole(A, B, C))
    excess = excess_index(*map(MatrixOperator, (A, B, C)), abs_tau=1e-9)
    assert (excess.index, excess.level, excess.failure_probability) == (joint - a - c, "certified", 0.0)
    assert np.isnan(excess.estimate)
    assert -min(r, a, c) <= joint - a - c <= min(r, len(A) - a, len(C) - c)
    assert max(a, c) <= joint <= a + c + min(r, *B.shape)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), pytest.param((3, 4), marks=pytest.mark.long)])
def test_every_value_between_the_bounds_occurs(sizes: tuple[int, int]) -> None:
    """Direct sums of 2 x 2 blocks [[s, b], [b, t]], so that no sharper bound holds for these sizes, ranks, indices."""
    m, n = sizes
    occurring: dict[tuple[int, int, int], set[int]] = {}
    kinds = [*itertools.product((-1.0, 1.0), (-1.0, 1.0), (0.0, 0.5, 2.0))]
    for chosen in itertools.combinations_with_replacement(kinds, min(m, n)):
        for rest in itertools.product((-1.0, 1.0), repeat=abs(m - n)):
            A = torch.tensor([s for s, _, _ in chosen] + list(rest) * (m > n)).double().diag()
            C = torch.tensor([t for _, t, _ in chosen] + list(rest) * (n > m)).double().diag()
            B = torch.zeros(m, n).double()
            B.diagonal().copy_(torch.tensor([b for _, _, b in chosen]))
            excess = excess_index(*map(MatrixOperator, (A, B, C)), abs_tau=1e-9)
            assert excess.index is not None
            r = sum(b != 0 for _, _, b in chosen)
            occurring.setdefault((negatives(A), negatives(C), r), set()).add(excess.index)
    assert len(occurring) == (m + 1) * (n + 1) * (min(m, n) + 1)
    for (a, c, r), values in occurring.items():
        assert values == set(range(-min(r, a, c), min(r, m - a, n - c) + 1)), (a, c, r)


@pytest.mark.parametrize("seed", range(20))
def test_haynsworth(seed: int) -> None:
    """n_-(H) = n_-(A) + n_-(C - B^T A^-1 B), so that the excess is what the Schur complement has more than C."""
    A, B, C, _ = drawn(seed)
    schur = C - B.T @ torch.linalg.solve(A, B)
    assert excess_index(*map(MatrixOperator, (A, B, C)), abs_tau=1e-9).index == negatives(schur) - negatives(C)


@pytest.mark.parametrize("seed", range(20))
def test_of_positive_blocks_it_counts_the_coupling_ratios_above_one(seed: int) -> None:
    """F0 is the case of no negative curvature in the blocks, at any tolerance."""
    A, C = (symmetric(n, seed).matrix_exp() for n in (7, 9))
    A, C = ((X + X.T) / 2 for X in (A, C))
    blocks = [MatrixOperator(X) for X in (A, of_rank(7, 9, 5, seed, 3.0), C)]
    for tolerance in (1e-6, 0.3):
        ratios = coupling(*blocks, abs_tau=tolerance, method="dense")
        assert ratios.index > 0
        assert excess_index(*blocks, abs_tau=tolerance).index == ratios.index


@pytest.mark.parametrize("seed", range(30))
def test_the_index_beside_positive_parts(seed: int) -> None:
    """For H_ii = G_i + R_i: #{kappa > 1} with G_i is n_-(H) but for at most n_-(R_1) + n_-(R_2) more, n_+ fewer."""
    rng = np.random.default_rng(seed)
    G = [symmetric(n, seed).matrix_exp() for n in (6, 8)]
    R = [of_rank(n, n, int(rng.integers(0, 3)), seed + i) for i, n in enumerate((6, 8))]
    R = [float(rng.uniform(0, 3)) * (X + X.T) for X in R]
    B = of_rank(6, 8, 6, seed)
    count = coupling(MatrixOperator((G[0] + G[0].T) / 2), MatrixOperator(B), MatrixOperator((G[1] + G[1].T) / 2), 1e-9)
    H = whole((G[0] + G[0].T) / 2 + R[0], B, (G[1] + G[1].T) / 2 + R[1])
    below, above = (sum(negatives(s * X, 1e-9) for X in R) for s in (1, -1))
    assert count.index - above <= negatives(H, 1e-9) <= count.index + below


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_matrix_free_brackets_hold(seed: int) -> None:
    """Brackets from products alone hold the dense count, and close where few directions are negative."""
    bulk = seed % 2 == 0
    A, C = (symmetric(n, seed, 0.0 if bulk else 0.9 * (2 * n) ** 0.5) for n in (60, 80))
    B = of_rank(60, 80, 4, seed, 0.5)
    tolerance = 1e-2
    exact = negatives(whole(A, B, C), tolerance) - negatives(A, tolerance) - negatives(C, tolerance)
    excess = excess_index(*map(Hidden, (A, B, C)), tolerance, "lanczos", seed, max_hvps=400 if bulk else 3000)  # type: ignore[arg-type]
    assert excess.lower <= exact <= excess.upper
    assert excess.level in ("bracketed", "estimated")
    assert excess.lower <= excess.estimate_low <= excess.estimate <= excess.estimate_high <= excess.upper
    assert excess.estimate_low <= exact <= excess.estimate_high
    assert (excess.index == exact) == (not bulk)
    assert 0 <= excess.failure_probability <= 3e-6


def of(lower: int, upper: int, level: str = "bracketed", tolerance: float = 1e-3) -> Inertia:
    return Inertia(-1, -1, -1, lower, upper, tolerance, level)


def test_brackets_combine() -> None:
    """Each bound is the extreme over all indices that the brackets and the theorems allow: compared one by one."""
    m, n = 4, 5
    cases = [(0, 4, 1, 3, 2, 2), (3, 7, 0, 4, 0, 5), (0, 9, 0, 0, 0, 0), (2, 3, 1, 3, 2, 2), (6, 9, 1, 3, 0, 5)]
    for low, high, a_low, a_high, c_low, c_high in cases:
        possible = [
            j - a - c
            for j in range(low, high + 1)
            for a in range(a_low, a_high + 1)
            for c in range(c_low, c_high + 1)
            if max(a, c) <= j and -min(a, c) <= j - a - c <= min(m - a, n - c)
        ]
        excess = combined(of(low, high), of(a_low, a_high), of(c_low, c_high), (m, n))
        assert excess.lower <= min(possible)
        assert max(possible) <= excess.upper
        assert (excess.lower, excess.upper) == (min(possible), max(possible))


def test_levels_probabilities_and_tolerances_combine() -> None:
    """The least level, the sum of the probabilities; indices at different tolerances have no excess."""
    joint, first, second = of(3, 3, "certified"), of(1, 1, "estimated"), of(0, 2)
    joint, second = (dataclasses.replace(x, failure_probability=p) for x, p in ((joint, 0.0), (second, 1e-6)))
    excess = combined(joint, first, second, (9, 9))
    assert (excess.level, excess.failure_probability, excess.lower, excess.upper) == ("estimated", 1e-6, 0, 2)
    assert excess.index is None
    with pytest.raises(ArgumentError, match=r"indices at tolerances \[0\.001, 0\.002\]") as raised:
        combined(joint, of(1, 1, tolerance=2e-3), of(0, 0), (9, 9))
    assert "below the same -tau" in raised.value.hint


def test_default_tolerances_are_those_of_the_joint_block() -> None:
    """1e-8 of its norm for dense blocks, as saddle_index takes it."""
    A, B, C, _ = drawn(3)
    expected = saddle_index(MatrixOperator(whole(A, B, C))).tolerance
    assert excess_index(*map(MatrixOperator, (A, B, C))).tolerance == pytest.approx(expected, rel=2e-3)
    assert joint(*map(MatrixOperator, (A, B, C))).shape == (len(A) + len(C),) * 2


def test_the_tolerance_that_a_refusal_names_is_accepted() -> None:
    """abs_tau is absolute: so is one of the two numbers of the hint, which a block of another size shows."""
    blocks = [MatrixOperator(1e4 * X) for X in drawn(3)[:3]]
    with pytest.raises(NumericsError, match="is below the error of the computed Hessian") as refusal:
        excess_index(*blocks, abs_tau=1e-20)
    relative, absolute = (float(x) for x in re.findall(r"\d\.\de-\d+", refusal.value.hint))
    assert absolute > 1e3 * relative
    # The digits shown are rounded.
    assert excess_index(*blocks, abs_tau=1.1 * absolute).level == "certified"


@pytest.mark.parametrize("method", ["dense", "lanczos"])
def test_zero_blocks_in_error_are_refused(method: Method) -> None:
    """Blocks known to 1 may hold any index at tau = 1e-3; beyond the error there is none.

    Without an error there is none in matrices; products that are all 0 may have vanished, below any tau above 0.
    """
    zero = [torch.zeros(4, 4), torch.zeros(4, 3), torch.zeros(3, 3)]
    first, B, second = (X.double() for X in zero)
    blocks = MatrixOperator(first, 1.0), MatrixOperator(B), MatrixOperator(second, 1.0)
    with pytest.raises(NumericsError, match=r"tau 1.0e-03 is below the error of the computed Hessian, \S+, which is 0"):
        excess_index(*blocks, abs_tau=1e-3, method=method)
    for error, tau in ((1.0, 10.0), (0.0, 1e-3), (0.0, 0.0)):
        excess = excess_index(MatrixOperator(first, error), blocks[1], MatrixOperator(second, error), tau, method)
        vanished = method == "lanczos" and error == tau == 0
        assert (excess.index, excess.tolerance) == (None if vanished else 0, tau)
