"""Traces: exact where the matrix is small, intervals that cover where it is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.draws import drawn, draws
from helpers.matrices import Diagonal, Hidden, draw, matrix
from numpy.typing import NDArray

from landscape import HessianOperator, MatrixOperator, Objective, mse, trace

Array = NDArray[np.float64]


def spectra(n: int) -> dict[str, Array]:
    """Eigenvalues of one kind each; `n` of them."""
    rng, i = np.random.default_rng(0), np.arange(n)
    return {
        "flat": np.linspace(1, 3, n),
        "flat, indefinite": np.where(i % 2, 1.0, -1.0) * np.linspace(1, 1.1, n),
        "normal": rng.standard_normal(n),
        "skewed": rng.exponential(size=n) ** 3,
        "slow decay": 0.99**i,
        "decay": 0.9**i,
        "fast decay": 0.5**i,
        "decay, indefinite": (-0.8) ** i,
        "1 / i": 1 / (i + 1.0),
        "low rank": np.where(i < 12, 3.0 - i / 2, 0.0),
        "rank of the sketch": np.where(i < 15, 3.0 - i / 2, 0.0),
        "low rank and noise": np.where(i < 12, 5.0, 1e-4 * rng.standard_normal(n)),
        "ends at the sketch": np.where(i < 15, 1.0, 1e-6),
        "zero": np.zeros(n),
    }


SEEDS = draws(60, 600)


@drawn
@pytest.mark.parametrize("name", spectra(400))
def test_intervals_cover_and_the_mean_is_unbiased(name: str) -> None:
    """The 95 % interval holds the trace for at least 95 % of the seeds, within their scatter, and the mean is it.

    The jackknife's error is on average no smaller than the true one, and where the spectrum is smooth at the size of
    the sketch no more than seven times as large.
    """
    values = spectra(400)[name]
    traces = [trace(Diagonal(values), seed=seed) for seed in range(SEEDS)]
    true, rounding = values.sum(), 1e-13 * np.abs(values).sum()
    covers = sum(t.low - rounding <= true <= t.high + rounding for t in traces) / SEEDS
    assert covers >= 0.95 - 3 * (0.95 * 0.05 / SEEDS) ** 0.5
    away = np.array([t.value - true for t in traces])
    size = (away**2).mean() ** 0.5
    assert abs(away.mean()) <= 4 * size / SEEDS**0.5 + rounding
    stated = np.mean([t.standard_error**2 for t in traces]) ** 0.5
    assert stated >= 0.75 * size - rounding
    if name in ("flat", "flat, indefinite", "normal", "skewed", "slow decay", "decay", "fast decay", "1 / i"):
        assert stated <= 7 * size + rounding
    assert {t.num_products for t in traces} == {30}
    assert all(t.low <= t.value <= t.high for t in traces)


@drawn
@pytest.mark.parametrize(
    "name", ["flat", "normal", "skewed", "decay", "1 / i", "low rank", "low rank and noise", "zero"]
)
def test_hutch_plus_plus_covers_and_is_unbiased(name: str) -> None:
    """Its standard error is that of independent estimates: neither too small nor, on average, too large."""
    values = spectra(400)[name]
    traces = [trace(Diagonal(values), seed=seed, method="hutch++") for seed in range(SEEDS)]
    true, rounding = values.sum(), 1e-13 * np.abs(values).sum()
    covers = sum(t.low <= true <= t.high for t in traces) / SEEDS
    assert covers >= 0.95 - 3 * (0.95 * 0.05 / SEEDS) ** 0.5
    away = np.array([t.value - true for t in traces])
    size = (away**2).mean() ** 0.5
    assert abs(away.mean()) <= 4 * size / SEEDS**0.5 + rounding
    stated = np.mean([t.standard_error**2 for t in traces]) ** 0.5
    assert 0.7 * size - rounding <= stated <= 1.4 * size + rounding
    assert {t.num_products for t in traces} == {30}


@pytest.mark.parametrize("rate", [0.5, 0.7])
def test_decays_are_followed_beyond_what_a_sketch_of_a_third_leaves(rate: float) -> None:
    """Hutch++ has, of as many products, at best the error of ten random vectors beyond the ten largest eigenvalues."""
    values = rate ** np.arange(1000.0)
    away = [trace(Diagonal(values), seed=seed).value - values.sum() for seed in range(60)]
    best = (0.2 * (values[10:] ** 2).sum()) ** 0.5
    assert np.mean(np.square(away)) ** 0.5 < 0.5 * best


def test_identity_and_low_rank_are_exact_at_any_size() -> None:
    """Random vectors have one length, and a sketch holds a matrix of low rank whole; more probes, less error."""
    for method in ("xtrace", "hutch++"):
        assert trace(Diagonal(np.full(3000, 2.0)), method=method).value == pytest.approx(6000, rel=1e-14)
    values = spectra(3000)["low rank"]
    estimate = trace(Diagonal(values))
    assert estimate.value == pytest.approx(values.sum(), abs=1e-12)
    assert estimate.high - estimate.low < 1e-9
    wide = Diagonal(spectra(3000)["normal"])
    errors = [np.mean([trace(wide, probes, seed).standard_error for seed in range(10)]) for probes in (30, 120)]
    assert errors[1] < 0.6 * errors[0]


def test_small_operators_are_assembled() -> None:
    """Up to 256 rows, and up to `probes` of them, the trace is the sum of the diagonal, whatever the probes."""
    values = np.random.default_rng(0).standard_normal(257)
    for n, probes in ((1, 30), (43, 30), (256, 6), (257, 257)):
        A = matrix(values[:n])
        estimate = trace(Hidden(A), probes)
        assert estimate.value == pytest.approx(values[:n].sum(), abs=1e-12)
        assert (estimate.standard_error, estimate.num_products) == (0.0, n)
    assert trace(Diagonal(values)).standard_error > 0 == trace(Diagonal(values), method="exact").standard_error
    exact = trace(MatrixOperator(matrix(values[:43])))
    assert exact.low == exact.value == exact.high


def test_errors_of_the_operator_widen_the_interval() -> None:
    """A stated error moves a trace by at most the order times it; the asymmetry of products counts as one."""
    for n in (50, 400):
        A = matrix(np.linspace(-1, 2, n))
        exact, stated = trace(MatrixOperator(A)), trace(MatrixOperator(A, error=1e-3))
        assert stated.value == exact.value
        assert stated.high - exact.high == pytest.approx(n * 1e-3, rel=1e-6)
        assert exact.low - stated.low == pytest.approx(n * 1e-3, rel=1e-6)
    skew = draw(50, 50)
    estimate = trace(Hidden(matrix(np.linspace(-1, 2, 50)) + 1e-6 * (skew - skew.T)))
    assert 1e-6 < estimate.high - estimate.low < 1e-1


def test_float32_holds_the_trace() -> None:
    """Assembled or not, the interval of float32 products holds the trace of the Hessian in float64."""
    torch.manual_seed(0)
    for hidden in (10, 60):
        model = torch.nn.Sequential(torch.nn.Linear(5, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 2))
        x, params = torch.randn(40, 5), dict(model.named_parameters())
        y = torch.randn(40, 2)
        true = float(HessianOperator(Objective(model, x, y, loss=mse), params).dense().trace())
        H = HessianOperator(Objective(model, x, y, loss=mse, dtype=torch.float32), params)
        for seed in range(5):
            estimate = trace(H, seed=seed)
            assert estimate.low <= true <= estimate.high
            assert (estimate.standard_error == 0) == (H.shape[0] <= 256)


def test_words_of_errors() -> None:
    """Too few probes and rectangular operators are refused with the number given."""
    square, oblong = (MatrixOperator(torch.zeros(n, 50, dtype=torch.float64)) for n in (50, 40))
    with pytest.raises(ValueError, match="5 probes: an estimate takes at least 6"):
        trace(square, probes=5)
    with pytest.raises(ValueError, match="method is 'hutch'"):
        trace(square, method="hutch")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"probes is 7\.5"):
        trace(square, probes=7.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="eigenvalues of a 40 x 50 operator: take a diagonal block"):
        trace(oblong)
