"""The saddle index: certificates on exactly known spectra."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch
from helpers.matrices import at_minus_tau, drawn_spectrum, exact_index, matrix, true_index
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape import HessianOperator, Objective
from landscape.curvature.coupling import excess_index
from landscape.curvature.eigsh import eigsh
from landscape.curvature.inertia import certified, from_spectrum, saddle_index
from landscape.curvature.operators import MatrixOperator
from landscape.errors import NumericsError

METHODS = ["dense", "lanczos"]
Array = NDArray[np.float64]


def exact_matrix(values: Array) -> Tensor:
    """A full matrix with exactly these eigenvalues, multiples of 2^-46 up to 1: by Hadamard's matrix nothing rounds."""
    Q = torch.from_numpy(scipy.linalg.hadamard(len(values)) / len(values) ** 0.5)
    return Q @ torch.diag(torch.from_numpy(values)) @ Q.T


@pytest.mark.parametrize("seed", range(100))
def test_certified_inertia_of_prescribed_spectra(seed: int) -> None:
    """Index, zeros and positives are exactly right at level certified; so they are from every eigenvalue."""
    values = drawn_spectrum(seed, 1e-8, 12)
    operator = MatrixOperator(matrix(values, seed))
    norm = np.abs(values).max()
    expected = [(values < -1e-8 * norm).sum(), (np.abs(values) <= 1e-8 * norm).sum(), (values > 1e-8 * norm).sum()]
    for inertia in (saddle_index(operator, method="dense"), from_spectrum(eigsh(operator, 1, method="dense"))):
        assert [inertia.negative, inertia.zero, inertia.positive] == expected
        assert (inertia.lower, inertia.upper, inertia.level) == (expected[0], expected[0], "certified")
        assert inertia.tolerance == pytest.approx(1e-8 * norm, rel=2e-3)
        assert 0 < inertia.error < inertia.tolerance
        assert inertia.failure_probability == 0


@pytest.mark.slow
def test_a_certificate_near_the_tolerance_is_never_wrong() -> None:
    """Eigenvalues within 6e-14 of -tau, known to the last bit: brackets hold, certificates are right, both occur."""
    rng = np.random.default_rng(0)
    levels = []
    for _ in range(200):
        near = -0.5 + rng.integers(-16, 17, rng.integers(1, 6)) * 2.0**-48
        values = np.concatenate([[-1.0], near, np.round(rng.uniform(-0.4, 1, 15 - len(near)) * 2**46) / 2**46])
        inertia = certified(exact_matrix(values), 0.5, 1.0)
        index = true_index(values, inertia)
        assert inertia.lower <= index <= inertia.upper
        assert inertia.upper - inertia.lower <= (np.abs(values + 0.5) <= 2 * inertia.error).sum()
        assert (inertia.level == "certified") == (inertia.lower == inertia.upper) == (inertia.negative == index)
        levels.append(inertia.level)
    assert min(levels.count("certified"), levels.count("bracketed")) > 20


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("exact", [True, False])
def test_an_eigenvalue_at_minus_tau_is_bracketed(copies: int, exact: bool) -> None:
    """Eigenvalues exactly at -tau may count or not: no certificate, and zero and positive stay open."""
    values = np.concatenate([[-1.0, -0.75], np.full(copies, -0.5), np.linspace(0.125, 1, 14 - copies)])
    A = torch.diag(torch.from_numpy(values)) if exact else matrix(values)
    for inertia in (certified(A, 0.5, 1.0), from_spectrum(eigsh(MatrixOperator(A), 1), tau=0.5)):
        assert (inertia.level, inertia.lower, inertia.upper) == ("bracketed", 2, 2 + copies)
        assert inertia.negative == inertia.zero == -1


@pytest.mark.parametrize("steps", [-80, -40, -20, 20, 40, 80])
def test_a_shift_that_hits_an_eigenvalue_is_moved(steps: int) -> None:
    """Where -tau -+ rho is an eigenvalue to the last bit the factorisation breaks down; the bracket still holds."""
    values = np.array([-1.0, -0.5 + steps * 2.0**-52, 0.25, 1.0])
    inertia = certified(torch.diag(torch.from_numpy(values)), 0.5, 1.0)
    assert inertia.lower <= true_index(values, inertia) <= inertia.upper
    assert inertia.error < 1e-12


def test_positives_are_counted_with_an_eigenvalue_at_tau() -> None:
    """An eigenvalue exactly at +tau is within the tolerance, and breaks no count."""
    inertia = certified(torch.diag(torch.tensor([-1.0, -0.25, 0.5, 1.0], dtype=torch.float64)), 0.5, 1.0)
    assert (inertia.negative, inertia.zero, inertia.positive) == (1, 2, 1)


@pytest.mark.parametrize("relative_error", [0.0, 1e-13, 1e-6, 1e-2])
@pytest.mark.parametrize("n", [1, 2, 10, 60, 300])
def test_a_refusal_names_a_tau_that_works(n: int, relative_error: float) -> None:
    """tau below the error of H is refused; the tau in the hint is accepted, half of it is not."""
    values = np.random.default_rng(n).standard_normal(n)
    A, norm = matrix(values), float(np.abs(values).max())
    with pytest.raises(NumericsError, match="tau 1.0e-17 is below the error of the computed Hessian, ") as refusal:
        certified(A, 1e-17 * norm, norm, relative_error * norm)
    words = refusal.value.hint.split()
    assert words[:3] == ["use", "tau", ">="]
    tau = float(words[3])
    inertia = certified(A, tau * norm, norm, relative_error * norm)
    assert relative_error * norm < inertia.error < tau * norm
    with pytest.raises(NumericsError, match="is below the error"):
        certified(A, 0.4 * tau * norm, norm, relative_error * norm)


def test_the_error_of_the_matrix_widens_the_bracket() -> None:
    """Eigenvalues within the error of -tau count in the upper bound only; theory may cap it."""
    A = matrix([-1.0, -0.505, -0.495, 1.0])
    eigen = eigsh(MatrixOperator(A, error=0.01), 2)
    assert not eigen.converged.any()
    for inertia in (certified(A, 0.5, 1.0, error=0.01), from_spectrum(eigen, tau=0.5)):
        assert (inertia.level, inertia.lower, inertia.upper, inertia.negative) == ("bracketed", 1, 3, -1)
    assert from_spectrum(eigen, tau=0.5, upper=2).upper == 2
    with pytest.raises(NumericsError, match=r"tau 1.0e-08 is below the error of the computed Hessian, 1.0e-02"):
        from_spectrum(eigen, tau=1e-8)
    # By default the tolerance is one that the error allows.
    assert from_spectrum(eigen).tolerance >= 2 * 0.01


def test_matrices_of_single_precision_are_factorised_in_double() -> None:
    """Their numbers are exact, so that 1e-8 is certified; products in float32 are refused there."""
    values = np.concatenate([[-1.0, -0.5, 0.25, 1.0], np.zeros(60)])
    operator = MatrixOperator(exact_matrix(values).float())
    assert torch.equal(operator.matrix.double(), exact_matrix(values))
    for inertia in (
        saddle_index(operator, rel_tau=1e-3, method="dense"),
        saddle_index(operator, method="dense"),
        from_spectrum(eigsh(operator, 1, method="dense")),
    ):
        assert (inertia.negative, inertia.zero, inertia.positive, inertia.level) == (2, 60, 2, "certified")
    with pytest.raises(NumericsError, match="tau 1.0e-08 is below the error of the computed Hessian"):
        saddle_index(operator, 1e-8, method="lanczos")


@pytest.mark.parametrize("method", METHODS)
def test_zero_identity_and_order_one(method: str) -> None:
    """The smallest and plainest matrices have the obvious index; zeros are counted where the matrix is zero."""
    for values in ([0.0], [0.0] * 5, [3.0], [-3.0], [1.0] * 5, [-1.0] * 70, [-2.0, 0.0]):
        inertia = saddle_index(MatrixOperator(torch.diag(torch.tensor(values, dtype=torch.float64))), method=method)
        index = sum(v < 0 for v in values)
        assert inertia.negative == inertia.lower == inertia.upper == index
        if method == "dense" or not any(values):
            assert (inertia.zero, inertia.positive) == (values.count(0.0), sum(v > 0 for v in values))


@pytest.mark.parametrize("scale", [2.0**-400, 2.0**-300, 1.0, 2.0**300, 2.0**330, 2.0**400])
def test_an_eigenvalue_at_minus_tau_is_certified_at_no_scale(scale: float) -> None:
    """Squares of the shifted inverse underflow from 2^330 on; the inertia is exact, by fractions."""
    for seed in range(12):
        A, tau = at_minus_tau(seed)
        inertia = certified(A * scale, tau * scale, scale)
        assert inertia.level == "bracketed"
        assert inertia.lower <= exact_index(A, -tau) <= inertia.upper
        away = certified(A * scale, 2 * tau * scale, scale)
        assert (away.level, away.negative) == ("certified", exact_index(A, -2 * tau))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_the_stated_error_covers_that_of_computed_eigenvalues(n: int) -> None:
    """Those of LAPACK, of order 3 up to 1.5 n eps |H| off, against 40 digits."""
    for seed in range(30):
        A = torch.randn(n, n, generator=torch.Generator().manual_seed(seed)).double()
        eigen = eigsh(MatrixOperator(A + A.T), n, method="dense")
        with mpmath.workdps(40):
            exact = sorted(mpmath.eigsy(mpmath.matrix((A + A.T).tolist()), eigvals_only=True))
            away = max(abs(x - mpmath.mpf(float(y))) for x, y in zip(exact, eigen.ritz, strict=True))
        assert away <= from_spectrum(eigen).error / 2, seed


def test_an_eigenvalue_off_by_more_than_n_eps_is_bracketed() -> None:
    """The lowest of order 3 is above -tau by exact elimination, and computed below it."""
    A = -torch.randn(3, 3, generator=torch.Generator().manual_seed(16)).double()
    eigen = eigsh(MatrixOperator(A + A.T), 3, method="dense")
    for steps in range(-20, 21):
        inertia = from_spectrum(eigen, 1 + steps * 2.0**-52)
        assert inertia.lower <= exact_index(A + A.T, -inertia.tolerance) <= inertia.upper


@pytest.mark.parametrize("method", METHODS)
def test_a_zero_matrix_in_error_has_no_index(method: str) -> None:
    """The true matrix may be -0.1 everywhere on the diagonal: no tau that is a share of |H| = 0 is beyond that."""
    zero = torch.zeros(9, 9, dtype=torch.float64)
    for rel_tau in (None, 0.5):
        with pytest.raises(NumericsError, match=r"tau 0.0e\+00 is below the error of the computed Hessian") as refusal:
            saddle_index(MatrixOperator(zero, 0.1), rel_tau, method=method)  # type: ignore[arg-type]
        assert "absolute" in refusal.value.hint
    with pytest.raises(NumericsError, match="which is 0 but for it"):
        certified(zero, 0.1, 0.0, 0.1)
    inertia = certified(zero, 0.3, 0.0, 0.1)
    assert (inertia.negative, inertia.zero, inertia.positive, inertia.level) == (0, 9, 0, "certified")
    with pytest.raises(NumericsError, match="which is 0 but for it"):
        from_spectrum(eigsh(MatrixOperator(zero, 0.1), 1, method="dense"))


@pytest.mark.parametrize("method", ["dense", "lanczos"])
def test_what_underflows_says_that_it_vanished(method: Any) -> None:
    """Logits of 800 leave exp(-800): negative curvature that float64 does not hold is no certified index of 0."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2, bias=False)).double()
    with torch.no_grad():
        model[2].weight.copy_(torch.tensor([[800.0, 0.0], [-800.0, 0.0]]))
        model[0].weight.copy_(torch.eye(2))
        model[0].bias.copy_(torch.tensor([20.0, 0.0]))
    x, y = torch.eye(2).double(), torch.zeros(2, dtype=torch.long)
    H = HessianOperator(Objective(model, (x, y), nn.CrossEntropyLoss()), dict(model.named_parameters()))
    inertia = saddle_index(H, method=method)
    n = H.shape[0]
    assert (inertia.level, inertia.lower, inertia.upper, inertia.negative) == ("vanished", 0, n, -1)
    assert eigsh(H, 2, method=method).converged.all()
    # Below a tolerance of the user's there is nothing.
    whole = excess_index(H, HessianOperator.block(H, H.rows, H.rows), H, abs_tau=1e-6, method=method)
    assert whole.index == 0
