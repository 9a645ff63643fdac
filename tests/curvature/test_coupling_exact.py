"""Bounds of coupling ratios against 50-digit arithmetic, of searches cut short, and beside certified counts."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from helpers.matrices import Blocks, Hidden, draw, exact_ratios, joint_matrix, semidefinite
from numpy.typing import NDArray

from landscape.curvature.coupling import CouplingResult, coupling
from landscape.curvature.inertia import certified
from landscape.curvature.operators import MatrixOperator

Array = NDArray[np.float64]


def drawn(seed: int) -> tuple[Blocks, float, list[mpmath.mpf]]:
    """Semidefinite blocks of any condition, tau, and ratios whose largest is between 1e-2 and 1e6."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 8, 2)
    tau = 10 ** rng.uniform(-9, -2)
    diagonal = []
    for n in sizes:
        Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
        values = 10 ** rng.uniform(rng.uniform(-9, 0), 0, n) * (np.arange(n) < rng.integers(1, n + 1))
        A = Q * values @ Q.T
        diagonal.append((A + A.T) / 2)
    B = rng.standard_normal(tuple(sizes))
    if seed % 2:
        B = 1e-3 * B + np.outer(B[:, 0], B[0])
    B *= 10 ** rng.uniform(-2, 6) / float(exact_ratios((diagonal[0], B, diagonal[1]), tau)[0])
    blocks = (diagonal[0], B, diagonal[1])
    return blocks, tau, exact_ratios(blocks, tau)


def assert_bounded(result: CouplingResult, true: list[mpmath.mpf]) -> Array:
    """Every ratio is within its error of the true one of its rank; returns how far each is."""
    away = np.array([float(abs(mpmath.mpf(float(x)) - t)) for x, t in zip(result.ratios, true, strict=True)])
    assert (away <= result.errors).all()
    assert (result.distances == result.errors).all()
    assert result.index_lower <= sum(t > 1 for t in true) <= result.index_upper
    return away


@pytest.mark.slow
def test_dense_errors_bound_rounding() -> None:
    """Against 50 digits, for ratios from 1e-2 to 1e6: no error is beyond its bound, nor the bound without meaning."""
    loose, relative = [], []
    for seed in range(80):
        blocks, tau, true = drawn(seed)
        result = coupling(*(MatrixOperator(torch.from_numpy(X)) for X in blocks), tau, method="dense")
        away = assert_bounded(result, true)
        loose.append(result.errors[0] / max(away[0], 1e-300))
        relative.append(result.errors[0] / result.ratios[0])
    assert np.median(loose) < 3000
    assert np.median(relative) < 1e-8


@pytest.mark.slow
def test_dense_errors_bound_errors_of_the_blocks() -> None:
    """Blocks off by up to 0.1 tau in norm, of which the coupling is told: bounds hold, and some are nearly reached."""
    least = np.inf
    for seed in range(80):
        blocks, tau, true = drawn(seed)
        rng = np.random.default_rng(seed)
        error = tau * 10 ** rng.uniform(-6, -1)
        off = []
        for X in blocks:
            E = rng.standard_normal(X.shape)
            E = E + E.T if X is not blocks[1] else E
            off.append(X + E / np.linalg.norm(E, 2) * 0.999 * error)
        result = coupling(*(MatrixOperator(torch.from_numpy(X), error) for X in off), tau, method="dense")
        away = assert_bounded(result, true)
        least = min(least, float((result.errors / np.maximum(away, 1e-300)).min()))
    assert least < 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_the_index_agrees_with_certified_counts(seed: int) -> None:
    """Ratios above 1 and negative pivots of the joint block bracket the same index, also with blocks in error."""
    blocks = semidefinite(20, 17, seed), 0.02 * draw(20, 30, seed=seed), semidefinite(30, 30, seed + 50)
    joint = joint_matrix(*blocks)
    norm = float(torch.linalg.matrix_norm(joint, 2))
    for tau in (1e-6 * norm, 1e-3 * norm, 0.1 * norm):
        for error in (0.0, 1e-4 * tau, 0.1 * tau):
            ratios = coupling(*(MatrixOperator(X, error) for X in blocks), tau, method="dense")
            counted = certified(joint, tau, norm, error)
            index = int((torch.linalg.eigvalsh(joint) < -tau).sum())
            assert ratios.index_lower <= index <= ratios.index_upper
            assert counted.lower <= index <= counted.upper
            if error == 0:
                assert ratios.index == counted.negative == index


@pytest.mark.slow
@pytest.mark.parametrize("budget", [150, 600, 3000])
def test_matrix_free_errors_bound_the_ratio_of_their_rank(budget: int) -> None:
    """Whatever the budget: errors hold for the i-th ratio or are NaN, distances for some ratio; both kinds occur."""
    known, near = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        m, n = rng.integers(20, 80, 2)
        A, C = (semidefinite(int(k), int(rng.integers(k // 2, k + 1)), seed) for k in (m, n))
        B = draw(int(m), int(n), seed=seed + 99)
        if seed % 3 == 0:
            U, s, V = torch.linalg.svd(B, full_matrices=False)
            B = U * torch.linspace(1, 0, len(s), dtype=torch.float64) ** 4 @ V
        tau = 10 ** rng.uniform(-5, -2)
        true = coupling(*map(MatrixOperator, (A, B, C)), tau, method="dense").ratios
        hidden = Hidden(B)
        result = coupling(MatrixOperator(A), hidden, MatrixOperator(C), tau, 5, "lanczos", seed=seed, max_hvps=budget)
        assert result.num_products == hidden.count[0]
        away = np.abs(result.ratios - true[:5])
        assert np.isnan(result.errors).all() or (away <= result.errors).all()
        assert (result.ratios <= true[:5] * (1 + 1e-9)).all()
        assert (np.abs(result.ratios[:, None] - true).min(1) <= result.distances).all()
        known.append(not np.isnan(result.errors).any())
        near.append(bool((away > result.distances).any()))
    assert sum(known) > (0 if budget == 150 else 30)
    if budget == 3000:
        assert not any(near)
