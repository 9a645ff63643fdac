"""Index curves: every bracket holds the true count, and an interval holds it as often as it says."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from helpers.draws import drawn, draws
from helpers.matrices import Diagonal, drawn_spectrum, matrix
from numpy.typing import NDArray

from landscape.curvature import inertia
from landscape.curvature.curve import TAUS, IndexCurve, by_factorisations, by_products, by_spectrum, index_curve
from landscape.curvature.density import quadrature
from landscape.curvature.eigsh import eigsh
from landscape.curvature.inertia import Inertia, from_spectrum
from landscape.curvature.operators import MatrixOperator
from landscape.errors import NumericsError

Array = NDArray[np.float64]
EPS = float(torch.finfo(torch.float64).eps)


def power_law(seed: int) -> Array:
    """Both signs over fourteen decades, as the eigenvalues of networks have."""
    rng = np.random.default_rng(seed)
    values = 10 ** rng.uniform(-13, 0, 60) * rng.choice([-1, 1], 60)
    return np.append(values, [rng.choice([-1.0, 1.0])]) * 10 ** rng.uniform(-9, 6)


def counts(values: Array, curve: IndexCurve) -> Array:
    """The true counts at the tolerances of a curve."""
    return (values[:, None] < -curve.tau * curve.operator_norm).sum(0)


def assert_holds(curve: IndexCurve, values: Array) -> None:
    """The bounds hold the true counts, and all numbers are monotone and in order."""
    true = counts(values, curve)
    assert (curve.lower <= true).all()
    assert (true <= curve.upper).all()
    assert list(curve.tau) == list(TAUS)
    assert (np.diff(curve.lower) >= 0).all()
    assert (np.diff(curve.upper) >= 0).all()
    is_open = ~np.isnan(curve.estimate)
    assert not is_open[curve.lower == curve.upper].any()
    numbers = (curve.lower, curve.estimate_low, curve.estimate, curve.estimate_high, curve.upper)
    assert (np.diff([number[is_open] for number in numbers], axis=0) >= 0).all()


@pytest.mark.parametrize("seed", range(40))
def test_dense_curves_of_prescribed_spectra(seed: int) -> None:
    """By factorisations and from every eigenvalue: right where no eigenvalue is within rounding of -tau."""
    for values in (drawn_spectrum(seed, 1e-8, 12), power_law(seed)):
        A = MatrixOperator(matrix(values, seed))
        eigen = eigsh(A, 1, method="dense")
        curves = index_curve(A, method="dense"), by_spectrum(eigen, from_spectrum(eigen).error)
        for curve in curves:
            assert_holds(curve, values)
            away = np.abs(values[:, None] + curve.tau * curve.operator_norm).min(0)
            # Eigenvalues of the rounded matrix are this far from the prescribed ones.
            is_clear = away > 100 * len(values) * EPS * curve.operator_norm
            assert is_clear.sum() >= 8
            np.testing.assert_array_equal(curve.lower[is_clear], counts(values, curve)[is_clear])
            np.testing.assert_array_equal(curve.upper[is_clear], counts(values, curve)[is_clear])
            assert curve.failure_probability == 0
            assert np.isnan(curve.estimate).all()


def test_within_the_error_of_the_matrix_the_bounds_widen() -> None:
    """No tau is refused; the eigenvalues that the error may move across -tau are between the bounds."""
    values = np.concatenate([[-1.0], np.full(5, -1e-4), np.full(7, 1e-4), [1.0]])
    curve = by_factorisations(MatrixOperator(matrix(values), error=1e-3), 1.0)
    assert_holds(curve, values)
    assert (curve.lower[1], curve.upper[1]) == (1, 1)
    assert (curve.lower[-1], curve.upper[-1]) == (1, 13)
    eigen = eigsh(MatrixOperator(matrix(values), error=1e-3), 1, method="dense")
    spectral = by_spectrum(eigen, from_spectrum(eigen).error)
    assert (spectral.lower[-1], spectral.upper[-1]) == (1, 13)


def test_a_flat_curve_takes_few_factorisations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is counted between two equal counts, nor where an index is known already."""
    shifts = []

    class Counted(inertia.ShiftedLDL):
        def __init__(self, H: torch.Tensor, shift: float) -> None:
            shifts.append(shift)
            super().__init__(H, shift)

    monkeypatch.setattr(inertia, "ShiftedLDL", Counted)
    A = MatrixOperator(matrix(np.concatenate([np.full(9, -0.5), np.linspace(0.1, 1, 20)])))
    flat = by_factorisations(A, 1.0)
    assert list(flat.lower) == list(flat.upper) == [0, *[9] * 10]
    assert len(shifts) == 5
    shifts.clear()
    known = [Inertia(9, -1, -1, 9, 9, tau, "certified") for tau in (1e-1, 1e-10)]
    np.testing.assert_array_equal(by_factorisations(A, 1.0, known).lower, flat.lower)
    assert len(shifts) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_matrix_free_bounds_hold(seed: int) -> None:
    """Lower bounds by Ritz values, none above but by the depth of the lowest eigenvalue, or by theory."""
    for values in (drawn_spectrum(seed, 1e-3, 20), power_law(seed)):
        A = MatrixOperator(matrix(values, seed))
        curve = index_curve(A, method="lanczos", seed=seed)
        assert_holds(curve, values)
        assert curve.failure_probability <= 1e-5
        assert curve.num_products > 0
        index = int((values < 0).sum())
        capped = index_curve(A, method="lanczos", seed=seed, upper=index)
        assert_holds(capped, values)
        assert capped.upper.max() <= index


@drawn
@pytest.mark.slow
def test_intervals_cover_as_often_as_they_say() -> None:
    """95 % at each tolerance, where few products leave it open."""
    values = np.concatenate([-np.geomspace(1e-9, 1, 150), np.geomspace(1e-9, 1, 250)])
    op, runs = Diagonal(values), draws(60, 400)
    covered, tried = np.zeros(len(TAUS), int), np.zeros(len(TAUS), int)
    for seed in range(runs):
        eigen = eigsh(op, 1, method="lanczos", seed=seed, max_hvps=40)
        curve = by_products(eigen, 1e-13, quadrature(op, probes=4, steps=30, seed=seed))
        is_open = ~np.isnan(curve.estimate)
        true = counts(values, curve)
        tried += is_open
        covered += is_open & (curve.estimate_low <= true) & (true <= curve.estimate_high)
    assert tried.max() == runs
    for hits, of in zip(covered, tried, strict=True):
        assert of == 0 or scipy.stats.binom.cdf(hits, of, 0.95) > 1e-4


def test_a_bound_from_theory_that_does_not_hold_is_refused() -> None:
    A = MatrixOperator(matrix([-1.0, -0.5, 0.25, 1.0]))
    for method in ("dense", "lanczos"):
        with pytest.raises(NumericsError, match="the upper bound given for the index is 1, but at least 2 eigenvalues"):
            index_curve(A, method=method, upper=1)  # type: ignore[arg-type]
        assert index_curve(A, method=method, upper=2).lower[-1] == 2  # type: ignore[arg-type]


def test_a_random_bound_that_failed_says_nothing() -> None:
    """Below what is proved it has failed: neither it nor its probability is in the curve."""
    eigen = eigsh(MatrixOperator(matrix([-1.0, -0.5, 0.25, 1.0])), 4, method="lanczos")
    failed = Inertia(-1, -1, -1, 0, 1, 1e-3, "bracketed", failure_probability=0.25)
    curve = by_products(eigen, 1e-12, known=[failed])
    assert (curve.lower[3], curve.upper[3]) == (2, 4)
    assert curve.failure_probability < 0.25


@pytest.mark.parametrize("method", ["dense", "lanczos"])
def test_zero_matrices(method: str) -> None:
    """The exact one has no negative eigenvalue at any tau; of one in error nothing is known."""
    zero = torch.zeros(9, 9, dtype=torch.float64)
    exact = index_curve(MatrixOperator(zero), method=method)  # type: ignore[arg-type]
    assert list(exact.lower) == [0] * 11
    if method == "dense":
        assert list(exact.upper) == [0] * 11
        assert list(index_curve(MatrixOperator(zero, 0.1), method="dense").upper) == [9] * 11


def test_forms() -> None:
    """It prints a line a tolerance, has one row for each in a table, and is drawn with its interval as the band."""
    values = np.concatenate([-np.geomspace(1e-9, 1, 50), np.geomspace(1e-9, 1, 80)])
    curve = index_curve(MatrixOperator(matrix(values)), method="lanczos", max_hvps=30)
    lines = repr(curve).splitlines()
    assert lines[0] == "IndexCurve"
    assert [line.split("|H|")[0].split()[-1] for line in lines[1:12]] == [f"-{tau:.0e}" for tau in TAUS]
    table = curve.to_dataframe()
    assert list(table["tau"]) == list(TAUS)
    is_open = table["estimate"].notna()
    np.testing.assert_array_equal(table["index"][is_open], table["estimate"][is_open])
    np.testing.assert_array_equal(table["index"][~is_open], table["lower"][~is_open])
    assert (table["low"] <= table["index"]).all()
    assert (table["index"] <= table["high"]).all()
    ax = curve.plot()
    assert (ax.get_xscale(), ax.get_ylabel()) == ("log", "eigenvalues below −τ")
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), table["index"])


def test_a_bound_that_does_not_hold_is_refused() -> None:
    """Also where it leaves nothing to count."""
    with pytest.raises(NumericsError, match="upper bound given for the index is 0"):
        index_curve(MatrixOperator(-torch.eye(3).double()), upper=0, method="dense")


def test_a_bound_beside_an_error_refuses_no_tolerance() -> None:
    """Of a matrix known to 1e-6, the smallest tolerances are within the error."""
    curve = index_curve(MatrixOperator(matrix([-1.0, -0.5, 1e-9, 1.0]), error=1e-6), upper=3, method="dense")
    assert (curve.lower[-1], curve.upper[-1]) == (2, 3)
